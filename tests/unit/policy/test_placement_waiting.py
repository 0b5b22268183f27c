"""The batch planner in time: waiting for prices and batches, escalation, and when lines move."""

from __future__ import annotations

import pytest

from gateway.policy.placement import LaneOffer, LineGroup, Placement, PriceWindow, place
from tests.support.lanes import HOUR_S, LINE_NANOS, at_once, group, native, row

# Of 1,000 lines at 10 a second: 1.5 · (30 + 100) s, and a minute until the planner looks again.
RECOVERY_S = 1.5 * (30.0 + 100.0) + 60.0
CANCEL_S = 120.0


def _where(placement: Placement) -> list[tuple[str, int]]:
    return [(each.lane_id, each.count) for each in placement.allocations]


def _cheap_from(from_s: float) -> tuple[PriceWindow, ...]:
    return (
        PriceWindow(rows=(row(1.0),), until_s=from_s),
        PriceWindow(rows=(row(0.5),), from_s=from_s),
    )


def _running(count: int, deadline_at_s: float, **changed: object) -> LineGroup:
    return group(count, deadline_at_s, lane="a#native", since_s=0.0, **changed)


def test_a_cheaper_window_is_waited_for() -> None:
    offers = [at_once("a", 1.0, 10.0, windows=_cheap_from(5.0 * HOUR_S))]

    placement = place([group(1_000, 6.0 * HOUR_S)], offers, 0.0)

    (only,) = placement.allocations
    assert only.not_before_s == only.start_s == 5.0 * HOUR_S
    assert placement.cost_nanos == 500 * LINE_NANOS
    assert placement.list_cost_nanos == 1_000 * LINE_NANOS


@pytest.mark.parametrize(
    ("opens_at_s", "waits"),
    [(6.0 * HOUR_S - RECOVERY_S, True), (6.0 * HOUR_S - RECOVERY_S + 1.0, False)],
)
def test_a_window_is_waited_for_while_a_rescue_is_still_free(
    opens_at_s: float, waits: bool
) -> None:
    offers = [at_once("a", 1.0, 10.0, windows=_cheap_from(opens_at_s))]

    (only,) = place([group(1_000, 6.0 * HOUR_S)], offers, 0.0).allocations

    assert (only.not_before_s > 0.0) is waits


def test_recovery_is_longer_where_a_line_was_seen_to_take_longer() -> None:
    # 20 s + 100 tokens of a second each: 120 s instead of the 30 that are assumed at least.
    slow = at_once("a", 1.0, 10.0, base_p95_s=20.0, token_p95_s=1.0)
    quick = at_once("a", 1.0, 10.0, base_p95_s=1.0, token_p95_s=0.01)
    last_s = 2.0 * HOUR_S - 1.5 * (120.0 + 100.0) - 60.0 - CANCEL_S
    running = _running(1_000, 2.0 * HOUR_S)

    def escalates(offer: LaneOffer, at_s: float) -> bool:
        offers = [offer, native("a", 0.5, turnaround_p50_s=420.0, turnaround_p95_s=80_000.0)]
        return place([running], offers, at_s).escalated != ()

    assert escalates(slow, last_s + 1.0)
    assert not escalates(slow, last_s - 1.0)
    assert not escalates(quick, last_s + 1.0)


def test_an_unlearned_batch_api_is_tried_where_there_is_time_to_come_back() -> None:
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5)]

    day = place([group(1_000, 24.0 * HOUR_S)], offers, 0.0)
    ten_minutes = place([group(2_000, 600.0)], offers, 0.0)

    assert _where(day) == [("a#native", 1_000)]
    assert day.cost_nanos == 500 * LINE_NANOS
    assert day.finish_s == 20.0 * HOUR_S
    assert _where(ten_minutes) == [("a#standard", 2_000)]


def test_a_batch_is_done_by_its_deadline_at_the_latest_where_there_is_a_refuge() -> None:
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5)]

    assert place([group(1_000, 12.0 * HOUR_S)], offers, 0.0).finish_s == 12.0 * HOUR_S


@pytest.mark.parametrize(("factor", "lane"), [(0.96, "a#standard"), (0.94, "b#standard")])
def test_open_lines_change_lanes_only_for_a_clear_saving(factor: float, lane: str) -> None:
    offers = [at_once("a", 1.0, 10.0), at_once("b", factor, 10.0)]

    placement = place([group(100, HOUR_S, lane="a#standard")], offers, 0.0)

    assert _where(placement) == [(lane, 100)]


def test_a_slow_batch_api_is_left_alone() -> None:
    slow = native("a", 0.5, turnaround_p50_s=20.0 * HOUR_S, turnaround_p95_s=30.0 * HOUR_S)

    placement = place([group(1_000, 6.0 * HOUR_S)], [at_once("a", 1.0, 10.0), slow], 0.0)

    assert _where(placement) == [("a#standard", 1_000)]


def test_lines_are_taken_back_when_running_them_at_once_takes_all_that_is_left() -> None:
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5)]
    lines = _running(1_000, 2.0 * HOUR_S)
    last_s = 2.0 * HOUR_S - RECOVERY_S - CANCEL_S

    before = place([lines], offers, last_s - 1.0, saving_to_move=0.5)
    after = place([lines], offers, last_s, saving_to_move=0.5)

    assert _where(before) == [("a#native", 1_000)]
    assert not before.escalated
    assert _where(after) == [("a#standard", 1_000)]
    assert after.escalated == (lines,)


