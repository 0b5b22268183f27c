"""Bootstrap intervals against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from gateway.stats.bootstrap import bootstrap_interval, paired_difference, row_quantiles


def test_interval_of_a_mean_agrees_with_scipy() -> None:
    samples = np.random.default_rng(1).lognormal(0, 0.5, 120)
    ours = bootstrap_interval(samples, np.random.default_rng(2), num_resamples=6_000)
    theirs = scipy_stats.bootstrap(
        (samples,), np.mean, method="percentile", n_resamples=6_000,
        rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip

    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)
    assert ours.value == pytest.approx(samples.mean())


def test_same_seed_gives_the_same_interval() -> None:
    samples = [1.0, 2.0, 4.0, 8.0]

    assert bootstrap_interval(samples, np.random.default_rng(9)) == bootstrap_interval(
        samples, np.random.default_rng(9)
    )


def test_pairs_show_a_small_gain_that_unpaired_samples_hide() -> None:
    rng = np.random.default_rng(4)
    seeds = rng.normal(10.0, 3.0, 20)
    ours, theirs = seeds - 0.3 + rng.normal(0, 0.1, 20), seeds + rng.normal(0, 0.1, 20)
    paired = paired_difference(ours, theirs, np.random.default_rng(5))

    assert paired.high < 0.0


def test_no_difference_gives_an_interval_around_zero() -> None:
    rng = np.random.default_rng(8)
    paired = paired_difference(rng.normal(size=30), rng.normal(size=30), np.random.default_rng(5))

    assert paired.low < 0.0 < paired.high


def test_quantile_statistic_is_resampled_in_blocks_alike() -> None:
    samples = np.random.default_rng(1).exponential(1.0, 5_000)
    shown = bootstrap_interval(
        samples, np.random.default_rng(2), statistic=row_quantiles(0.95), num_resamples=1_000
    )

    assert shown.low < np.quantile(samples, 0.95) < shown.high


def test_pairs_of_different_number_and_single_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs differ"):
        paired_difference([1.0, 2.0], [1.0], np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least two"):
        bootstrap_interval([1.0], np.random.default_rng(0))
