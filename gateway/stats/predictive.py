"""How far a real time may lie from the predicted one, and how to find out that it lies farther."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import NamedTuple, Protocol

# What ln speed may wander, as an Ornstein-Uhlenbeck walk.
DRIFT_SIGMA, DRIFT_TAU_S = 0.35, 600.0

# z of 5, 25, 75 and 95 %: the ends of the 90 % and the 50 % interval.
NORMAL_ENDS = (-1.6448536269514722, -0.6744897501960817, 0.6744897501960817, 1.6448536269514722)
_NORMAL_REACH = NORMAL_ENDS[3] - NORMAL_ENDS[0]
# Steps over the normal's density at an end: of the outer ends, then of the inner ones.
_UP_90, _DOWN_90 = 0.05 / 0.10313564, 0.95 / 0.10313564
_UP_50, _DOWN_50 = 0.25 / 0.31777657, 0.75 / 0.31777657
SHAPE_MAX = 20.0
CLIP = 4.0
SQUARE_MIN = 1e-4
N_START = 5.0  # samples that the normal counts for
MEMORY_SAMPLES = 150.0


def drifted(age_s: float | None) -> float:
    """
    Variance of ln speed that an endpoint may have gained since its last sample.

    Speeds wander; without this an endpoint that was slow once would never be looked at again,
    however fast it became.
    """
    if age_s is None:
        return DRIFT_SIGMA * DRIFT_SIGMA
    return DRIFT_SIGMA * DRIFT_SIGMA * (1.0 - exp(-2.0 * age_s / DRIFT_TAU_S))


def variance(sigma: float, n: float, drift: float) -> float:
    """Of the next sample's logarithm: its own spread, that of the mean, and what has drifted."""
    return sigma * sigma * (1.0 + 1.0 / max(n, 1.0)) + drift


class Believed(Protocol):
    """What of `EndpointStats` says how far a real time may lie from the predicted one."""

    @property
    def ttft_sigma(self) -> float: ...
    @property
    def ttft_n(self) -> float: ...
    @property
    def rate_sigma(self) -> float: ...
    @property
    def rate_n(self) -> float: ...
    @property
    def sample_age_s(self) -> float | None: ...
    @property
    def e2e_base_s(self) -> float | None: ...
    @property
    def e2e_n(self) -> float: ...


class Spread(NamedTuple):
    """Variances of logarithms: of each part of a time, and of what both share."""

    first: float
    decode: float
    both: float


def is_end_to_end(told: Believed, *, is_whole: bool, has_output: bool) -> bool:
    """Whether whole answers tell more of a whole answer than streams do."""
    has_line = is_whole and told.e2e_base_s is not None
    return has_line and (not has_output or told.e2e_n > told.ttft_n)


def spread_of(told: Believed, *, is_line: bool) -> Spread:
    """Of the next request's times. `is_line`: judged by whole answers, end to end."""
    drift = drifted(told.sample_age_s)
    if is_line:  # its two parts are wrong together
        return Spread(0.0, 0.0, variance(told.ttft_sigma, told.e2e_n, drift))
    return Spread(
        variance(told.ttft_sigma, told.ttft_n, drift),
        variance(told.rate_sigma, told.rate_n, drift),
        0.0,
    )


def lognormal_sum(a: float, a_variance: float, b: float, b_variance: float) -> tuple[float, float]:
    """
    (mu, variance) of ln(A + B), A and B independent log-normals of medians `a` and `b`.

    Fenton–Wilkinson: the log-normal of the same mean and variance as the sum (L. F. Fenton, IRE
    Trans. Communications Systems 8, 1960). Exact where one part is all; its lower end is too low
    where a wide part meets a narrow one, which is left to what is learned of the ends.
    """
    if b <= 0.0:
        return log(a), a_variance
    a_square, b_square = exp(a_variance), exp(b_variance)
    a_mean, b_mean = a * sqrt(a_square), b * sqrt(b_square)
    mean = a_mean + b_mean
    spread = a_mean * a_mean * (a_square - 1.0) + b_mean * b_mean * (b_square - 1.0)
    total = log(1.0 + spread / (mean * mean))
    return log(mean) - 0.5 * total, total


