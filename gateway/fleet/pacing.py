"""How many requests a minute one endpoint takes, learned from its refusals.

A limit on requests a minute is no limit on requests at once: cutting concurrency does not obey it,
and coming back as soon as one place in the minute is free runs into the next refusal. What the last
sixty seconds held when the refusal came is what fits; that is kept to, and tried again gently.
"""

from __future__ import annotations

WINDOW_S = 60
MINUTE_RETRY_AFTER_S = 1.0  # who asks for a second and more speaks of a time window
MINUTE_REQUESTS_MIN = 10  # fewer in the minute, and no limit on them can be told
GROWTH_FIRST = 0.05  # of the cap, and at least one request, after a minute without a refusal …
GROWTH_MAX = 1.0  # … doubling with each such minute: what was full once need not stay so


class Pace:
    """Starts of the last sixty seconds, and the cap on them once there is one."""

    __slots__ = ("_grows_at_s", "_growth", "_has_filled", "_second", "_slots", "_total", "cap")

    def __init__(self) -> None:
        self.cap: float | None = None  # requests in any sixty seconds; None = none known
        self._slots = [0] * WINDOW_S
        self._second = 0
        self._total = 0
        self._grows_at_s = 0.0
        self._growth = GROWTH_FIRST
        self._has_filled = False  # since it last grew; an idle endpoint proves nothing

    def started(self, now_s: float) -> None:
        self._roll(now_s)
        self._slots[self._second % WINDOW_S] += 1
        self._total += 1
        if self.cap is not None and self._total >= self.cap:
            self._has_filled = True

    def num(self, now_s: float) -> int:
        """Starts of the last sixty seconds, those pushed back left out."""
        self._roll(now_s)
        return self._total

    def refused(self, now_s: float, *, is_minute: bool) -> None:
        """One of those that started was pushed back: it took no place in the minute."""
        self._roll(now_s)
        for back in range(WINDOW_S):
            slot = (self._second - back) % WINDOW_S
            if self._slots[slot]:
                self._slots[slot] -= 1
                self._total -= 1
                break
        if not is_minute:
            return
        fitted = float(max(1, self._total))
        self.cap = fitted if self.cap is None else min(self.cap, fitted)
        self._grows_at_s = now_s + WINDOW_S
        self._growth = GROWTH_FIRST

    def wait_s(self, now_s: float) -> float:
        """Seconds until the minute has room again; 0 while it has."""
        if self.cap is None:
            return 0.0
        self._roll(now_s)
        if now_s >= self._grows_at_s:
            self._grows_at_s = now_s + WINDOW_S
            if self._has_filled:
                self._has_filled = False
                self.cap += max(1.0, self._growth * self.cap)
                self._growth = min(GROWTH_MAX, 2.0 * self._growth)
        if self._total < self.cap:
            return 0.0
        for ahead in range(1, WINDOW_S + 1):
            if self._slots[(self._second + ahead) % WINDOW_S]:
                return ahead - (now_s - int(now_s))
        return 0.0

    def _roll(self, now_s: float) -> None:
        second = int(now_s)
        gone = second - self._second
        if gone <= 0:
            return
        if gone >= WINDOW_S:
            self._slots = [0] * WINDOW_S
            self._total = 0
        else:
            for ahead in range(1, gone + 1):
                slot = (self._second + ahead) % WINDOW_S
                self._total -= self._slots[slot]
                self._slots[slot] = 0
        self._second = second
