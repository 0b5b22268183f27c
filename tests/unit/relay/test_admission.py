"""Places in the process and waiting for an endpoint's slot."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core import Lane
from gateway.errors import Overloaded
from gateway.relay.admission import Admission, Turn


def test_batch_is_shed_while_interactive_still_enters() -> None:
    admission = Admission(10)
    for _ in range(8):
        admission.enter(Lane.INTERACTIVE)

    with pytest.raises(Overloaded, match="batch"):
        admission.enter(Lane.BATCH)
    admission.enter(Lane.INTERACTIVE)

    assert admission.in_flight == 9


def test_a_full_process_refuses_with_advice_when_to_return() -> None:
    admission = Admission(1)
    admission.enter(Lane.INTERACTIVE)

    with pytest.raises(Overloaded) as refused:
        admission.enter(Lane.INTERACTIVE)

    assert refused.value.retry_after_s == 1.0


@pytest.mark.anyio
async def test_batch_never_waits_for_a_slot() -> None:
    with Turn(Admission(10), Lane.BATCH, lambda: 0.0) as turn, pytest.raises(Overloaded):
        await turn.wait()


async def waited(admission: Admission, *wanted: str, capacity: float = 8.0) -> float:
    """One interactive request that waits once and is then decided."""
    clock = asyncio.get_running_loop().time
    with Turn(admission, Lane.INTERACTIVE, clock) as turn:
        await turn.wait(wanted, capacity=capacity)
        return turn.waited_s


@pytest.mark.anyio
async def test_an_ended_request_wakes_the_one_that_waited_longest() -> None:
    admission = Admission(10)
    admission.enter(Lane.INTERACTIVE)
    first = asyncio.create_task(waited(admission))
    second = asyncio.create_task(waited(admission))
    await asyncio.sleep(0)

    admission.leave()
    waited_s = await first

    assert waited_s < 0.2
    assert not second.done()
    second.cancel()


@pytest.mark.anyio
async def test_only_who_waits_for_that_endpoint_is_woken() -> None:
    admission = Admission(10)
    admission.enter(Lane.INTERACTIVE)
    for_a = asyncio.create_task(waited(admission, "a"))
    for_b = asyncio.create_task(waited(admission, "b"))
    await asyncio.sleep(0)
    assert admission.is_awaited("b")

    admission.leave("b")

    assert await for_b < 0.2
    assert admission.is_awaited("a")
    assert not admission.is_awaited("b")
    for_a.cancel()


@pytest.mark.anyio
async def test_line_is_as_long_as_it_moves_within_one_answer() -> None:
    admission = Admission(100)
    admission.served("a", 10.0)  # an answer takes ten seconds, a wait two at most: one in five
    tasks = [asyncio.create_task(waited(admission, "a", capacity=40.0)) for _ in range(12)]
    await asyncio.sleep(0)

    refused = [task for task in tasks if task.done()]
    assert len(refused) == 4
    assert all(isinstance(task.exception(), Overloaded) for task in refused)
    for task in tasks:
        task.cancel()


@pytest.mark.anyio
async def test_waiting_ends_when_its_time_is_spent() -> None:
    clock = iter([0.0, 2.0]).__next__
    with Turn(Admission(10), Lane.INTERACTIVE, clock) as turn:
        await turn.wait()
        assert turn.waited_s == 2.0
        with pytest.raises(Overloaded, match="capacity"):
            await turn.wait()


@pytest.mark.anyio
async def test_nobody_waits_for_a_pause_that_is_longer_than_the_wait() -> None:
    with (
        Turn(Admission(10), Lane.INTERACTIVE, lambda: 0.0) as turn,
        pytest.raises(Overloaded) as refused,
    ):
        await turn.wait(["a"], free_in_s=7.5)

    assert refused.value.retry_after_s == 7.5


@pytest.mark.anyio
async def test_a_drain_waits_until_nothing_is_in_flight() -> None:
    admission = Admission(10)
    admission.enter(Lane.INTERACTIVE)

    assert not await admission.wait_idle(0.01)
    admission.leave()
    assert await admission.wait_idle(0.01)
