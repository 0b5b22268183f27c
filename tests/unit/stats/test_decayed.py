"""Decayed sums and the Gaussian shrunk to a prior."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stats.decayed import DecayedSums, Prior, shrunk

values = st.lists(st.floats(-5, 5), min_size=1, max_size=30)


@given(values, st.floats(0.1, 100))
def test_decayed_sums_equal_a_weighted_sum_over_all_samples(
    samples: list[float], half_life_s: float
) -> None:
    sums = DecayedSums(0.0)
    for second, x in enumerate(samples):
        sums.decay(float(second), half_life_s)
        sums.add(x)

    ages = np.arange(len(samples))[::-1]
    weights = 2.0 ** (-ages / half_life_s)
    x = np.array(samples)
    assert sums.s0 == pytest.approx(weights.sum())
    assert sums.s1 == pytest.approx((weights * x).sum(), abs=1e-9)
    assert sums.s2 == pytest.approx((weights * x * x).sum(), abs=1e-9)


def test_half_of_the_weight_is_gone_after_one_half_life() -> None:
    sums = DecayedSums(10.0)
    sums.add(3.0)
    sums.decay(70.0, 60.0)

    assert (sums.s0, sums.mean) == (0.5, 3.0)


def test_a_clock_that_went_back_forgets_nothing() -> None:
    sums = DecayedSums(100.0)
    sums.add(1.0)
    sums.decay(50.0, 60.0)

    assert sums.s0 == 1.0


def test_shrunk_mean_is_that_of_samples_and_prior_samples_together() -> None:
    prior = Prior(mu0=2.0, n0=3.0, sigma0=0.4, sigma_min=0.1)
    belief = shrunk(5.0, 5.0 * 1.0, 5.0 * 1.0, prior)

    assert belief.mu == pytest.approx((5.0 * 1.0 + 3.0 * 2.0) / 8.0)
    assert belief.n == 8.0
    # Pooled about that mean: five samples at 1, three of the prior spread 0.4 about 2.
    off = belief.mu
    pooled = (5.0 * (1.0 - off) ** 2 + 3.0 * (0.16 + (2.0 - off) ** 2)) / 8.0
    assert belief.sigma == pytest.approx(math.sqrt(pooled))


def test_without_samples_the_belief_is_the_prior() -> None:
    belief = shrunk(0.0, 0.0, 0.0, Prior(mu0=-0.7, n0=3.0, sigma0=0.45, sigma_min=0.3))

    assert (belief.mu, belief.sigma, belief.n) == pytest.approx((-0.7, 0.45, 3.0))


def test_equal_samples_leave_the_floor_of_spread() -> None:
    belief = shrunk(1e6, 1e6, 1e6, Prior(mu0=1.0, n0=3.0, sigma0=0.45, sigma_min=0.3))

    assert belief.sigma == 0.3


def test_capped_weight_keeps_the_mean_and_widens_the_belief() -> None:
    sums = DecayedSums()
    for x in (1.0, 2.0, 3.0, 4.0):
        sums.add(x)
    sums.cap_weight(2.0)

    assert (sums.s0, sums.mean) == (2.0, 2.5)


@given(values, st.floats(-3, 3))
def test_shift_equals_shifting_every_sample(samples: list[float], delta: float) -> None:
    shifted, direct = DecayedSums(), DecayedSums()
    for x in samples:
        shifted.add(x)
        direct.add(x + delta)
    shifted.shift(delta)

    assert shifted.s1 == pytest.approx(direct.s1, abs=1e-9)
    assert shifted.s2 == pytest.approx(direct.s2, abs=1e-9)
