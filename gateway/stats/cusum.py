"""Two-sided CUSUM: says when standardised residuals have left zero for good (Page 1954)."""

from __future__ import annotations

SLACK = 0.5  # k, in standard deviations
THRESHOLD = 5.0  # h


class Cusum:
    """State of one detector. An alarm restarts it."""

    __slots__ = ("down", "up")

    def __init__(self) -> None:
        self.up = 0.0
        self.down = 0.0

    def update(self, z: float) -> int:
        """+1 when the mean rose, −1 when it fell, 0 when there is no alarm."""
        self.up = max(0.0, self.up + z - SLACK)
        self.down = max(0.0, self.down - z - SLACK)
        if self.up <= THRESHOLD and self.down <= THRESHOLD:
            return 0
        direction = 1 if self.up > self.down else -1
        self.up = 0.0
        self.down = 0.0
        return direction
