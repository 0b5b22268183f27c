"""The batch planner: the cheapest lanes that keep the deadline, and what it says when none do."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import PriceRow
from gateway.policy.placement import (
    LaneOffer,
    LineGroup,
    Over,
    Placement,
    PriceWindow,
    place,
)
from tests.support.lanes import HOUR_S, LINE_NANOS, at_once, group, native, row


def _lines(placement: Placement) -> dict[str, int]:
    lines: dict[str, int] = {}
    for each in placement.allocations:
        lines[each.lane_id] = lines.get(each.lane_id, 0) + each.count
    return lines


def test_the_cheapest_lane_that_keeps_the_deadline_is_taken() -> None:
    offers = [at_once("dear", 2.0, 50.0), at_once("cheap", 1.0, 50.0)]

    placement = place([group(1_000, HOUR_S)], offers, 0.0)

    assert _lines(placement) == {"cheap#standard": 1_000}
    assert placement.cost_nanos == placement.list_cost_nanos == 1_000 * LINE_NANOS
    assert placement.finish_s == pytest.approx(20.0)
    assert not placement.late


def test_what_the_cheap_lane_cannot_do_in_time_goes_to_the_next() -> None:
    offers = [at_once("own", 0.2, 0.1, kind="own"), at_once("sold", 1.0, 50.0)]

    placement = place([group(1_000, HOUR_S)], offers, 0.0)

    # A machine of one's own is left alone in the last 105 s, so that what it did not do gets away.
    assert _lines(placement) == {"own#standard": 349, "sold#standard": 651}
    assert placement.cost_nanos == 349 * LINE_NANOS // 5 + 651 * LINE_NANOS


def test_groups_share_a_lane_and_the_earliest_deadline_goes_first() -> None:
    offers = [at_once("own", 0.2, 1.0, kind="own"), at_once("sold", 1.0, 50.0)]
    late, early = group(3_000, HOUR_S, "late"), group(2_000, 2_105.0, "early")

    placement = place([late, early], offers, 0.0)

    by_batch = {each.group.batch_id: each for each in placement.allocations[::-1]}
    assert (by_batch["early"].lane_id, by_batch["early"].count) == ("own#standard", 2_000)
    first = next(each for each in placement.allocations if each.group is late)
    assert (first.lane_id, first.count) == ("own#standard", 1_495)
    assert (first.start_s, first.not_before_s) == (2_000.0, 0.0)


def test_longer_lines_take_more_of_a_lane() -> None:
    offers = [
        at_once("own", 0.2, 1.0, kind="own", line_tokens=50.0),
        at_once("sold", 1.0, 50.0),
    ]

    placement = place([group(3_000, 2_105.0)], offers, 0.0)

    assert _lines(placement)["own#standard"] == 1_000


def test_flex_and_priority_are_lanes_like_others() -> None:
    offers = [
        at_once("a", 1.0, 1.0),
        at_once("a", 0.5, 0.5, tier="flex"),
        at_once("a", 2.0, 5.0, tier="priority"),
    ]

    placement = place([group(1_500, 705.0)], offers, 0.0)

    assert _lines(placement) == {"a#flex": 300, "a#standard": 675, "a#priority": 525}
    assert placement.list_cost_nanos == 1_500 * LINE_NANOS


def test_the_price_is_of_the_context_step_that_a_line_reaches() -> None:
    rows = (row(1.0), row(2.0, context_tokens_min=200_001))
    stepped = at_once("stepped", 1.0, 50.0, windows=(PriceWindow(rows=rows),))

    short = place([group(10, HOUR_S)], [stepped], 0.0)
    long = place([group(10, HOUR_S, prompt_tokens=300_000.0)], [stepped], 0.0)

    assert short.cost_nanos == 10 * LINE_NANOS
    assert long.cost_nanos == 10 * 300 * 2 * LINE_NANOS


def test_a_lane_without_a_known_price_is_the_last_resort() -> None:
    unpriced = (PriceWindow(rows=(PriceRow(source="unpriced"),)),)
    offers = [at_once("unknown", 0.0, 50.0, windows=unpriced), at_once("dear", 9.0, 1.0)]

    placement = place([group(1_000, HOUR_S)], offers, 0.0)
    # No refuge with a price does 4,000 in time: a third of it stays free.
    crowded = place([group(4_000, HOUR_S)], offers, 0.0)

    assert _lines(placement) == {"dear#standard": 1_000}
    assert _lines(crowded) == {"dear#standard": 2_380, "unknown#standard": 1_620}


def test_lateness_is_told_in_seconds_at_any_price() -> None:
    offers = [at_once("a", 1.0, 1.0), at_once("b", 9.0, 3.0)]

    placement = place([group(3_000, 600.0)], offers, 0.0)

    # 570 s at 4 lines a second, the last answer taking 30 s, leave 720 lines: 180 s more.
    (late,) = placement.late
    assert (late.batch_id, late.count, late.late_s) == ("b", 720, pytest.approx(180.0))
    assert sum(each.count for each in placement.allocations) == 3_000
    assert not place([group(2_280, 600.0)], offers, 0.0).late


def test_no_lane_for_a_model_is_late_for_ever() -> None:
    (late,) = place([group(5, HOUR_S, model="other")], [at_once("a", 1.0, 1.0)], 0.0).late

    assert late.late_s == math.inf
    assert late.model == "other"


def test_a_batch_api_alone_promises_only_its_p95() -> None:
    alone = [native("a", 0.5)]

    (late,) = place([group(100, 6.0 * HOUR_S)], alone, 0.0).late

    assert late.late_s == pytest.approx(14.0 * HOUR_S)
    assert not place([group(100, 24.0 * HOUR_S)], alone, 0.0).late


def test_max_cost_is_missed_by_so_much_over_all_groups_of_a_batch() -> None:
    offers = [at_once("a", 1.0, 50.0)]
    stated = {"max_cost_nanos": 250 * LINE_NANOS, "spent_nanos": 100 * LINE_NANOS}
    groups = [group(100, HOUR_S, **stated), group(80, HOUR_S, **stated)]

    placement = place(groups, offers, 0.0)

    assert placement.over == (Over(batch_id="b", over_nanos=30 * LINE_NANOS),)
    assert not place(groups[:1], offers, 0.0).over


def test_nothing_to_do_is_a_plan() -> None:
    placement = place([], [at_once("a", 1.0, 1.0)], 5.0)

    assert (placement.allocations, placement.cost_nanos, placement.finish_s) == ((), 0, 5.0)


def test_fifty_thousand_lines_are_planned_in_fifty_milliseconds() -> None:
    groups = [
        group(250, (1 + idx % 48) * HOUR_S, f"b{idx % 8}", prompt_tokens=500.0 + idx)
        for idx in range(200)
    ]
    daily = tuple(
        PriceWindow(
            rows=(row(0.5 + idx % 2),),
            from_s=idx * 12.0 * HOUR_S,
            until_s=(idx + 1) * 12.0 * HOUR_S,
        )
        for idx in range(14)
    )
    offers = [
        at_once("a", 1.0, 5.0),
        at_once("a", 0.5, 0.5, tier="flex"),
        native("a", 0.5),
        at_once("b", 1.2, 5.0, windows=daily),
        native("b", 0.6),
        at_once("own", 0.1, 0.3, kind="own"),
    ]
    took_s = []
    for _ in range(5):
        begun = time.perf_counter()
        placement = place(groups, offers, 0.0)
        took_s.append(time.perf_counter() - begun)

    assert sum(each.count for each in placement.allocations) == 50_000
    assert min(took_s) <= 0.050, f"{min(took_s) * 1e3:.0f} ms"


_FACTORS = st.sampled_from([0.1, 0.5, 1.0, 2.0])
_OFFERS = st.lists(
    st.one_of(
        st.builds(at_once, st.sampled_from("abc"), _FACTORS, st.floats(0.01, 20.0)),
        st.builds(
            at_once,
            st.sampled_from("de"),
            _FACTORS,
            st.floats(0.01, 5.0),
            kind=st.just("own"),
            line_tokens=st.sampled_from([0.0, 50.0, 300.0]),
        ),
        st.builds(native, st.sampled_from("fgh"), _FACTORS),
    ),
    max_size=6,
    unique_by=lambda offer: offer.id,
)
_GROUPS = st.lists(
    st.builds(
        group,
        st.integers(0, 20_000),
        st.floats(600.0, 7 * 86_400.0),
        st.sampled_from(["b", "c"]),
        lane=st.sampled_from(["", "a#standard", "f#native"]),
        since_s=st.sampled_from([None, 0.0, 50.0]),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(_GROUPS, _OFFERS, st.floats(60.0, 500.0))
def test_every_line_is_placed_once_and_no_lane_beyond_what_it_can(
    groups: list[LineGroup], offers: list[LaneOffer], now_s: float
) -> None:
    placement = place(groups, offers, now_s)

    homeless = sum(each.count for each in placement.late if each.late_s == math.inf)
    placed = sum(each.count for each in placement.allocations)
    assert placed + homeless == sum(each.count for each in groups)
    assert placement.cost_nanos == sum(each.cost_nanos for each in placement.allocations)
    known = {offer.id: offer for offer in offers}
    is_late = {(each.batch_id, each.model) for each in placement.late}
    busy_s: dict[str, float] = {}
    for each in placement.allocations:
        offer = known[each.lane_id]
        assert each.count > 0
        if offer.kind == "native":
            continue
        weight = 100.0 / offer.line_tokens if offer.line_tokens else 1.0
        busy_s[offer.id] = busy_s.get(offer.id, 0.0) + each.count * weight / offer.lines_per_s
        assert each.finish_s <= now_s + busy_s[offer.id] + 1e-6 * each.finish_s
        if (each.group.batch_id, each.group.model) not in is_late:
            assert each.finish_s <= each.group.deadline_at_s
