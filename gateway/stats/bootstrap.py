"""Bootstrap intervals for comparisons: no claim if the interval crosses zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gateway.stats.intervals import Measured

NUM_RESAMPLES = 2_000
_CELLS_MAX = 4_000_000  # resample in blocks, so that memory stays under 32 MB

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def row_means(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """[rows, n] → [rows]."""
    return np.asarray(samples.mean(axis=1))


def row_quantiles(q: float) -> Statistic:
    """The statistic that takes quantile q of each row."""
    return lambda samples: np.asarray(np.quantile(samples, q, axis=1))


def bootstrap_interval(
    samples: ArrayLike,
    rng: np.random.Generator,
    *,
    statistic: Statistic = row_means,
    num_resamples: int = NUM_RESAMPLES,
    level: float = 0.95,
) -> Measured:
    """
    Percentile bootstrap of a statistic (Efron 1979).

    `statistic` maps [rows, n] to [rows], so that all resamples are one call.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError("samples: a bootstrap needs one row of at least two values")
    rows_a_block = max(1, _CELLS_MAX // len(values))
    found: list[NDArray[np.float64]] = []
    for start in range(0, num_resamples, rows_a_block):
        rows = min(rows_a_block, num_resamples - start)
        found.append(statistic(values[rng.integers(0, len(values), size=(rows, len(values)))]))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(np.concatenate(found), (tail, 1.0 - tail))
    value = float(statistic(values[np.newaxis, :])[0])
    return Measured(value, float(low), float(high), float(len(values)), level)


def paired_difference(
    ours: ArrayLike,
    theirs: ArrayLike,
    rng: np.random.Generator,
    *,
    num_resamples: int = NUM_RESAMPLES,
    level: float = 0.95,
) -> Measured:
    """Mean of ours − theirs over pairs of one seed each; the pairing removes the seeds' spread."""
    first = np.asarray(ours, dtype=np.float64)
    second = np.asarray(theirs, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"pairs differ in number: {first.shape} and {second.shape}")
    return bootstrap_interval(first - second, rng, num_resamples=num_resamples, level=level)