class Ends:
    """
    Where 5, 25, 75 and 95 % of the residuals z (in sigmas of the belief) lie, learned one by one.

    A running mean and scale of z tell soon how wrong the belief's own are; quantile tracking then
    learns the shape of what is left: an end moves up by step · level when a residual lies above
    it, else down by step · (1 − level). Over any sequence the share below each end so goes to its
    level, whatever the law (Gibbs and Candès 2021, adaptive conformal inference; Angelopoulos,
    Candès and Tibshirani 2023, conformal PID control). Steps fall as 1/n until n is
    `MEMORY_SAMPLES`. It starts as the normal: without samples an interval is the belief's own.
    """

    __slots__ = ("_shape", "_square", "ends", "mean", "n")

    def __init__(self) -> None:
        self.n = 0.0
        self.mean = 0.0
        self._square = 1.0  # variance of z
        self._shape = NORMAL_ENDS  # ends of (z − mean) / scale
        self.ends = NORMAL_ENDS  # of z

    @property
    def width(self) -> float:
        """Of the 90 % interval as a multiple of what was believed."""
        return (self.ends[3] - self.ends[0]) / _NORMAL_REACH

    def add(self, z: float) -> None:
        """Take in one residual."""
        mean, scale = self.mean, sqrt(self._square)
        u = (z - mean) / scale
        low_90, low_50, high_50, high_90 = self._shape
        n = self.n = self.n + 1.0 if self.n < MEMORY_SAMPLES else MEMORY_SAMPLES
        share = 1.0 / (n + N_START)
        low_90 += share * (_UP_90 if u > low_90 else -_DOWN_90)
        low_50 += share * (_UP_50 if u > low_50 else -_DOWN_50)
        high_50 += share * (_DOWN_50 if u > high_50 else -_UP_50)
        high_90 += share * (_DOWN_90 if u > high_90 else -_UP_90)
        if not -SHAPE_MAX <= low_90 <= low_50 <= high_50 <= high_90 <= SHAPE_MAX:
            shape = (low_90, low_50, high_50, high_90)
            low_90, low_50, high_50, high_90 = sorted(
                min(SHAPE_MAX, max(-SHAPE_MAX, each)) for each in shape
            )
        # An outlier may move mean and scale, not throw them; the ends count it once anyway.
        u = CLIP if u > CLIP else -CLIP if u < -CLIP else u
        mean += share * scale * u
        self.mean = mean
        self._square = max(SQUARE_MIN, self._square * (1.0 + share * (u * u - 1.0)))
        self._shape = (low_90, low_50, high_50, high_90)
        self._place()

    def _place(self) -> None:
        mean, scale = self.mean, sqrt(self._square)
        low_90, low_50, high_50, high_90 = self._shape
        self.ends = (
            mean + scale * low_90,
            mean + scale * low_50,
            mean + scale * high_50,
            mean + scale * high_90,
        )

    def export(self) -> list[float]:
        """Seven numbers for `load`."""
        return [self.n, self.mean, self._square, *self._shape]

    def load(self, state: Sequence[float]) -> None:
        self.n, self.mean, self._square = max(0.0, state[0]), state[1], max(SQUARE_MIN, state[2])
        low_90, low_50, high_50, high_90 = sorted(state[3:7])
        self._shape = (low_90, low_50, high_50, high_90)
        self._place()


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was learned of the completion time at one endpoint, for the next request's interval."""

    ends: tuple[float, ...] = NORMAL_ENDS  # z of 5, 25, 75 and 95 %
    length_variance: float = 0.0  # of ln output tokens about what is expected
    coverage_90: float | None = None  # None without samples
    n: float = 0.0


def interval_s(mu: float, total: float, ends: Sequence[float]) -> tuple[float, float]:
    """Seconds that 5 % and 95 % stay under; `total` is the variance of ln seconds."""
    sigma = sqrt(total)
    return exp(mu + ends[0] * sigma), exp(mu + ends[-1] * sigma)


def completion_law(
    first_s: float, decode_s: float, spread: Spread, length_variance: float = 0.0
) -> tuple[float, float]:
    """(mu, variance) of ln of first + decode seconds, the latter of a length that varies."""
    decode_variance = spread.decode + length_variance
    mu, total = lognormal_sum(first_s, spread.first, decode_s, decode_variance)
    return mu, total + spread.both
