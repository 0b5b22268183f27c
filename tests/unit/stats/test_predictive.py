"""Predicted laws of times, and the learned ends of their intervals, against known truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gateway.stats.predictive import (
    DRIFT_SIGMA,
    NORMAL_ENDS,
    Ends,
    Spread,
    completion_law,
    drifted,
    interval_s,
    lognormal_sum,
    variance,
)


def _share_inside(ends: Ends, draw: Callable[[], float], num: int) -> tuple[float, float]:
    """Shares within the 90 and the 50 % interval as it was before each draw."""
    in_90 = in_50 = 0
    for _ in range(num):
        z = draw()
        in_90 += ends.ends[0] <= z <= ends.ends[3]
        in_50 += ends.ends[1] <= z <= ends.ends[2]
        ends.add(z)
    return in_90 / num, in_50 / num


@pytest.mark.parametrize(
    ("a", "a_sigma", "b", "b_sigma"),
    [(0.5, 0.3, 1.5, 0.2), (0.2, 0.4, 0.2, 0.4), (2.0, 0.3, 0.1, 1)],
)
def test_sum_of_lognormals_covers_nine_tenths(
    a: float, a_sigma: float, b: float, b_sigma: float
) -> None:
    rng = random.Random(1)
    mu, total = lognormal_sum(a, a_sigma**2, b, b_sigma**2)
    low_s, high_s = interval_s(mu, total, NORMAL_ENDS)
    drawn = [
        a * math.exp(rng.gauss(0.0, a_sigma)) + b * math.exp(rng.gauss(0.0, b_sigma))
        for _ in range(20_000)
    ]
    assert sum(low_s <= each <= high_s for each in drawn) / 20_000 == pytest.approx(0.9, abs=0.02)


def test_without_a_second_part_the_sum_is_the_first() -> None:
    assert lognormal_sum(0.5, 0.09, 0.0, 0.04) == (math.log(0.5), 0.09)
    assert completion_law(0.5, 0.0, Spread(0.09, 0.04, 0.01)) == (math.log(0.5), 0.09 + 0.01)


def test_an_unknown_length_widens_the_decode_part_only() -> None:
    spread = Spread(0.09, 0.04, 0.0)
    assert completion_law(1.0, 1.0, spread, 1.0)[1] > completion_law(1.0, 1.0, spread)[1] * 3
    assert completion_law(1.0, 0.0, spread, 1.0)[1] == 0.09


def test_variance_grows_with_doubt_and_silence() -> None:
    assert variance(0.3, 1e9, 0.0) == pytest.approx(0.09)
    assert variance(0.3, 3.0, 0.0) == pytest.approx(0.12)
    assert drifted(0.0) == 0.0
    assert drifted(60.0) < drifted(600.0) < drifted(None) == DRIFT_SIGMA**2


def test_ends_of_a_right_belief_stay_the_normals() -> None:
    rng, ends = random.Random(2), Ends()
    in_90, in_50 = _share_inside(ends, lambda: rng.gauss(0.0, 1.0), 4_000)

    assert in_90 == pytest.approx(0.9, abs=0.015)
    assert in_50 == pytest.approx(0.5, abs=0.03)
    assert ends.width == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.5, 6.0])
def test_too_wide_and_too_narrow_beliefs_are_put_right(factor: float) -> None:
    rng, ends = random.Random(3), Ends()
    _share_inside(ends, lambda: factor * rng.gauss(0.0, 1.0), 300)
    in_90, _ = _share_inside(ends, lambda: factor * rng.gauss(0.0, 1.0), 2_000)

    assert in_90 == pytest.approx(0.9, abs=0.03)
    assert ends.width == pytest.approx(factor, rel=0.25)


def test_a_one_sided_error_moves_one_end() -> None:
    """One time in ten is six times too long: the upper end goes up, the lower stays."""
    rng, ends = random.Random(4), Ends()
    _share_inside(ends, lambda: rng.gauss(6.0 if rng.random() < 0.1 else 0.0, 1.0), 3_000)

    assert ends.ends[3] > 4.0
    assert ends.ends[0] == pytest.approx(NORMAL_ENDS[0], abs=0.5)


def test_a_belief_that_turns_wrong_is_noticed() -> None:
    rng, ends = random.Random(5), Ends()
    _share_inside(ends, lambda: rng.gauss(0.0, 1.0), 3_000)
    at_first, _ = _share_inside(ends, lambda: rng.gauss(0.0, 3.0), 50)
    _share_inside(ends, lambda: rng.gauss(0.0, 3.0), 1_000)
    later, _ = _share_inside(ends, lambda: rng.gauss(0.0, 3.0), 1_000)

    assert at_first < 0.75
    assert later == pytest.approx(0.9, abs=0.03)


def test_export_and_load_give_the_same_ends() -> None:
    rng, ends, loaded = random.Random(8), Ends(), Ends()
    for _ in range(300):
        ends.add(rng.gauss(0.5, 2.0))
    loaded.load(ends.export())
    assert (loaded.ends, loaded.n) == (ends.ends, ends.n)


def test_ends_keep_their_order_and_bounds_whatever_comes() -> None:
    rng, ends = random.Random(6), Ends()
    for _ in range(3_000):
        ends.add(rng.choice((-1e9, 1e9, 0.0)))
        assert list(ends.ends) == sorted(ends.ends)
        assert all(math.isfinite(each) for each in ends.ends)
