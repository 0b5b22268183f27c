"""A clock that stands until it is turned."""

from __future__ import annotations


class TurnedClock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def turn(self, seconds: float) -> None:
        self.now_s += seconds
