"""How long a provider's batch API takes: learned per lane, from batches that ended or still run.

A turnaround's logarithm is taken to be normal. The prior counts as a few observations and says
half in 7 min, one in twenty over 20 h; newer batches count more. A batch that was not done when it
was last seen counts as what it is expected to take, given that it has taken that long: the mean of
a normal beyond a bound (one step of Dempster, Laird and Rubin's EM, 1977).
"""

from __future__ import annotations

from collections import deque
from math import erfc, exp, log, pi, sqrt

from gateway.policy.placement_terms import TURNAROUND_P50_S, TURNAROUND_P95_S

Z_P95 = 1.6448536269514722
PRIOR_WEIGHT = 3.0  # in observations
HALF_LIFE = 12.0  # in observations
OBSERVATIONS_MAX = 64
SHORTEST_S = 1.0
SIGMA_MIN = 0.05
CLOSED_S = 600.0  # after a failure; twice as long after the next …
CLOSED_MAX_S = 7_200.0  # … up to this


class Turnaround:
    """What is known of one native lane's speed and health."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, bool]] = deque(maxlen=OBSERVATIONS_MAX)
        self._failures = 0
        self._closed_until_s = 0.0

    def finished(self, took_s: float) -> None:
        """A batch came back whole."""
        self._seen.append((max(SHORTEST_S, took_s), True))
        self._failures = 0

    def gave_up(self, after_s: float) -> None:
        """A batch was cancelled or expired with lines undone after so long."""
        self._seen.append((max(SHORTEST_S, after_s), False))

    def failed(self, now_s: float) -> None:
        """A batch was refused or failed as a whole: the lane rests, longer each time in a row."""
        self._closed_until_s = now_s + min(CLOSED_MAX_S, CLOSED_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)

    @property
    def opens_at_s(self) -> float:
        """When the lane may be tried again; in the past if it may be now."""
        return self._closed_until_s

    def quantiles(self, running_for_s: tuple[float, ...] = ()) -> tuple[float, float]:
        """(p50, p95) in seconds; `running_for_s`: ages of the batches that are under way."""
        mu, sigma = _normal_of(TURNAROUND_P50_S, TURNAROUND_P95_S)
        num = len(self._seen)
        seen = [
            (took_s, is_done, 0.5 ** ((num - 1 - idx) / HALF_LIFE))
            for idx, (took_s, is_done) in enumerate(self._seen)
        ]
        seen += [(max(SHORTEST_S, age_s), False, 1.0) for age_s in running_for_s]
        # Two passes: the first learns from what ended, the second places what did not end.
        done = [(log(took_s), weight) for took_s, is_done, weight in seen if is_done]
        learned = _posterior(done, mu, sigma)
        every = [
            (log(took_s) if is_done else _beyond(log(took_s), *learned), weight)
            for took_s, is_done, weight in seen
        ]
        mean, spread = _posterior(every, mu, sigma)
        return exp(mean), exp(mean + Z_P95 * spread)


def share_done(p50_s: float, p95_s: float, within_s: float, *, age_s: float = 0.0) -> float:
    """The probability that a batch of that age is back when it is `within_s` old."""
    if within_s <= age_s:
        return 0.0
    mu, sigma = _normal_of(p50_s, p95_s)
    open_now = _survival((log(age_s) - mu) / sigma) if age_s > SHORTEST_S else 1.0
    if open_now <= 0.0:
        return 0.0
    open_then = _survival((log(max(SHORTEST_S, within_s)) - mu) / sigma)
    return max(0.0, 1.0 - open_then / open_now)


def _normal_of(p50_s: float, p95_s: float) -> tuple[float, float]:
    mu = log(max(SHORTEST_S, p50_s))
    return mu, max(SIGMA_MIN, (log(max(SHORTEST_S, p95_s)) - mu) / Z_P95)


def _posterior(logs: list[tuple[float, float]], mu: float, sigma: float) -> tuple[float, float]:
    """Mean and deviation of weighted logarithms and of the prior's."""
    total = PRIOR_WEIGHT + sum(weight for _, weight in logs)
    mean = (PRIOR_WEIGHT * mu + sum(weight * value for value, weight in logs)) / total
    square = PRIOR_WEIGHT * (sigma**2 + (mu - mean) ** 2)
    square += sum(weight * (value - mean) ** 2 for value, weight in logs)
    return mean, max(SIGMA_MIN, sqrt(square / total))


def _beyond(bound: float, mu: float, sigma: float) -> float:
    """The mean of a normal given that it lies beyond `bound`."""
    z = (bound - mu) / sigma
    survival = _survival(z)
    if survival < 1e-12:
        return bound
    return mu + sigma * exp(-z * z / 2.0) / sqrt(2.0 * pi) / survival


def _survival(z: float) -> float:
    return 0.5 * erfc(z / sqrt(2.0))
