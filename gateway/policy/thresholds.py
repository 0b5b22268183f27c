"""OpenRouter's preferred speeds: an endpoint below them is tried after the others, not excluded."""

from __future__ import annotations

from math import exp

from gateway.core import EndpointStats, ProviderPreferences

# Percentile → its place in the measured quadruples, and the normal quantile for the belief.
_PERCENTILES: dict[str, tuple[int, float]] = {
    "p50": (0, 0.0),
    "p75": (1, 0.674489750196082),
    "p90": (2, 1.2815515655446),
    "p99": (3, 2.32634787404084),
}


def is_below_preferred(stats: EndpointStats, wants: ProviderPreferences) -> bool:
    """
    True when any stated percentile is missed.

    A throughput percentile is the rate that so many per cent of answers reach; a latency
    percentile is the first-token time that so many stay under. Unmeasured endpoints are judged
    by their belief.
    """
    for name, rate_min in wants.preferred_min_throughput:
        if _rate(stats, name) < rate_min:
            return True
    return any(_latency_s(stats, name) > limit_s for name, limit_s in wants.preferred_max_latency)


def _rate(stats: EndpointStats, percentile: str) -> float:
    place, z = _PERCENTILES[percentile]
    if stats.rate_p50_p75_p90_p99 is not None:
        return stats.rate_p50_p75_p90_p99[place]
    return exp(stats.rate_mu - z * stats.rate_sigma)


def _latency_s(stats: EndpointStats, percentile: str) -> float:
    place, z = _PERCENTILES[percentile]
    if stats.ttft_p50_p75_p90_p99_s is not None:
        return stats.ttft_p50_p75_p90_p99_s[place]
    return exp(stats.ttft_mu + z * stats.ttft_sigma)
