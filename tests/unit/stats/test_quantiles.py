"""Log-bucket histogram: relative error, forgetting, merging."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from gateway.stats.quantiles import ALPHA, HistogramState, LogHistogram


def histogram(half_life_s: float = 600.0) -> LogHistogram:
    return LogHistogram(0.001, 600.0, half_life_s=half_life_s)


@given(
    st.lists(st.floats(0.0011, 599.0), min_size=1, max_size=200),
    st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99]),
)
def test_quantile_is_within_two_percent_of_the_exact_one(
    samples: list[float], level: float
) -> None:
    kept = histogram()
    for x in samples:
        kept.add(x, 0.0)

    exact = sorted(samples)[max(0, math.ceil(level * len(samples) - 1e-9) - 1)]
    found = kept.quantile(level)
    assert found is not None
    assert abs(found - exact) <= ALPHA * exact * 1.001


def test_range_of_a_millisecond_to_ten_minutes_takes_about_340_buckets() -> None:
    assert 330 <= len(histogram()._counts) <= 345


def test_values_outside_the_range_count_at_its_ends() -> None:
    kept = histogram()
    kept.add(1e-9, 0.0)
    kept.add(1e9, 0.0)

    low, high = kept.quantiles((0.4, 0.9)) or (0.0, 0.0)
    assert low == pytest.approx(0.001, rel=0.03)
    assert high == pytest.approx(600.0, rel=0.06)


def test_old_samples_lose_against_new_ones_but_ageing_alone_changes_no_quantile() -> None:
    kept = histogram(half_life_s=60.0)
    for _ in range(100):
        kept.add(1.0, 0.0)
    before = kept.quantile(0.5)
    assert kept.weight(600.0) == pytest.approx(100 / 1024)
    assert kept.quantile(0.5) == before

    for _ in range(3):
        kept.add(10.0, 600.0)
    assert kept.quantile(0.5) == pytest.approx(10.0, rel=ALPHA)


def test_weights_survive_a_very_long_time_without_overflow() -> None:
    kept = histogram(half_life_s=1.0)
    for second in range(0, 20_000, 10):
        kept.add(2.0, float(second))

    assert kept.quantile(0.5) == pytest.approx(2.0, rel=ALPHA)
    assert kept.weight(19_990.0) == pytest.approx(1.0, rel=0.01)
    assert kept.n == pytest.approx(1.0, rel=0.01)


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0, 500)), min_size=1, max_size=40),
    st.integers(0, 40),
)
def test_merging_two_histograms_equals_one_that_saw_all(
    samples: list[tuple[float, float]], cut: int
) -> None:
    together, left, right = histogram(), histogram(), histogram()
    right._origin_s = 0.0
    for idx, (x, at_s) in enumerate(samples):
        together.add(x, at_s)
        (left if idx < cut else right).add(x, at_s)
    left.merge(right)

    assert left.weight(500.0) == pytest.approx(together.weight(500.0))
    assert left.n == pytest.approx(together.n)
    assert left.quantile(0.5) == pytest.approx(together.quantile(0.5), rel=2 * ALPHA)


def test_export_and_load_keep_quantiles_and_age_the_weight() -> None:
    kept = histogram()
    for x in np.random.default_rng(3).lognormal(0.0, 0.5, 500):
        kept.add(float(x), 100.0)
    state = json.loads(json.dumps(kept.export(100.0)))
    back = histogram()
    back.load(HistogramState(*state), 5_000.0, 600.0)

    assert back.quantiles((0.1, 0.5, 0.99)) == kept.quantiles((0.1, 0.5, 0.99))
    assert back.weight(5_000.0) == pytest.approx(250.0)
    assert back.n == pytest.approx(500.0)


def test_damaged_state_loads_only_what_makes_sense() -> None:
    back = histogram()
    back.load(
        HistogramState({"5": 2.0, "99999": 1.0, "x": 1.0, "7": -3.0, "8": math.nan}, 4.0), 0.0, 0.0
    )

    assert back.weight(0.0) == 2.0


def test_interval_of_the_median_covers_the_truth_as_often_as_it_claims() -> None:
    rng = np.random.default_rng(11)
    num_covered = 0
    for _ in range(300):
        kept = histogram()
        for x in rng.lognormal(0.0, 0.4, 60):
            kept.add(float(x), 0.0)
        shown = kept.measured(0.5)
        assert shown is not None
        num_covered += shown.low * (1 - ALPHA) <= 1.0 <= shown.high * (1 + ALPHA)

    # 90 % intervals, a little wide by the buckets; a binomial bound a thousand to one.
    assert num_covered >= scipy_stats.binom.ppf(0.001, 300, 0.9)


def test_extreme_quantile_of_few_samples_has_an_open_end() -> None:
    kept = histogram()
    for x in (0.1, 0.2, 0.3):
        kept.add(x, 0.0)
    shown = kept.measured(0.99)

    assert shown is not None
    assert shown.high == math.inf
    assert "high" not in shown.as_dict()


def test_empty_histogram_shows_nothing() -> None:
    assert histogram().quantile(0.5) is None
    assert histogram().measured(0.5) is None
    assert histogram().n == 0.0
