"""Weighted sums that forget with a half-life, and the shrunk Gaussian they imply."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A belief: mean, spread of one sample, and effective samples behind the mean."""

    mu: float
    sigma: float
    n: float

    @property
    def mean_sd(self) -> float:
        """Standard deviation of the mean itself: what a Thompson draw uses."""
        return self.sigma / math.sqrt(self.n)

    def sample_at(self, z: float) -> float:
        """What a further sample is at `z`: its own spread, and the doubt about the mean."""
        return self.mu + z * self.sigma * math.sqrt(1.0 + 1.0 / self.n)


class DecayedSums:
    """Sums of w, w·x and w·x², all multiplied by 2^(−dt/H) before each addition."""

    __slots__ = ("at_s", "s0", "s1", "s2")

    def __init__(self, at_s: float = 0.0) -> None:
        self.s0 = 0.0
        self.s1 = 0.0
        self.s2 = 0.0
        self.at_s = at_s

    def decay(self, now_s: float, half_life_s: float) -> None:
        """Forget up to `now_s`. A clock that went back forgets nothing."""
        elapsed_s = now_s - self.at_s
        if elapsed_s > 0.0:
            self.scale(2.0 ** (-elapsed_s / half_life_s))
            self.at_s = now_s

    def scale(self, factor: float) -> None:
        """Weigh all that was seen by `factor`; the mean stays."""
        self.s0 *= factor
        self.s1 *= factor
        self.s2 *= factor

    def add(self, x: float, weight: float = 1.0) -> None:
        self.s0 += weight
        self.s1 += weight * x
        self.s2 += weight * x * x

    def shift(self, delta: float) -> None:
        """As if every sample had been x + delta."""
        self.s2 += 2.0 * delta * self.s1 + delta * delta * self.s0
        self.s1 += delta * self.s0

    def cap_weight(self, weight_max: float) -> None:
        """Widen the belief: keep the mean, count as at most `weight_max` samples."""
        if self.s0 > weight_max:
            self.scale(weight_max / self.s0)

    @property
    def mean(self) -> float | None:
        return self.s1 / self.s0 if self.s0 > 1e-12 else None


@dataclass(frozen=True, slots=True)
class Prior:
    """What a belief is shrunk to: `n0` samples of mean `mu0` and spread `sigma0`."""

    mu0: float
    n0: float
    sigma0: float
    sigma_min: float


def shrunk(s0: float, s1: float, s2: float, prior: Prior) -> Gaussian:
    """
    The Gaussian of the sums with the prior's samples added (reliability B.2).

    mu = (S1 + n0·mu0) / (S0 + n0). The spread pools samples and prior about that mean, so a
    recent mean far from the prior's widens the belief rather than hiding the disagreement.
    """
    n = s0 + prior.n0
    mu = (s1 + prior.n0 * prior.mu0) / n
    scatter = max(0.0, s2 - 2.0 * mu * s1 + mu * mu * s0)
    off = prior.mu0 - mu
    variance = (scatter + prior.n0 * (prior.sigma0 * prior.sigma0 + off * off)) / n
    return Gaussian(mu, max(prior.sigma_min, math.sqrt(variance)), n)
