"""Places in the process and waiting for an endpoint's slot."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core import Lane
from gateway.errors import Overloaded
from gateway.relay.admission import Admission


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
    with pytest.raises(Overloaded):
        await Admission(10).wait_for_slot(Lane.BATCH, 0.0, lambda: 0.0)


@pytest.mark.anyio
async def test_an_ended_request_wakes_the_one_that_waited_longest() -> None:
    admission = Admission(10)
    admission.enter(Lane.INTERACTIVE)
    clock = asyncio.get_running_loop().time
    first = asyncio.create_task(admission.wait_for_slot(Lane.INTERACTIVE, 0.0, clock))
    second = asyncio.create_task(admission.wait_for_slot(Lane.INTERACTIVE, 0.0, clock))
    await asyncio.sleep(0)

    admission.leave()
    waited_s = await first

    assert waited_s < 0.2
    assert not second.done()
    second.cancel()


@pytest.mark.anyio
async def test_waiting_ends_when_its_time_is_spent() -> None:
    with pytest.raises(Overloaded, match="capacity"):
        await Admission(10).wait_for_slot(Lane.INTERACTIVE, 2.0, lambda: 0.0)


@pytest.mark.anyio
async def test_a_drain_waits_until_nothing_is_in_flight() -> None:
    admission = Admission(10)
    admission.enter(Lane.INTERACTIVE)

    assert not await admission.wait_idle(0.01)
    admission.leave()
    assert await admission.wait_idle(0.01)