def test_recoveries_on_one_endpoint_are_laid_end_to_end() -> None:
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5)]
    lines = [_running(1_000, 2.0 * HOUR_S, batch_id="b"), _running(1_000, 2.0 * HOUR_S)]
    both_s = 2.0 * HOUR_S - 2.0 * RECOVERY_S - CANCEL_S + 60.0

    before = place(lines, offers, both_s - 1.0, saving_to_move=0.5)
    after = place(lines, offers, both_s, saving_to_move=0.5)

    assert not before.escalated
    assert len(after.escalated) == 1


def test_the_dearer_endpoints_help_where_the_cheapest_alone_takes_too_long() -> None:
    lines = [_running(20_000, 2.0 * HOUR_S)]
    alone = [at_once("a", 1.0, 5.0), native("a", 0.5)]
    beside = [*alone, at_once("b", 1.5, 20.0)]

    assert place(lines, alone, HOUR_S).escalated
    assert not place(lines, beside, HOUR_S, saving_to_move=0.5).escalated


def test_a_running_batch_moves_only_for_a_clear_saving() -> None:
    fast = {"turnaround_p50_s": 600.0, "turnaround_p95_s": 1_200.0}
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5, **fast)]
    lines = _running(1_000, 24.0 * HOUR_S)

    little = place([lines], [*offers, at_once("f", 0.48, 10.0, tier="flex")], 60.0)
    much = place([lines], [*offers, at_once("f", 0.4, 10.0, tier="flex")], 60.0)

    assert _where(little) == [("a#native", 1_000)]
    assert _where(much) == [("f#flex", 1_000)]
    assert not much.escalated


def test_what_a_move_wastes_counts_against_it() -> None:
    fast = {"turnaround_p50_s": 600.0, "turnaround_p95_s": 1_200.0}
    offers = [
        at_once("a", 1.0, 10.0),
        native("a", 0.5, **fast),
        at_once("f", 0.4, 10.0, tier="flex"),
    ]
    lines = _running(1_000, 24.0 * HOUR_S, sunk_nanos=100 * LINE_NANOS)

    assert _where(place([lines], offers, 60.0)) == [("a#native", 1_000)]


def test_a_batch_is_taken_to_another_provider_once_it_is_long_overdue() -> None:
    learned = {"turnaround_p50_s": 600.0, "turnaround_p95_s": 7_200.0}
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5, **learned), native("b", 0.5, **learned)]
    lines = _running(1_000, 2.0 * HOUR_S)

    early = place([lines], offers, 300.0)
    overdue = place([lines], offers, 3_600.0)

    assert _where(early) == [("a#native", 1_000)]
    assert _where(overdue) == [("b#native", 1_000)]
    assert overdue.allocations[0].start_s == 3_600.0 + CANCEL_S


def test_few_lines_wait_ten_minutes_for_company() -> None:
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5)]
    few = group(20, 24.0 * HOUR_S, waiting_since_s=0.0)

    waiting = place([few], offers, 60.0)
    due = place([few], offers, 700.0)
    sizes = [group(20, 24.0 * HOUR_S, prompt_tokens=500.0 * size) for size in (1, 2, 3)]
    together = place(sizes, offers, 60.0)

    assert waiting.allocations[0].not_before_s == 600.0
    assert due.allocations[0].not_before_s == 700.0
    assert {each.not_before_s for each in together.allocations} == {60.0}


def test_a_trickle_beside_another_lane_waits_for_more() -> None:
    fast = {"turnaround_p50_s": 600.0, "turnaround_p95_s": 1_200.0}
    offers = [
        at_once("own", 0.2, 1.0, kind="own"),
        at_once("a", 1.0, 10.0),
        native("a", 0.5, **fast),
    ]

    placement = place([group(7_120, 2.0 * HOUR_S)], offers, 0.0)

    own, trickle = placement.allocations
    assert (own.lane_id, own.count, own.not_before_s) == ("own#standard", 7_095, 0.0)
    assert (trickle.lane_id, trickle.count, trickle.not_before_s) == ("a#native", 25, 600.0)


def test_a_lane_that_rests_is_waited_for_where_there_is_time() -> None:
    offers = [at_once("a", 1.0, 10.0), native("a", 0.5, opens_at_s=HOUR_S)]

    (patient,) = place([group(1_000, 24.0 * HOUR_S)], offers, 0.0).allocations
    (pressed,) = place([group(1_000, HOUR_S)], offers, 0.0).allocations

    assert (patient.lane_id, patient.not_before_s) == ("a#native", HOUR_S)
    assert (pressed.lane_id, pressed.not_before_s) == ("a#standard", 0.0)


def test_a_dead_endpoint_is_no_refuge() -> None:
    offers = [
        at_once("dead", 0.9, 100.0, opens_at_s=10.0 * HOUR_S),
        at_once("a", 1.0, 10.0),
        native("a", 0.5),
    ]
    last_s = 2.0 * HOUR_S - RECOVERY_S - CANCEL_S

    after = place([_running(1_000, 2.0 * HOUR_S)], offers, last_s, saving_to_move=0.5)

    assert _where(after) == [("a#standard", 1_000)]
