"""What is believed of one speed of one endpoint: a fast mean over a slow one, and its alarm."""

from __future__ import annotations

import msgspec

from gateway.stats.cusum import Cusum
from gateway.stats.decayed import DecayedSums, Gaussian, Prior, shrunk

HALF_LIFE_MIN_S = 60.0
HALF_LIFE_MAX_S = 900.0
HALF_LIFE_SAMPLES = 8.0  # a quiet endpoint remembers about this many
SLOW_HALF_LIFE_S = 6 * 3600.0
FAST_N0 = 3.0
SLOW_N0 = 5.0
CLIP_SIGMAS = 3.0
ALARM_WEIGHT_MAX = 2.0  # samples an alarm leaves
BASELINE_WEIGHT_MIN = 10.0  # before, a change cannot be told from learning
PEER_WEIGHT_MIN = 3.0
_GAP_SHARE = 1.0 / 8.0


class SumsState(msgspec.Struct, frozen=True):
    s0: float
    s1: float
    s2: float
    age_s: float


class BeliefState(msgspec.Struct, frozen=True):
    fast: SumsState
    slow: SumsState
    gap_s: float


class Belief:
    """
    Mean and spread of a logarithm (of seconds, or of tokens per second): reliability B.2.

    The fast sums (half-life 60–900 s) shrink to the slow ones (6 h), these to the centre, the
    median of the model's peers or a generic start.
    """

    __slots__ = (
        "_centre", "_cusum", "_gap_s", "_known", "_known_at_s", "_last_at_s", "_sigma_min",
        "_sigma_start", "fast", "slow",
    )  # fmt: skip

    def __init__(self, centre: float, sigma_start: float, sigma_min: float, now_s: float) -> None:
        self._centre = centre
        self._sigma_start = sigma_start
        self._sigma_min = sigma_min
        self.fast = DecayedSums(now_s)
        self.slow = DecayedSums(now_s)
        self._cusum = Cusum()
        self._gap_s = HALF_LIFE_MIN_S / HALF_LIFE_SAMPLES
        self._last_at_s: float | None = None
        self._known: Gaussian | None = None  # the belief as of `_known_at_s`, if nothing came since
        self._known_at_s = now_s

    @property
    def half_life_s(self) -> float:
        """60 s while samples are plenty, longer where they are rare."""
        return min(HALF_LIFE_MAX_S, max(HALF_LIFE_MIN_S, HALF_LIFE_SAMPLES * self._gap_s))

    def at(self, now_s: float) -> Gaussian:
        """The belief as of now; old samples have lost their weight, not their meaning."""
        if self._known is not None and now_s == self._known_at_s:
            return self._known
        fast, slow = self.fast, self.slow
        fast.decay(now_s, self.half_life_s)
        slow.decay(now_s, SLOW_HALF_LIFE_S)
        mu0 = (slow.s1 + SLOW_N0 * self._centre) / (slow.s0 + SLOW_N0)
        prior = Prior(mu0, FAST_N0, self._sigma_start, self._sigma_min)
        self._known = shrunk(fast.s0, fast.s1, fast.s2, prior)
        self._known_at_s = now_s
        return self._known

    def set_centre(self, centre: float) -> None:
        """What the slow mean shrinks to."""
        self._centre = centre
        self._known = None

    def observe(self, x: float, weight: float, now_s: float) -> int:
        """
        Take in one sample; ±1 when the mean has changed for good, else 0.

        An outlier is clipped to mu ± 3 sigma: it may move the mean, not throw it.
        """
        if self._last_at_s is not None:
            self._gap_s += _GAP_SHARE * (max(0.0, now_s - self._last_at_s) - self._gap_s)
        self._last_at_s = now_s
        now = self.at(now_s)
        z = min(CLIP_SIGMAS, max(-CLIP_SIGMAS, (x - now.mu) / now.sigma))
        alarm = self._cusum.update(z) if self.slow.s0 >= BASELINE_WEIGHT_MIN else 0
        if alarm:
            self.fast.cap_weight(ALARM_WEIGHT_MAX)
        clipped = now.mu + z * now.sigma
        self.fast.add(clipped, weight)
        self.slow.add(clipped, weight)
        self._known = None
        return alarm

    def shift(self, delta: float) -> None:
        """The quantity was redefined: every x becomes x + delta."""
        self.fast.shift(delta)
        self.slow.shift(delta)
        self._known = None

    def doubt(self, share_kept: float) -> None:
        """Earlier samples of this kind have turned out to be worth less."""
        self.fast.scale(share_kept)
        self.slow.scale(share_kept)
        self._known = None

    @property
    def slow_mean(self) -> float | None:
        """What peers may learn from; None while it rests on too little."""
        return self.slow.mean if self.slow.s0 >= PEER_WEIGHT_MIN else None

    def export(self, now_s: float) -> BeliefState:
        return BeliefState(
            _export_sums(self.fast, now_s), _export_sums(self.slow, now_s), self._gap_s
        )

    def load(self, state: BeliefState, now_s: float, away_s: float) -> None:
        """Take over an export of `away_s` ago."""
        self._gap_s = state.gap_s
        self._last_at_s = None
        self._known = None
        _load_sums(self.fast, state.fast, now_s - away_s)
        _load_sums(self.slow, state.slow, now_s - away_s)


def _export_sums(sums: DecayedSums, now_s: float) -> SumsState:
    return SumsState(sums.s0, sums.s1, sums.s2, max(0.0, now_s - sums.at_s))


def _load_sums(sums: DecayedSums, state: SumsState, then_s: float) -> None:
    sums.s0, sums.s1, sums.s2 = max(0.0, state.s0), state.s1, max(0.0, state.s2)
    sums.at_s = then_s - state.age_s
