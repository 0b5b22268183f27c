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
SIGMA_QUICK = 0.8
CLOSED_S = 600.0  # after a failure; twice as long after the next …
CLOSED_MAX_S = 7_200.0  # … up to this


class _Sums:
    """Weighted logarithms of turnarounds, the prior's among them."""

    __slots__ = ("squares", "total", "values")

    def __init__(self) -> None:
        mu, sigma = _normal_of(TURNAROUND_P50_S, TURNAROUND_P95_S)
        self.total = PRIOR_WEIGHT
        self.values = PRIOR_WEIGHT * mu
        self.squares = PRIOR_WEIGHT * (sigma**2 + mu**2)

    def add(self, value: float, weight: float) -> None:
        self.total += weight
        self.values += weight * value
        self.squares += weight * value * value

    def normal(self) -> tuple[float, float]:
        """Mean and deviation."""
        mean = self.values / self.total
        return mean, max(SIGMA_MIN, sqrt(max(0.0, self.squares / self.total - mean * mean)))

    def copy(self) -> _Sums:
        """One of the same values, to add to."""
        other = _Sums()
        other.total, other.values, other.squares = self.total, self.values, self.squares
        return other


class Turnaround:
    """What is known of one native lane's speed and health."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, bool]] = deque(maxlen=OBSERVATIONS_MAX)
        self._ended = self._every = _Sums()
        self._failures = 0
        self._closed_until_s = 0.0

    def finished(self, took_s: float) -> None:
        """A batch came back whole."""
        self._failures = 0
        self._add(took_s, is_done=True)

    def gave_up(self, after_s: float) -> None:
        """A batch was cancelled or expired with lines undone after so long."""
        self._add(after_s, is_done=False)

    def failed(self, now_s: float) -> None:
        """A batch was refused or failed as a whole: the lane rests, longer each time in a row."""
        self._closed_until_s = now_s + min(CLOSED_MAX_S, CLOSED_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)

    @property
    def opens_at_s(self) -> float:
        """When the lane may be tried again; in the past if it may be now."""
        return self._closed_until_s

    def quantiles(self, running_for_s: tuple[float, ...] = ()) -> tuple[float, float]:
        """
        (p50, p95) in seconds; `running_for_s`: ages of the batches that are under way.

        Only the oldest counts: what stands in the same queue tells the same.
        """
        every = self._every
        if running_for_s:
            oldest = log(max(SHORTEST_S, *running_for_s))
            every = every.copy()
            every.add(_beyond(oldest, *self._ended.normal()), 1.0)
        mean, spread = every.normal()
        return exp(mean), exp(mean + Z_P95 * spread)

    def _add(self, seconds: float, *, is_done: bool) -> None:
        """Two passes: the first learns from what ended, the second places what did not end."""
        self._seen.append((log(max(SHORTEST_S, seconds)), is_done))
        newest = len(self._seen) - 1
        seen = [
            (value, is_ended, 0.5 ** ((newest - idx) / HALF_LIFE))
            for idx, (value, is_ended) in enumerate(self._seen)
        ]
        self._ended = _Sums()
        for value, is_ended, weight in seen:
            if is_ended:
                self._ended.add(value, weight)
        learned = self._ended.normal()
        self._every = _Sums()
        for value, is_ended, weight in seen:
            self._every.add(value if is_ended else _beyond(value, *learned), weight)


def share_done(p50_s: float, p95_s: float, within_s: float, *, age_s: float = 0.0) -> float:
    """The probability that a batch of that age is back when it is `within_s` old."""
    if within_s <= age_s:
        return 0.0
    open_now = _share_open(p50_s, p95_s, age_s)
    if open_now <= 0.0:
        return 0.0
    return max(0.0, 1.0 - _share_open(p50_s, p95_s, within_s) / open_now)


def _share_open(p50_s: float, p95_s: float, age_s: float) -> float:
    """
    The share of batches that are not back at that age.

    The slow half is as wide as was learned, the quick half no wider than SIGMA_QUICK: queues and
    polling put a floor under it.
    """
    if age_s <= SHORTEST_S:
        return 1.0
    mu, sigma = _normal_of(p50_s, p95_s)
    z = log(age_s) - mu
    return _survival(z / (min(sigma, SIGMA_QUICK) if z < 0.0 else sigma))


def _normal_of(p50_s: float, p95_s: float) -> tuple[float, float]:
    mu = log(max(SHORTEST_S, p50_s))
    return mu, max(SIGMA_MIN, (log(max(SHORTEST_S, p95_s)) - mu) / Z_P95)


def _beyond(bound: float, mu: float, sigma: float) -> float:
    """The mean of a normal given that it lies beyond `bound`."""
    z = (bound - mu) / sigma
    survival = _survival(z)
    if survival < 1e-12:
        return bound
    return mu + sigma * exp(-z * z / 2.0) / sqrt(2.0 * pi) / survival


def _survival(z: float) -> float:
    return 0.5 * erfc(z / sqrt(2.0))
