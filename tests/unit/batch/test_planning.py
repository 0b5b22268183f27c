"""New batches get a lane for every line or a refusal with figures; lanes follow the fleet."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.batch.creating import WINDOW_S_MAX, PlannedLines, put_down
from gateway.batch.offers import (
    FILL_SHARE,
    Turnaround,
    lane_offers,
    lines_per_s,
    marginal_row,
    places_for_batch,
)
from gateway.batch.planning import LanePlanner, NativeFacts, _window
from gateway.core import Caller, EndpointLive, MachineLoad, PriceRow
from gateway.fleet.fleet import Fleet
from gateway.policy.load import load_policy
from gateway.policy.placement import LaneOffer
from gateway.policy.policy import Policy
from gateway.policy.units import parse_duration
from gateway.prices.book import PriceBook
from gateway.prices.rows import BATCH, complete_row
from gateway.store.audit import AuditEvent
from gateway.store.batches import BatchRow, NewLine
from gateway.store.engine import Store
from gateway.wire.pieces import Surface
from tests.support.databases import sqlite_store
from tests.support.deciding import policy_of
from tests.support.fleet_world import Clock, FixedRng, fail

pytestmark = pytest.mark.anyio

CALLER = Caller(tenant_id="t", team_id="e", key_id="k")
NATIVE = NativeFacts(frozenset({"b/x"}), {"b/x": Turnaround(p50_s=60.0, p95_s=120.0)})
CHEAP = "price: {input: 1, output: 2}"
DEAR = "price: {input: 10, output: 20}"


def fleet_of(policy: Policy, clock: Clock) -> Fleet:
    ids = itertools.count(1)
    book = PriceBook()
    return Fleet(
        policy.endpoints.values(),
        clock=clock,
        wall_clock=clock.wall,
        price_rows=book.rows,
        new_id=lambda: f"id-{next(ids)}",
        rng=FixedRng(),
    )


def batch(now: float, **fields: Any) -> BatchRow:
    stated: dict[str, Any] = {
        "id": "b", "tenant_id": "t", "team_id": "e", "key_id": "k", "dialect": "openai",
        "surface": "chat", "state": "validating", "input_file_id": "f",
        "completion_window": "24h", "deadline_at": now + 86_400.0, "created_at": now, **fields,
    }  # fmt: skip
    return BatchRow(**stated)


def line(number: int, prompt: int = 100, output: int = 100, model: str = "m") -> NewLine:
    return NewLine(
        line_no=number, custom_id=f"c{number}", offset_bytes=0, num_bytes=1, model=model,
        prompt_tokens=prompt, output_tokens=output,
    )  # fmt: skip


class Alone(LanePlanner):
    """Where there is no other batch: the tests of one need no database."""

    async def _promised(self, now: float) -> Any:
        return {}, [], {}


async def placed(
    policy: Policy, lines: list[NewLine], *, facts: NativeFacts | None = None, **fields: Any
) -> PlannedLines:
    clock = Clock()
    store: Store = None  # type: ignore[assignment]  # nothing is read of it
    told = facts or NativeFacts()
    planner = Alone(lambda: policy, fleet_of(policy, clock), store, lambda: told)
    now = clock.wall()
    return await planner.place_new(batch(now, **fields), lines, CALLER, now=now)


async def placed_beside(
    store: Store, policy: Policy, lines: list[NewLine], **fields: Any
) -> PlannedLines:
    clock = Clock()
    planner = LanePlanner(lambda: policy, fleet_of(policy, clock), store)
    now = clock.wall()
    return await planner.place_new(batch(now, **fields), lines, CALLER, now=now)


NOTE = AuditEvent(tenant_id="ten", at=0.0, actor="key k", action="batch.create", subject="b")


async def accepted(
    store: Store, planned: PlannedLines, lines: list[NewLine], row: BatchRow
) -> None:
    assert planned.is_feasible, planned.refusal
    await put_down(store, row, lines, planned, note=NOTE)


def offers_of(policy: Policy, fleet: Fleet, now: float, **more: Any) -> dict[str, LaneOffer]:
    given: dict[str, Any] = {"turnarounds": {}, "native_endpoints": (), **more}
    found = lane_offers(policy, fleet, {"m"}, Surface.CHAT, book=PriceBook(), now=now, **given)
    return {each.id: each for each in found}


async def test_every_line_gets_a_lane_and_the_counts_are_what_is_shown() -> None:
    policy = policy_of(f"a, {DEAR}", f"b, {CHEAP}")
    sizes = [(100, 100), (100, 100), (9_000, 50), (1, 1), (100, 4_000)]
    lines = [line(1 + at, *size) for at, size in enumerate(sizes * 20)]
    planned = await placed(policy, lines)
    assert planned.is_feasible
    assert planned.refusal == ""
    assert set(planned.lanes) == {"b/x#standard"}
    assert sum(each["lines"] for each in planned.shown["lanes"]) == len(lines)
    assert planned.not_before == [None] * len(lines)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 5_000), st.integers(1, 3_000)), min_size=1, max_size=60
    ),
    window_s=st.floats(600.0, 604_800.0),
)
async def test_a_feasible_plan_leaves_no_line_without_a_lane(
    sizes: list[tuple[int, int]], window_s: float
) -> None:
    policy = policy_of(f"a, {DEAR}", f"b, {CHEAP}")
    lines = [line(1 + at, *size) for at, size in enumerate(sizes)]
    planned = await placed(policy, lines, facts=NATIVE, deadline_at=1_000_000.0 + window_s)
    known = {"a/x#standard", "b/x#standard", "b/x#native", ""}
    assert set(planned.lanes) <= known
    if planned.is_feasible:
        assert "" not in planned.lanes
        assert planned.shown["late_lines"] == 0
    else:
        assert "cannot be answered" in planned.refusal
    told = sum(each["lines"] for each in planned.shown["lanes"])
    assert told == sum(lane != "" for lane in planned.lanes)


async def test_a_native_lane_is_half_the_price_and_waits_for_company() -> None:
    text = (
        "version: 1\nproviders:\n"
        "  b: {base_url: 'https://b.example/v1', quirks: [native_batch], simulated: true}\n"
        f"models: {{m: [{{provider: b, model: x, {CHEAP}}}]}}\n"
    )
    policy = load_policy(text.encode(), environ=None)
    many = await placed(policy, [line(1 + at) for at in range(60)], facts=NATIVE)
    assert set(many.lanes) == {"b/x#native"}
    assert many.shown["saving"] == 0.5
    assert set(many.not_before) == {None}
    few = await placed(policy, [line(1)], facts=NATIVE)
    (waits_until,) = few.not_before
    assert waits_until is not None
    assert waits_until - Clock().wall() == pytest.approx(600.0)


async def test_a_deadline_that_cannot_be_kept_is_refused_by_how_many_seconds() -> None:
    policy = policy_of(f"a, {CHEAP}")
    now = Clock().wall()
    lines = [line(1 + at, output=3_000) for at in range(50_000)]
    planned = await placed(policy, lines, completion_window="10m", deadline_at=now + 600.0)
    assert not planned.is_feasible
    assert "lines of 'm' cannot be answered within 10m at any price: about" in planned.refusal
    assert "s more are needed (completion_window" in planned.refusal
    assert planned.refusal.startswith("the batch was not made, and nothing was charged: ")


@pytest.mark.parametrize(
    ("need_s", "told"),
    [
        (601.0, "completion_window 11m"),
        (7_201.0, "completion_window 3h"),
        (577_915.0, "completion_window 161h"),
        (WINDOW_S_MAX + 86_400.0, "in all 8.0 days, and 7d is the longest: split the file"),
    ],
)
def test_a_window_that_would_do_is_one_that_may_be_asked_for(need_s: float, told: str) -> None:
    assert _window(need_s) == told
    if "completion" in told:
        assert need_s <= parse_duration(told.split()[1]) <= WINDOW_S_MAX


async def test_room_that_another_batch_needs_is_not_there_twice(tmp_path: Path) -> None:
    # Alone each takes 44 minutes; together they do not fit into an hour.
    policy = policy_of(f"a, {CHEAP}")
    lines = [line(1 + at, output=400) for at in range(4_000)]
    hour = {"completion_window": "1h", "deadline_at": Clock().wall() + 3_600.0}
    async with sqlite_store(tmp_path) as store:
        first = await placed_beside(store, policy, lines, **hour)
        await accepted(store, first, lines, batch(Clock().wall(), id="first", **hour))
        second = await placed_beside(store, policy, lines, **hour)
        small = await placed_beside(store, policy, lines[:100], **hour)
        later = await placed_beside(store, policy, lines)
    assert not second.is_feasible
    assert "cannot be answered within 1h at any price: about" in second.refusal
    assert small.is_feasible
    assert small.shown["list_price_usd"] == "0.09"  # of its own 100 lines alone
    assert sum(each["lines"] for each in small.shown["lanes"]) == 100
    assert later.is_feasible
    assert later.shown["finish_at"] > first.shown["finish_at"]


async def test_a_batch_that_would_make_earlier_ones_late_is_refused(tmp_path: Path) -> None:
    policy = policy_of(f"a, {CHEAP}")
    lines = [line(1 + at, output=400) for at in range(4_000)]
    hour = {"completion_window": "1h", "deadline_at": Clock().wall() + 3_600.0}
    sooner = {"completion_window": "55m", "deadline_at": Clock().wall() + 3_300.0}
    async with sqlite_store(tmp_path) as store:
        first = await placed_beside(store, policy, lines, **hour)
        await accepted(store, first, lines, batch(Clock().wall(), id="first", **hour))
        second = await placed_beside(store, policy, lines, **sooner)
    assert not second.is_feasible
    assert "lines of batches that were accepted before would be late" in second.refusal
    assert "first" not in second.refusal  # another tenant's, for all that it says


async def test_a_budget_that_is_too_small_is_refused_by_how_many_dollars() -> None:
    # 100 lines of 100 prompt tokens at $1 and 100 answer tokens at $2 a million: $0.03.
    policy = policy_of(f"a, {CHEAP}")
    planned = await placed(policy, [line(1 + at) for at in range(100)], max_cost_nanos=10_000_000)
    assert not planned.is_feasible
    assert "costs about $0.03, $0.02 more than max_cost $0.01" in planned.refusal


async def test_a_model_that_nobody_serves_is_said_with_its_lines() -> None:
    policy = policy_of(f"a, {CHEAP}")
    planned = await placed(policy, [line(1, model="other"), line(2)])
    assert not planned.is_feasible
    assert "no lane is open for the model 'other' (1 lines)" in planned.refusal
    assert planned.lanes == ["", "a/x#standard"]


async def test_groups_that_are_alike_in_all_that_the_planner_sees_are_told_apart() -> None:
    # Sizes of the same step make one group; equal means of different steps must not be mixed up.
    policy = policy_of(f"a, {CHEAP}", f"b, {CHEAP}")
    lines = [line(at, prompt=64, output=64) for at in (1, 2, 3)]
    lines += [line(at, prompt=64, output=128) for at in (4, 5)]
    planned = await placed(policy, lines)
    assert len(planned.lanes) == 5
    assert all(planned.lanes)


async def test_an_endpoint_that_is_shut_opens_later_and_gets_nothing_now() -> None:
    policy, clock = policy_of(f"a, {DEAR}", f"b, {CHEAP}"), Clock()
    fleet = fleet_of(policy, clock)
    for _ in range(20):
        fail(fleet, clock, "b/x", "dead")
    live = fleet.live("b/x")
    assert live is not None
    assert live.breaker == "open"
    offers = offers_of(policy, fleet, clock.wall())
    assert offers["b/x#standard"].opens_at_s == clock.wall() + live.reopens_in_s
    assert offers["a/x#standard"].opens_at_s == -math.inf


async def test_a_surface_that_an_endpoint_lacks_is_not_offered() -> None:
    policy, clock = policy_of(f"a, {DEAR}", f"b, surfaces: [embeddings], {CHEAP}"), Clock()
    assert set(offers_of(policy, fleet_of(policy, clock), clock.wall())) == {"a/x#standard"}


async def test_native_lanes_are_offered_with_what_was_learned_of_them() -> None:
    policy, clock = policy_of(f"a, {DEAR}", f"b, {CHEAP}"), Clock()
    learned = {"b/x": Turnaround(p50_s=7.0, p95_s=9.0, opens_at_s=55.0)}
    offers = offers_of(
        policy, fleet_of(policy, clock), clock.wall(),
        turnarounds=learned, native_endpoints={"b/x"},
    )  # fmt: skip
    native = offers["b/x#native"]
    assert (native.kind, native.price_tier) == ("native", BATCH)
    assert (native.turnaround_p50_s, native.turnaround_p95_s) == (7.0, 9.0)
    assert native.opens_at_s == 55.0
    assert "a/x#native" not in offers


def test_an_own_machines_token_costs_its_part_of_the_seconds() -> None:
    policy = policy_of(
        "a, self_hosted: {billing: on_demand, usd_per_hour: 3.6, tokens_per_hour: 1000}"
    )
    (endpoint,) = policy.endpoints.values()
    machine = MachineLoad(decode_step_s=((1, 0.010), (10, 0.020)), prefill_token_s=0.0001)
    row = marginal_row(endpoint, machine)
    # $3.6 an hour is a thousandth of a dollar a second: 1e9 picos. 7 of 10 places share a step,
    # which takes 0.010 s + 6/9 of the 0.010 s that ten take more.
    assert row.input == 100_000  # 0.0001 s
    assert row.output == pytest.approx(1e9 * (0.010 + 0.010 * 6 / 9) / 7, rel=1e-6)


@pytest.mark.parametrize(
    ("capacity", "places", "is_own", "batch"),
    [(10.0, math.inf, True, 7.0), (1.0, math.inf, True, 1.0), (64.0, 8.0, True, 8 * FILL_SHARE),
     (1_000.0, math.inf, False, 64.0)],
)  # fmt: skip
def test_batch_fills_its_share_of_places_and_at_least_one(
    capacity: float, places: float, is_own: bool, batch: float
) -> None:
    live = EndpointLive(endpoint_id="e", capacity=capacity, places=places)
    assert places_for_batch(live, is_own=is_own) == pytest.approx(batch)


def test_own_machine_is_filled_though_first_tokens_beside_lines_are_later() -> None:
    """What streams beside lines taught must not leave it with one line at a time."""
    live = EndpointLive(endpoint_id="e", capacity=37.0, places=1.5, machine=MachineLoad())
    assert places_for_batch(live, is_own=True) == pytest.approx(12 * FILL_SHARE)
    assert places_for_batch(live, is_own=False) == 1.0
    # But no more answers a second are counted on than the law of load allows.
    assert lines_per_s(live, None, is_own=True) == pytest.approx(1.5 / 10.0)


def test_flex_is_a_lane_of_its_own_where_the_list_has_it() -> None:
    clock = Clock()
    policy = policy_of(f"a, {CHEAP}")
    rows = tuple(
        complete_row(PriceRow(source="list", tier=tier, input=price, output=price))
        for tier, price in (("standard", 1_000_000), ("flex", 500_000))
    )
    ids = itertools.count(1)
    fleet = Fleet(
        policy.endpoints.values(),
        clock=clock,
        wall_clock=clock.wall,
        price_rows=lambda _endpoint, _at: rows,
        new_id=lambda: f"id-{next(ids)}",
        rng=FixedRng(),
    )
    offers = offers_of(policy, fleet, clock.wall())
    assert set(offers) == {"a/x#standard", "a/x#flex"}
    assert offers["a/x#flex"].price_tier == "flex"
