"""A day of batches: what the simulator does with what the planner says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.simulator.batch.play import LATENCY_S, Day, Outcome
from gateway.simulator.batch.world import LINE_TOKENS, Fates, Job, Steps, TrueLane, World
from gateway.simulator.batch.worlds import make_world
from tests.support.lanes import HOUR_S, LINE_NANOS, always


def _job(count: int, deadline_s: float) -> Job:
    return Job(
        id="j",
        model="m",
        arrives_s=100.0,
        deadline_s=deadline_s,
        count=count,
        prompt_tokens=1_000.0,
        output_tokens=LINE_TOKENS,
        true_output_tokens=LINE_TOKENS,
    )


def _lane(name: str, factor: float, steps: dict[float, float]) -> TrueLane:
    return TrueLane(
        id=f"{name}#standard",
        endpoint_id=name,
        model="m",
        kind="sync",
        tier="standard",
        windows=always(factor),
        rate=Steps(np.array(list(steps)), np.array(list(steps.values()))),
    )


def _native(takes_s: float, share: float = 1.0) -> TrueLane:
    return TrueLane(
        id="a#native",
        endpoint_id="a",
        model="m",
        kind="native",
        tier="standard",
        windows=always(0.5, "batch"),
        fates=Fates((takes_s,), (share,)),
    )


def _play(lanes: list[TrueLane], job: Job) -> Outcome:
    (outcome,) = Day(World(name="by-hand", seed=0, lanes=tuple(lanes), jobs=(job,))).run()
    return outcome


def test_lines_cost_their_price_and_take_their_time() -> None:
    outcome = _play([_lane("a", 1.0, {0.0: 10.0})], _job(1_000, 2.0 * HOUR_S))

    assert outcome.cost_nanos == pytest.approx(1_000 * LINE_NANOS)
    assert outcome.finished_s == pytest.approx(100.0 + 100.0 + LATENCY_S, abs=1.0)
    assert outcome.is_in_time


def test_another_endpoint_takes_over_when_one_dies() -> None:
    lanes = [_lane("a", 1.0, {0.0: 1.0, 600.0: 0.0}), _lane("b", 2.0, {0.0: 5.0})]

    outcome = _play(lanes, _job(1_500, HOUR_S))

    assert outcome.is_in_time
    assert outcome.cost_nanos == pytest.approx((500 * 1.0 + 1_000 * 2.0) * LINE_NANOS, rel=0.02)


def test_a_batch_that_comes_back_is_paid_at_its_price() -> None:
    outcome = _play([_lane("a", 1.0, {0.0: 10.0}), _native(900.0)], _job(1_000, 6.0 * HOUR_S))

    assert outcome.cost_nanos == pytest.approx(500 * LINE_NANOS)
    assert outcome.finished_s == 1_020.0  # at the poll after it ended


def test_a_batch_that_hangs_is_taken_back_in_time() -> None:
    outcome = _play([_lane("a", 1.0, {0.0: 10.0}), _native(86_400.0)], _job(1_000, 6.0 * HOUR_S))

    assert outcome.is_in_time
    assert outcome.cost_nanos == pytest.approx(1_000 * LINE_NANOS)
    assert outcome.escalated_lines + outcome.moved_lines >= 1_000


def test_lines_that_expired_are_sent_again_and_the_others_are_not() -> None:
    outcome = _play(
        [_lane("a", 1.0, {0.0: 10.0}), _native(1_800.0, share=0.6)], _job(1_000, 6.0 * HOUR_S)
    )

    assert outcome.is_in_time
    assert 500 * LINE_NANOS <= outcome.cost_nanos <= 700 * LINE_NANOS


def test_a_batch_api_that_fails_rests_and_the_deadline_holds() -> None:
    outcome = _play([_lane("a", 1.0, {0.0: 10.0}), _native(300.0, share=0.0)], _job(1_000, HOUR_S))

    assert outcome.is_in_time
    assert outcome.cost_nanos == pytest.approx(1_000 * LINE_NANOS)


def test_what_a_cancelled_batch_had_done_is_kept_and_paid() -> None:
    fates = Fates((1_000.0,), (1.0,))

    assert fates.done_when_cancelled(0.0, 500.0) == 0.0
    assert fates.done_when_cancelled(0.0, 900.0) == pytest.approx(0.5)
    assert fates.done_when_cancelled(0.0, 2_000.0) == 1.0


def test_lines_that_nobody_can_answer_in_time_are_late() -> None:
    outcome = _play([_lane("a", 1.0, {0.0: 1.0})], _job(1_000, 700.0))

    assert not outcome.is_in_time
    assert outcome.late_lines == pytest.approx(1_000 - (600 - LATENCY_S), abs=2)


def test_a_day_is_the_same_each_time_and_another_with_another_seed() -> None:
    first, again = Day(make_world("mixed", 5)).run(), Day(make_world("mixed", 5)).run()
    other = Day(make_world("mixed", 6)).run()

    assert first == again
    assert first != other


def test_a_rate_is_added_up_over_its_steps() -> None:
    rate = Steps(np.array([0.0, 10.0, 20.0]), np.array([1.0, 0.0, 2.0]))

    assert rate.at(5.0) == 1.0
    assert rate.at(10.0) == 0.0
    assert rate.lines(5.0, 25.0) == 15.0
    assert rate.lines(25.0, 26.0) == 2.0


def test_unknown_worlds_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="there is no world 'clam'; there are calm"):
        make_world("clam", 1)


def test_windows_cover_all_of_a_day() -> None:
    for lane in make_world("price-windows", 1).lanes:
        assert lane.windows[0].from_s <= 0.0
        assert lane.windows[-1].until_s >= 34.0 * HOUR_S
        edges = [
            (a.until_s, b.from_s) for a, b in zip(lane.windows, lane.windows[1:], strict=False)
        ]
        assert all(math.isclose(until_s, from_s) for until_s, from_s in edges)
