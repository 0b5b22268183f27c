"""What the ledger is told beforehand of an attempt, should nobody live to settle it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.relay.unseen import unseen_of
from tests.support.fleet_world import Clock, endpoint, make_fleet, whole
from tests.support.ledgers import attempt_rows
from tests.support.relaying import COMPLETION, Client, World, answers, relay_world

pytestmark = pytest.mark.anyio


def learned(**changes: object) -> tuple[Any, Any]:
    """A fleet that has seen forty whole answers of 16 tokens in about 0.6 s; and its endpoint."""
    clock = Clock()
    fleet = make_fleet("fast/m", clock=clock)
    for step in range(40):
        clock.advance(0.1)
        fleet.started("fast/m", is_stream=False)
        took_s = 0.55 + 0.01 * (step % 10)
        fleet.observe(whole(clock(), seconds=took_s, tokens=16))
    clock.advance(1.0)
    return fleet, endpoint("fast/m", **changes)


async def job_of(folder: Path, **body: Any) -> Any:
    async with relay_world(folder, answers(COMPLETION)) as world:
        return replace(world.job(**body), output_tokens_expected=60.0)


async def test_a_whole_answer_is_bounded_by_its_length_and_by_its_time(tmp_path: Path) -> None:
    job = await job_of(tmp_path, stream=False, max_tokens=16)
    fleet, stops = learned(stops_when_left=True)

    unseen = unseen_of(job, stops, fleet)

    assert unseen.tokens == 16
    assert 0.4 < unseen.whole_s <= 0.57  # quicker than most, never slower


async def test_a_provider_that_goes_on_generating_bills_all_of_it(tmp_path: Path) -> None:
    job = await job_of(tmp_path, stream=False, max_tokens=16)
    fleet, goes_on = learned(stops_when_left=False)

    assert unseen_of(job, goes_on, fleet).whole_s == 0.0


async def test_nothing_is_known_of_times_that_were_not_seen(tmp_path: Path) -> None:
    job = await job_of(tmp_path, stream=False, max_tokens=16)
    fleet = make_fleet("fast/m", clock=Clock())

    unseen = unseen_of(job, endpoint("fast/m", stops_when_left=True), fleet)

    assert (unseen.tokens, unseen.whole_s) == (16, 0.0)
    assert unseen.prompt_tokens >= job.facts.text_bytes // 2  # every other byte a token


async def test_an_answer_that_had_come_is_booked_as_it_was(tmp_path: Path) -> None:
    """It was told to the journal before it was kept: a kill in between costs no exactness."""
    async with relay_world(tmp_path, answers(COMPLETION)) as world:
        kept = asyncio.Event()
        job = replace(world.job(stream=False), keep=lambda *_: stuck(kept))
        task = asyncio.create_task(world.relay.run(job, Client()))
        await asyncio.wait_for(kept.wait(), 10.0)
        row = await only_row(world)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert row.state == "sent"
    assert (row.input_tokens, row.output_tokens) == (11, 2)


async def stuck(kept: asyncio.Event) -> None:
    kept.set()
    await asyncio.Event().wait()


async def only_row(world: World) -> Any:
    await world.ledger.flush()
    (row,) = (await attempt_rows(world.bench.store)).values()
    return row
