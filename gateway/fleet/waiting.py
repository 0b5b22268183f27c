"""Whether an endpoint has gone quiet: streams wait there, and none has got its first token lately.

A hang is seen by its time-outs only after ten seconds and more, and all that time a quick endpoint
would be sent everything. Streams that wait tell sooner: where several do and nothing has come for
longer than its slowest first tokens take, nobody else is sent until one gets an answer.
"""

from __future__ import annotations

WAITING_MIN = 3  # one or two may simply be slow
QUIET_MIN_S = 2.0
QUIET_FACTOR = 1.5  # of the p99 of its TTFT


class Waiting:
    """Streams without a first token, and when the endpoint last gave a sign of life."""

    __slots__ = ("_sign_at_s", "num")

    def __init__(self) -> None:
        self.num = 0
        self._sign_at_s = 0.0

    def began(self, now_s: float) -> None:
        if self.num == 0:
            self._sign_at_s = now_s
        self.num += 1

    def first_token(self, now_s: float) -> None:
        self._sign_at_s = now_s
        self.num = max(0, self.num - 1)

    def ended(self) -> None:
        """Without a first token."""
        self.num = max(0, self.num - 1)

    def is_quiet(self, now_s: float, ttft_p99_s: float) -> bool:
        """Nothing has come for too long while several wait."""
        quiet_s = max(QUIET_MIN_S, QUIET_FACTOR * ttft_p99_s)
        return self.num >= WAITING_MIN and now_s - self._sign_at_s > quiet_s
