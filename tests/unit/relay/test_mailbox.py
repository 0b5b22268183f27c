"""The queue between an attempt and its request."""

from __future__ import annotations

import asyncio

import pytest

from gateway.relay.mailbox import Mailbox

pytestmark = pytest.mark.anyio


def mailbox(events_max: int = 4, bytes_max: int = 100) -> Mailbox[str]:
    return Mailbox(events_max=events_max, bytes_max=bytes_max)


async def test_letters_come_in_order_and_urgent_ones_first() -> None:
    box = mailbox()
    box.post("a")
    box.post("b")
    box.post("now", is_urgent=True)

    assert [await box.next(1.0) for _ in range(3)] == ["now", "a", "b"]


async def test_waiting_ends_without_a_letter() -> None:
    assert await mailbox().next(0.0) is None
    assert await mailbox().next(0.001) is None


async def test_letter_wakes_the_waiting_consumer() -> None:
    box = mailbox()
    asyncio.get_running_loop().call_soon(box.post, "a")

    assert await box.next(60.0) == "a"


@pytest.mark.parametrize(("count", "size"), [(4, 0), (1, 100)])
async def test_full_box_makes_the_reader_wait_until_half_is_read(count: int, size: int) -> None:
    box = mailbox()
    for _ in range(count):
        box.post("a", size)
    assert box.is_full

    waiting = asyncio.create_task(box.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    for _ in range(max(1, count // 2)):
        await box.next(1.0)
    await asyncio.wait_for(waiting, 1.0)

    assert not box.is_full


async def test_cancelled_consumer_leaves_the_box_usable() -> None:
    box = mailbox()
    task = asyncio.create_task(box.next(60.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    box.post("a")

    assert await box.next(1.0) == "a"
