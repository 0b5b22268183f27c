"""Batch lanes keep to what an operator holds: lines go elsewhere, or wait without losing a try."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.batch.line_runner import TRIES_MAX, put_back
from gateway.batch.offers import HELD_BESIDE_OTHERS_S, HELD_S, lane_offers
from gateway.errors import NoEligibleEndpoint
from gateway.fleet.holds import Holds
from gateway.prices.book import PriceBook
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from gateway.store.batch_work import ClaimedLine
from gateway.store.holds import PAUSED, HoldRow, put_hold
from gateway.wire.pieces import Surface
from tests.support.batch_world import chat_line
from tests.support.deciding import policy_of
from tests.support.fleet_world import Clock, make_fleet
from tests.support.lane_world import LaneWorld, lane_world, until

pytestmark = pytest.mark.anyio

BRISK: dict[str, Any] = {"model": "sim", "ttft_base_s": 0.01, "tokens_per_s": 2_000.0}
CHEAP = ProviderProfile(name="cheap", price=SimulatedPrice(input=1, output=1), **BRISK)
DEAR = ProviderProfile(name="dear", price=SimulatedPrice(input=9, output=9), **BRISK)


async def hold(here: LaneWorld, *endpoint_ids: str) -> None:
    """As the dashboard does in another process: this one hears of it through the store."""
    async with here.store.begin() as connection:
        for each in endpoint_ids:
            await put_hold(connection, HoldRow(endpoint_id=each, mode=PAUSED, actor="admin:ana"))

    async def is_heard() -> bool:
        return set(here.gateway.holds.rows) >= set(endpoint_ids)

    await until(is_heard, "the hold to be heard of", wait_s=5.0)


async def test_lines_avoid_a_held_endpoint_and_wait_where_all_are(tmp_path: Path) -> None:
    lines = [chat_line(f"c-{at}", "m", f"Say {at}.", max_tokens=4) for at in range(4)]
    async with lane_world(tmp_path, [CHEAP, DEAR], {"m": ("cheap", "dear")}) as here:
        await hold(here, "cheap/sim")
        async with here.working():
            _, elsewhere = await here.ended(await here.make(lines))
            used = await here.rows("SELECT DISTINCT endpoint_id FROM batch_lines")
            await hold(here, "dear/sim")
            batch_id = await here.make(lines, window_s=3_600.0)
            for _ in range(4):
                here.worker.wake()
                await asyncio.sleep(0.1)
            _, waiting = await here.look(batch_id)
            planned = await here.rows(
                f"SELECT DISTINCT not_before FROM batch_lines WHERE batch_id = '{batch_id}'"
            )
            now = here.gateway.wall_clock()

    assert elsewhere.by_state == {"succeeded": 4}
    assert [row["endpoint_id"] for row in used] == ["dear/sim"]
    assert waiting.by_state == {"open": 4}
    assert all(now + HELD_S - 60.0 < row["not_before"] < now + HELD_S for row in planned)


def test_held_lane_is_offered_for_later_so_that_what_runs_there_may_stay() -> None:
    clock = Clock()
    policy, fleet = policy_of("a", "b"), make_fleet("a/x", "b/x", clock=clock)
    Holds().obey(fleet, {"a/x": HoldRow(endpoint_id="a/x", mode=PAUSED, actor="admin:ana")})
    now = clock.wall()
    offers = lane_offers(
        policy,
        fleet,
        {"m"},
        Surface.CHAT,
        turnarounds={},
        native_endpoints=("a/x",),
        book=PriceBook(),
        now=now,
    )
    opens = {each.id: each.opens_at_s for each in offers}

    assert opens["a/x#standard"] == opens["a/x#native"] == now + HELD_BESIDE_OTHERS_S
    assert opens["b/x#standard"] <= now


def test_line_that_met_a_hold_is_put_back_and_has_lost_no_try() -> None:
    error = NoEligibleEndpoint("held", code="endpoint_held")
    line = ClaimedLine(
        batch_id="b",
        line_no=1,
        custom_id="c",
        offset_bytes=0,
        num_bytes=1,
        model="m",
        lane="p/m#standard",
        num_tries=TRIES_MAX + 5,
        tenant_id="t",
        key_id="k",
        surface="chat",
        input_file_id="f",
        deadline_at=1_000.0,
    )
    back = put_back(line, error, now=0.0)

    assert back is not None
    assert not back.is_a_try
