"""Quantiles of what was seen lately, within a fixed relative error (DDSketch's buckets)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.stats.intervals import LEVEL, Measured, order_ranks

ALPHA = 0.02
# Weights grow by 2^(dt/H) instead of all counts shrinking; rescaled before floats suffer.
_EXPONENT_MAX = 64.0


class HistogramState(NamedTuple):
    """What a histogram is rebuilt from: counts by bucket index, of buckets in use."""

    counts: dict[str, float]
    squares: float


class LogHistogram:
    """
    Counts in buckets of equal ratio from `low` to `high`, forgotten with a half-life.

    A quantile is off by at most `alpha` of itself; values outside the range count at its ends.
    Histograms of one shape merge by addition.
    """

    __slots__ = (
        "_cells",
        "_counts",
        "_last_idx",
        "_ln_gamma",
        "_ln_low",
        "_origin_s",
        "_squares",
        "_total",
        "half_life_s",
        "high",
        "low",
        "version",
    )

    def __init__(
        self,
        low: float,
        high: float,
        *,
        half_life_s: float,
        alpha: float = ALPHA,
        start_s: float = 0.0,
    ) -> None:
        assert 0.0 < low < high
        self.low = low
        self.high = high
        self.half_life_s = half_life_s
        self._ln_low = math.log(low)
        self._ln_gamma = math.log((1.0 + alpha) / (1.0 - alpha))
        num_buckets = math.ceil((math.log(high) - self._ln_low) / self._ln_gamma) + 1
        # One memory, two handles: a Python array for the single addition of a sample, numpy's view
        # of it for all that touches every bucket.
        self._cells = array("d", bytes(8 * num_buckets))
        self._counts: NDArray[np.float64] = np.frombuffer(self._cells)
        self._last_idx = num_buckets - 1
        self._total = 0.0
        self._squares = 0.0  # of weights, for Kish's effective sample count
        self._origin_s = start_s
        self.version = 0  # changes when a quantile may have changed; ageing changes none

    def add(self, value: float, now_s: float, weight: float = 1.0) -> None:
        elapsed_s = now_s - self._origin_s
        grown = weight
        if elapsed_s > 0.0:
            if elapsed_s > _EXPONENT_MAX * self.half_life_s:
                self._rescale(now_s)
            else:
                grown *= 2.0 ** (elapsed_s / self.half_life_s)
        idx = int((math.log(value) - self._ln_low) / self._ln_gamma) if value > self.low else 0
        self._cells[idx if idx < self._last_idx else self._last_idx] += grown
        self._total += grown
        self._squares += grown * grown
        self.version += 1

    def _rescale(self, now_s: float) -> None:
        shrink = 2.0 ** (-(now_s - self._origin_s) / self.half_life_s)
        self._counts *= shrink
        self._total *= shrink
        self._squares *= shrink * shrink
        self._origin_s = now_s

    def weight(self, now_s: float) -> float:
        """Decayed count of samples."""
        exponent = max(0.0, now_s - self._origin_s) / self.half_life_s
        return float(self._total * 2.0**-exponent)

    @property
    def n(self) -> float:
        """Effective sample count of the shape, by Kish: (Σw)² / Σw²."""
        return self._total * self._total / self._squares if self._squares > 0.0 else 0.0

    def quantiles(self, levels: Sequence[float]) -> tuple[float, ...] | None:
        """The value at each level, or None when nothing was seen."""
        if self._total <= 0.0:
            return None
        cumulative = np.cumsum(self._counts)
        wanted = np.asarray(levels) * cumulative[-1]
        found = np.minimum(np.searchsorted(cumulative, wanted), self._last_idx)
        return tuple(self._middle(idx) for idx in found.tolist())

    def quantile(self, level: float) -> float | None:
        found = self.quantiles((level,))
        return found[0] if found is not None else None

    def _middle(self, idx: int) -> float:
        # 2γ/(γ+1)·γ^i is off by at most alpha at either end of the bucket (DDSketch, lemma 2).
        gamma = math.exp(self._ln_gamma)
        return math.exp(self._ln_low + idx * self._ln_gamma) * 2.0 * gamma / (gamma + 1.0)

    def measured(self, level: float, confidence: float = LEVEL) -> Measured | None:
        """A quantile with its distribution-free interval; an end it cannot bound is open."""
        if self._total <= 0.0:
            return None
        low_level, high_level = order_ranks(level, self.n, confidence)
        value, low, high = self.quantiles((level, max(low_level, 0.0), min(high_level, 1.0))) or ()
        return Measured(
            value,
            low if low_level > 0.0 else 0.0,
            high if high_level < 1.0 else math.inf,
            self.n,
            confidence,
        )

    def merge(self, other: LogHistogram) -> None:
        """Add what another histogram of the same shape and clock has seen."""
        assert (self.low, self._ln_gamma, len(self._counts), self.half_life_s) == (
            other.low, other._ln_gamma, len(other._counts), other.half_life_s,
        )  # fmt: skip
        shift = 2.0 ** ((other._origin_s - self._origin_s) / self.half_life_s)
        self._counts += other._counts * shift
        self._total += other._total * shift
        self._squares += other._squares * shift * shift
        self.version += 1

    def export(self, now_s: float) -> HistogramState:
        """Counts as of `now_s`."""
        aged = 2.0 ** (-max(0.0, now_s - self._origin_s) / self.half_life_s)
        used = np.flatnonzero(self._counts * aged > 1e-6).tolist()
        counts = {str(idx): round(float(self._counts[idx]) * aged, 6) for idx in used}
        return HistogramState(counts, self._squares * aged * aged)

    def load(self, state: HistogramState, now_s: float, age_s: float) -> None:
        """Take over what `export` gave `age_s` ago; buckets that do not exist are dropped."""
        aged = 2.0 ** (-max(0.0, age_s) / self.half_life_s)
        self._counts[:] = 0.0
        for idx_text, count in state.counts.items():
            idx = int(idx_text) if idx_text.isdigit() else -1
            if 0 <= idx <= self._last_idx and 0.0 <= count < math.inf:
                self._counts[idx] = count * aged
        self._total = float(self._counts.sum())
        self._squares = max(state.squares * aged * aged, 1e-12) if self._total > 0.0 else 0.0
        self._origin_s = now_s
        self.version += 1
