"""Intervals of shown numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from gateway.stats.intervals import lognormal_interval, student_quantile


@pytest.mark.parametrize("degrees", [3.0, 5.0, 12.0, 100.0])
@pytest.mark.parametrize("p", [0.9, 0.95, 0.975])
def test_student_quantile_agrees_with_scipy(p: float, degrees: float) -> None:
    assert student_quantile(p, degrees) == pytest.approx(scipy_stats.t.ppf(p, degrees), rel=0.01)


def test_lognormal_interval_covers_the_median_as_often_as_it_claims() -> None:
    rng = np.random.default_rng(2)
    num_covered = 0
    for _ in range(2_000):
        logs = rng.normal(1.0, 0.3, 8)
        shown = lognormal_interval(float(logs.mean()), float(logs.std(ddof=1)), 8.0)
        num_covered += shown.low <= math.e <= shown.high

    assert num_covered / 2_000 == pytest.approx(0.9, abs=0.03)


def test_more_samples_narrow_the_interval() -> None:
    few, many = lognormal_interval(0.0, 0.3, 5.0), lognormal_interval(0.0, 0.3, 500.0)

    assert few.low < many.low < 1.0 < many.high < few.high


def test_one_sample_bounds_nothing() -> None:
    shown = lognormal_interval(0.0, 0.3, 1.0)

    assert (shown.low, shown.high) == (0.0, math.inf)
    assert shown.as_dict() == {"value": 1.0, "low": 0.0, "n": 1.0, "level": 0.9}
