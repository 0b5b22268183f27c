"""Numbers that look random and follow from a seed, at a cost that a single decision can bear.

`random.Random(seed)` fills 2.5 kB of state before its first number, which takes as long as a whole
decision. SplitMix64 (Steele, Lea and Flood 2014: an odd step, then a mixing function) has one word.
"""

from __future__ import annotations

from math import cos, log, sqrt, tau

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_STEP = 0x9E37_79B9_7F4A_7C15  # 2^64 / golden ratio
_TO_UNIT = 2.0**-53


class Seeded:
    """A small generator, equal for equal seeds on every machine; no use for secrets."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def random(self) -> float:
        """Uniform in [0, 1), with 53 bits."""
        self._state = x = (self._state + _STEP) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
        return ((x ^ (x >> 31)) >> 11) * _TO_UNIT

    def gauss(self, mu: float, sigma: float) -> float:
        """Normal, by Box and Muller."""
        radius = sqrt(-2.0 * log(1.0 - self.random()))
        return mu + sigma * radius * cos(tau * self.random())
