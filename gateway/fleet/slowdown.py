"""From how many requests at once an endpoint slows down, learned from what it did under load.

The law is the score's own: alone a request takes T, with k others in flight max(1, (k + 1)/P)·T.
P is fitted by trying a ladder of values side by side: of each, how much the logarithms of times
still scatter once they are freed of that load. The value that explains most wins; where no load was
heavy enough to tell, the highest does, so nothing is assumed before it was seen.
"""

from __future__ import annotations

import math

LADDER = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 16.0, 23.0, 32.0, 45.0, 64.0, 91.0, 128.0)
NONE = math.inf
HALF_LIFE_SAMPLES = 150.0  # of the scatter
MEAN_SAMPLES = 30.0  # of each value's own mean, so that a slow hour is not taken for load
SAMPLES_MIN = 12
GAIN_MIN = 0.03  # of the scatter, that a slow-down must explain …
CHANCE = 8.0  # … and more while samples are few: about the 99.5 % point of chi-square
STICK = 0.02  # of the scatter, that another value must win over the present one
PROVEN_START = 8.0
PROVEN_FACTOR = 1.5  # beyond so many times the load that went well, one is careful
PROVEN_FADE = 0.5 ** (1.0 / 500.0)
_CLIP = 1.5  # in ln: a single outlier must not move the ladder
_KEEP = 0.5 ** (1.0 / HALF_LIFE_SAMPLES)


class Slowdown:
    """The fitted P of one endpoint, and the load that it has been seen to carry."""

    __slots__ = ("_costs", "_means", "_n", "_proven", "_seen", "places")

    def __init__(self) -> None:
        self.places = NONE
        self._n = 0
        # Two kinds of times are measured, TTFT and decode; each has means of its own.
        self._means = ([0.0] * (len(LADDER) + 1), [0.0] * (len(LADDER) + 1))
        self._seen = [0, 0]
        self._costs = [0.0] * (len(LADDER) + 1)
        self._proven = PROVEN_START

    def ln_load(self, in_flight: float) -> float:
        """ln of the factor on all times with so many in flight, the request itself among them."""
        return math.log(in_flight / self.places) if in_flight > self.places else 0.0

    @property
    def places_now(self) -> float:
        """P for a decision: fitted, but not far beyond the load that was seen to go well."""
        return min(self.places, PROVEN_FACTOR * self._proven)

    def observe(self, ln_time: float, in_flight: float, *, is_decode: bool) -> None:
        """`ln_time`: ln of a time freed of lengths (of TTFT, or of seconds a token)."""
        self._n += 1
        self._seen[is_decode] += 1
        self._proven = max(in_flight, self._proven * PROVEN_FADE, PROVEN_START)
        share = max(1.0 / MEAN_SAMPLES, 1.0 / self._seen[is_decode])
        means, costs = self._means[is_decode], self._costs
        ln_k = math.log(in_flight) if in_flight > 1.0 else 0.0
        for idx, ln_places in enumerate(_LN_LADDER):
            freed = ln_time - (ln_k - ln_places if ln_k > ln_places else 0.0)
            error = freed - means[idx]
            means[idx] += share * error
            if error > _CLIP:
                error = _CLIP
            elif error < -_CLIP:
                error = -_CLIP
            costs[idx] = costs[idx] * _KEEP + error * error
        if self._n >= SAMPLES_MIN:
            self._choose()

    def _choose(self) -> None:
        costs = self._costs
        best = min(range(len(costs) - 1, -1, -1), key=costs.__getitem__)
        # A value must explain more than as many samples would seem to by chance.
        gain = max(GAIN_MIN, CHANCE / min(self._n, 2.0 * HALF_LIFE_SAMPLES))
        if costs[best] > costs[-1] * (1.0 - gain):
            self.places = NONE
        elif costs[best] < costs[_INDEX[self.places]] * (1.0 - STICK):
            self.places = _VALUES[best]


_VALUES = (*LADDER, NONE)
_LN_LADDER = tuple(math.log(value) if value < NONE else NONE for value in _VALUES)
_INDEX = {value: idx for idx, value in enumerate(_VALUES)}
