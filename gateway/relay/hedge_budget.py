"""How many hedges a process may send: the policy's share of the requests it was asked, no more."""

from __future__ import annotations

SAVED_MAX = 5.0  # a slow minute after a calm day must not double the load


class HedgeBudget:
    """Every request earns its policy's share of a hedge; a hedge spends a whole one."""

    def __init__(self) -> None:
        self.num_hedges = 0
        self.num_denied = 0
        self._saved = 0.0

    def begin(self, share_max: float) -> None:
        """A request has begun; once each, whether or not it could be hedged."""
        self._saved = min(SAVED_MAX, self._saved + share_max)

    def take(self) -> bool:
        """Spend one permit; False when there is none."""
        # Fifty additions of 0.02 end a hair below one.
        if self._saved < 1.0 - 1e-9:
            self.num_denied += 1
            return False
        self._saved = max(0.0, self._saved - 1.0)
        self.num_hedges += 1
        return True
