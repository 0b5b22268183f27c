"""When the next token comes: speed with seeded noise, slow drift, steps and load."""

from __future__ import annotations

import math
import random
from functools import lru_cache

from gateway.simulator.profile import Fault, FaultMode, ProviderProfile

# Three waves with incommensurate periods wander without repeating within hours.
_WAVES: tuple[tuple[float, float], ...] = ((1.0, 1.0), (0.371, 0.6), (0.137, 0.35))
_WAVES_SCALE = math.sqrt(2.0 / sum(weight**2 for _, weight in _WAVES))


@lru_cache(maxsize=64)
def _phases(seed: int) -> tuple[float, ...]:
    rng = random.Random(seed)
    return tuple(rng.uniform(0.0, math.tau) for _ in _WAVES)


def speed_factor(profile: ProviderProfile, at_s: float) -> float:
    """Drift and steps at `at_s`: what the profile's tokens_per_s is multiplied by.

    The drift is a fixed function of seed and time with standard deviation `drift_sigma` of its
    logarithm over a long window, so two runs with one seed see the same world.
    """
    factor = 1.0
    if profile.drift_sigma:
        wave = sum(
            weight * math.sin(math.tau * at_s / (profile.drift_period_s * period) + phase)
            for (period, weight), phase in zip(_WAVES, _phases(profile.seed), strict=True)
        )
        factor = math.exp(profile.drift_sigma * _WAVES_SCALE * wave)
    for from_s, step in profile.speed_steps:
        if at_s >= from_s:
            factor *= step
    return factor


def load_factor(profile: ProviderProfile, in_flight: int) -> float:
    """Above `concurrency_soft` streams the same total speed is shared by all of them."""
    if profile.concurrency_soft is None or in_flight <= profile.concurrency_soft:
        return 1.0
    return profile.concurrency_soft / in_flight


def fault_factor(faults: tuple[Fault, ...], mode: FaultMode) -> float:
    factor = 1.0
    for fault in faults:
        if fault.mode is mode:
            factor *= fault.factor
    return factor


def first_token_delay_s(
    profile: ProviderProfile, uncached_tokens: int, rng: random.Random, speed: float
) -> float:
    """Seconds from arrival to the first token; `speed` is the product of all factors."""
    mean_s = profile.ttft_base_s + uncached_tokens / profile.prefill_tokens_per_s
    return mean_s * rng.lognormvariate(0.0, profile.ttft_sigma) / speed


def stream_factor(profile: ProviderProfile, rng: random.Random) -> float:
    """How much faster than the profile this one stream is."""
    return rng.lognormvariate(0.0, profile.rate_sigma)


def event_gap_s(
    profile: ProviderProfile, num_tokens: int, rng: random.Random, speed: float
) -> float:
    """Seconds between two events, the later of which carries `num_tokens`."""
    # Mean 1, so that noise between events does not change the rate of the stream.
    sigma = profile.event_sigma
    jitter = rng.lognormvariate(-sigma * sigma / 2.0, sigma) if sigma else 1.0
    return num_tokens / (profile.tokens_per_s * speed) * jitter
