"""What is learned of a provider's batch API, from batches that ended and some that do not."""

from __future__ import annotations

import pytest

from gateway.policy.turnaround import Turnaround, share_done

MINUTE_S = 60.0
HOUR_S = 3_600.0


def test_nothing_learned_is_seven_minutes_and_twenty_hours() -> None:
    assert Turnaround().quantiles() == (pytest.approx(7 * MINUTE_S), pytest.approx(20 * HOUR_S))


def test_quick_batches_bring_the_slowest_down() -> None:
    known = Turnaround()
    for _ in range(20):
        known.finished(10 * MINUTE_S)
    p50_s, p95_s = known.quantiles()

    assert p50_s == pytest.approx(10 * MINUTE_S, rel=0.1)
    assert p95_s < 2 * HOUR_S


def test_the_newest_count_most() -> None:
    turned, always_slow = Turnaround(), Turnaround()
    for _ in range(40):
        turned.finished(5 * MINUTE_S)
    for _ in range(24):
        turned.finished(5 * HOUR_S)
        always_slow.finished(5 * HOUR_S)

    assert turned.quantiles()[0] > HOUR_S
    assert turned.quantiles()[0] < always_slow.quantiles()[0]


def test_a_batch_that_still_runs_counts_as_slow_only_when_it_is() -> None:
    known = Turnaround()
    for _ in range(10):
        known.finished(10 * MINUTE_S)
    p95_s = known.quantiles()[1]

    assert known.quantiles((8 * HOUR_S,))[1] > 1.5 * p95_s
    assert known.quantiles((8 * HOUR_S, 60.0, 60.0)) == known.quantiles((8 * HOUR_S,))
    assert known.quantiles((1.0,))[1] < 1.05 * p95_s


def test_one_given_up_counts_as_longer_than_it_was_waited_for() -> None:
    known = Turnaround()
    for _ in range(6):
        known.gave_up(HOUR_S)

    assert known.quantiles()[0] > HOUR_S


def test_failures_rest_the_lane_longer_each_time_and_a_success_forgets_them() -> None:
    known = Turnaround()
    assert known.opens_at_s <= 0.0
    rests = []
    for _ in range(6):
        known.failed(1_000.0)
        rests.append(known.opens_at_s - 1_000.0)
    known.finished(60.0)
    known.failed(1_000.0)

    assert rests == [600.0, 1_200.0, 2_400.0, 4_800.0, 7_200.0, 7_200.0]
    assert known.opens_at_s - 1_000.0 == 600.0


def test_the_share_that_is_back_follows_the_quantiles() -> None:
    assert share_done(600.0, 7_200.0, 600.0) == pytest.approx(0.5)
    assert share_done(600.0, 7_200.0, 7_200.0) == pytest.approx(0.95)
    assert share_done(600.0, 7_200.0, 7_200.0, age_s=600.0) == pytest.approx(0.9)
    assert share_done(600.0, 7_200.0, 60.0) < 0.01
    assert share_done(600.0, 7_200.0, 500.0, age_s=500.0) == 0.0
    assert share_done(600.0, 600.0, 7_200.0, age_s=7_000.0) <= 1.0
