"""What may be spent on learning: credits that requests earn, and probes of silent endpoints."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationLimits:
    """What the policy's `exploration` allows; the defaults are its own."""

    share: float = 0.02  # credits that one eligible request earns
    credits_max: float = 20.0
    probe_after_s: float = 600.0  # without a sample
    probe_nanos_per_hour: int = 10_000_000  # a cent an endpoint

    @property
    def probe_nanos_max(self) -> int:
        """One probe's part of the hour's money; `decide` sends none that costs more."""
        return int(self.probe_nanos_per_hour * min(1.0, self.probe_after_s / HOUR_S))


LIMITS_DEFAULT = ExplorationLimits()


class Credits:
    """Exploration credits of this process (reliability B.4, step 5)."""

    def __init__(self) -> None:
        self.amount = 0.0
        self.limits = LIMITS_DEFAULT

    def accrue(self) -> None:
        self.amount = min(self.limits.credits_max, self.amount + self.limits.share)

    def spend(self) -> bool:
        """Take one credit; False when less than one is there."""
        # Fifty additions of 0.02 end a hair below one.
        if self.amount < 1.0 - 1e-9:
            return False
        self.amount = max(0.0, self.amount - 1.0)
        return True


class ProbeBudget:
    """When one endpoint was probed, and what its probes cost in the running hour.

    A probe is a batch request that was coming anyway; the gateway never makes up one.
    """

    __slots__ = ("_hour_began_s", "_last_at_s", "_spent_nanos", "limits")

    def __init__(self) -> None:
        self.limits = LIMITS_DEFAULT
        self._last_at_s: float | None = None
        self._hour_began_s = 0.0
        self._spent_nanos = 0

    def is_spent(self, now_s: float) -> bool:
        """Probed within `probe_after_s`, or the hour's money is too little for one more."""
        if self._last_at_s is None:
            return False
        if now_s - self._last_at_s < self.limits.probe_after_s:
            return True
        next_nanos = self._spent_nanos + self.limits.probe_nanos_max
        is_this_hour = now_s - self._hour_began_s < HOUR_S
        return is_this_hour and next_nanos > self.limits.probe_nanos_per_hour

    def sent(self, cost_nanos: int, now_s: float) -> None:
        """One probe that is expected to cost so much."""
        if self._last_at_s is None or now_s - self._hour_began_s >= HOUR_S:
            self._hour_began_s = now_s
            self._spent_nanos = 0
        self._spent_nanos += cost_nanos
        self._last_at_s = now_s


class MinuteCounter:
    """Counts of the last fifteen minutes, a minute a slot."""

    __slots__ = ("_minute", "_slots")

    NUM_SLOTS = 15

    def __init__(self) -> None:
        self._slots = [0] * self.NUM_SLOTS
        self._minute = 0

    def add(self, now_s: float) -> None:
        self._roll(now_s)
        self._slots[self._minute % self.NUM_SLOTS] += 1

    def last(self, num_minutes: int, now_s: float) -> int:
        """Count of the running minute and those before it."""
        self._roll(now_s)
        num_minutes = min(num_minutes, self.NUM_SLOTS)
        return sum(
            self._slots[(self._minute - back) % self.NUM_SLOTS] for back in range(num_minutes)
        )

    def _roll(self, now_s: float) -> None:
        minute = int(now_s // 60.0)
        gone = minute - self._minute
        if gone <= 0:
            return
        for ahead in range(1, min(gone, self.NUM_SLOTS) + 1):
            self._slots[(self._minute + ahead) % self.NUM_SLOTS] = 0
        self._minute = minute
