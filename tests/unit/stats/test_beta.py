"""Success probability against scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from gateway.stats.beta import DecayedBeta, beta_cdf, beta_quantile


@given(st.floats(0.001, 0.999), st.floats(0.3, 500), st.floats(0.3, 500))
def test_incomplete_beta_agrees_with_scipy(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(scipy_stats.beta.cdf(x, a, b), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(9.5, 0.5), (0.5, 0.5), (60.0, 3.0), (400.0, 2.5)])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
def test_quantile_agrees_with_scipy(p: float, a: float, b: float) -> None:
    assert beta_quantile(p, a, b) == pytest.approx(scipy_stats.beta.ppf(p, a, b), abs=1e-9)


def test_prior_is_95_percent_and_failures_lower_it() -> None:
    belief = DecayedBeta(60.0)
    assert belief.p == pytest.approx(0.95)
    for _ in range(10):
        belief.add(False, 0.0)

    assert belief.p == pytest.approx(9.5 / 20.0)
    assert belief.n == 10.0


def test_failures_are_forgotten_by_half_in_a_minute() -> None:
    belief = DecayedBeta(60.0)
    belief.add(False, 0.0)
    belief.decay(60.0)

    assert belief.failures == 0.5


def test_shown_success_carries_samples_and_an_interval_around_it() -> None:
    belief = DecayedBeta(60.0)
    for _ in range(20):
        belief.add(True, 0.0)
    shown = belief.measured()

    assert shown.low < shown.value < shown.high <= 1.0
    assert shown.n == 20.0
