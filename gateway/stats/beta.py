"""Success probability as a decayed Beta, and the interval it implies."""

from __future__ import annotations

import math
from functools import lru_cache

from gateway.stats.intervals import LEVEL, Measured

PRIOR_SUCCESSES = 9.5
PRIOR_FAILURES = 0.5
_FRACTION_TERMS_MAX = 300
_STEPS_MAX = 100
_PRECISION = 1e-12
_LN_DENSITY_MAX = 700.0  # the largest power of e that a float holds


class DecayedBeta:
    """Counts of successes and failures that forget, over the prior Beta(9.5, 0.5)."""

    __slots__ = ("at_s", "failures", "half_life_s", "successes")

    def __init__(self, half_life_s: float, at_s: float = 0.0) -> None:
        self.half_life_s = half_life_s
        self.successes = 0.0
        self.failures = 0.0
        self.at_s = at_s

    def decay(self, now_s: float) -> None:
        elapsed_s = now_s - self.at_s
        if elapsed_s > 0.0:
            factor = 2.0 ** (-elapsed_s / self.half_life_s)
            self.successes *= factor
            self.failures *= factor
            self.at_s = now_s

    def add(self, is_success: bool, now_s: float) -> None:
        self.decay(now_s)
        if is_success:
            self.successes += 1.0
        else:
            self.failures += 1.0

    def clear(self) -> None:
        self.successes = 0.0
        self.failures = 0.0

    @property
    def n(self) -> float:
        """Decayed samples, without the prior."""
        return self.successes + self.failures

    @property
    def p(self) -> float:
        """Posterior mean."""
        return (PRIOR_SUCCESSES + self.successes) / (PRIOR_SUCCESSES + PRIOR_FAILURES + self.n)

    def measured(self, level: float = LEVEL) -> Measured:
        """Posterior mean with its equal-tailed credible interval."""
        a = PRIOR_SUCCESSES + self.successes
        b = PRIOR_FAILURES + self.failures
        tail = (1.0 - level) / 2.0
        return Measured(
            self.p, beta_quantile(tail, a, b), beta_quantile(1.0 - tail, a, b), self.n, level
        )


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    # The fraction converges fast only below the mean; above it use the mirror image.
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_cdf(1.0 - x, b, a)
    ln_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    return math.exp(ln_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), evaluated forward by the modified Lentz method."""
    tiny = 1e-300
    value = 1.0
    c = 1.0
    d = 0.0
    for term in range(1, _FRACTION_TERMS_MAX):
        m = term // 2
        if term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 + step * d
        d = 1.0 / (d if abs(d) > tiny else tiny)
        c = 1.0 + step / c
        c = c if abs(c) > tiny else tiny
        value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


@lru_cache(maxsize=4096)  # endpoints without a sample all ask for the same two
def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = p: Newton's steps, bisection where one would leave the bracket."""
    low, high = 0.0, 1.0
    x = a / (a + b)
    ln_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    for _ in range(_STEPS_MAX):
        missing = beta_cdf(x, a, b) - p
        if missing < 0.0:
            low = x
        else:
            high = x
        ln_density = ln_scale + (a - 1.0) * math.log(x) + (b - 1.0) * math.log1p(-x)
        density = math.exp(min(ln_density, _LN_DENSITY_MAX))
        nearer = x - missing / density if density > 0.0 else low
        if not low < nearer < high:
            nearer = (low + high) / 2.0
        if abs(nearer - x) <= _PRECISION or not 0.0 < nearer < 1.0:
            return nearer
        x = nearer
    return x
