"""What may be spent on learning: credits that requests earn, and probes of silent endpoints."""

from __future__ import annotations

CREDIT_SHARE = 0.02  # of eligible requests
CREDITS_MAX = 20.0
PROBE_AFTER_S = 600.0  # without a sample
PROBE_NANOS_PER_HOUR_MAX = 10_000_000  # one cent an endpoint and hour


class Credits:
    """Exploration credits of this process (reliability B.4, step 5)."""

    def __init__(self) -> None:
        self.amount = 0.0

    def accrue(self) -> None:
        self.amount = min(CREDITS_MAX, self.amount + CREDIT_SHARE)

    def spend(self) -> bool:
        """Take one credit; False when less than one is there."""
        # Fifty additions of 0.02 end a hair below one.
        if self.amount < 1.0 - 1e-9:
            return False
        self.amount = max(0.0, self.amount - 1.0)
        return True


class ProbeBudget:
    """When one endpoint was probed, and what its probes cost in the running hour."""

    __slots__ = ("_hour_began_s", "_last_at_s", "_spent_nanos")

    def __init__(self, now_s: float) -> None:
        self._last_at_s = now_s
        self._hour_began_s = now_s
        self._spent_nanos = 0

    def is_due(self, sampled_at_s: float | None, now_s: float) -> bool:
        """Ten minutes without sample and without probe, and the hour's cent not used up."""
        quiet_since_s = max(self._last_at_s, sampled_at_s if sampled_at_s is not None else 0.0)
        if now_s - quiet_since_s < PROBE_AFTER_S:
            return False
        self._roll(now_s)
        return self._spent_nanos < PROBE_NANOS_PER_HOUR_MAX

    def leaves(self, cost_nanos: int, now_s: float) -> bool:
        """Whether a probe of this cost still fits the hour."""
        self._roll(now_s)
        return self._spent_nanos + cost_nanos <= PROBE_NANOS_PER_HOUR_MAX

    def sent(self, cost_nanos: int, now_s: float) -> None:
        self._roll(now_s)
        self._spent_nanos += cost_nanos
        self._last_at_s = now_s

    def _roll(self, now_s: float) -> None:
        if now_s - self._hour_began_s >= 3600.0:
            self._hour_began_s = now_s
            self._spent_nanos = 0


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
