"""The circuit breaker of one endpoint: closed, open, half-open with one probe at a time."""

from __future__ import annotations

from gateway.core import Rng
from gateway.stats.beta import DecayedBeta

FAILURES_IN_ROW_MAX = 3
SUCCESS_SHARE_MIN = 0.5
SUCCESS_SAMPLES_MIN = 6.0
SUCCESS_HALF_LIFE_S = 60.0
OPEN_FIRST_S = 10.0
OPEN_MAX_S = 120.0
OPEN_JITTER = 0.2
CALM_S = 120.0  # closed for so long, the next opening starts again at 10 s
PROBE_EXPIRES_S = 130.0  # a probe without a verdict frees its place: longest first-token timeout
TURN_S = 1.0  # from one replica's probe to the next one's, about: news takes as long
PROBE_WAIT_S = 1.0  # what waiters are told while a probe is under way


class Breaker:
    """
    Opens at 3 failures in a row, or below 50 % success of at least 6 decayed samples.

    Open for 10 s × 2^k, at most 120 s, ± 20 %. Then half-open: one request may go; its success
    closes the breaker, its failure opens it for longer. Results of requests that left before the
    probe did are old news and change nothing while not closed.

    Where several replicas each have a breaker for the endpoint, one's probe is a probe for all:
    told of it by `heard`, the others close, or stay open for longer, as if it had been theirs. So
    that they do not all probe before the first one's news is round, each stays open for a random
    while more, which is the longer the more of them there are.
    """

    __slots__ = (
        "_closed_at_s", "_counts", "_failures_in_row", "_open_until_s", "_opened_at_s", "_openings",
        "_probe_at_s", "_rng", "is_closed", "num_others",
    )  # fmt: skip

    def __init__(self, rng: Rng, now_s: float) -> None:
        self._rng = rng
        self.is_closed = True
        self._counts = DecayedBeta(SUCCESS_HALF_LIFE_S, now_s)
        self._failures_in_row = 0
        self._openings = 0
        self._open_until_s = 0.0
        self._opened_at_s = 0.0
        self.num_others = 0  # replicas that probe too
        self._closed_at_s: float | None = None
        self._probe_at_s: float | None = None

    def status(self, now_s: float) -> tuple[str, float]:
        """
        ("closed" | "open" | "half_open", seconds until a request may go).

        While a probe is under way the rest are told "open": a second request would only wait.
        """
        if self.is_closed:
            return "closed", 0.0
        if now_s < self._open_until_s:
            return "open", self._open_until_s - now_s
        if self._has_probe(now_s):
            return "open", PROBE_WAIT_S
        return "half_open", 0.0

    def _has_probe(self, now_s: float) -> bool:
        return self._probe_at_s is not None and now_s < self._probe_at_s + PROBE_EXPIRES_S

    def may_send(self, now_s: float, *, in_panic: bool = False) -> bool:
        """
        Whether a request may go now; half-open, the one that asks first takes the probe's place.

        `in_panic`: every endpoint is shut and this one reopens first, so an open one lets one
        request through early.
        """
        if self.is_closed:
            return True
        if self._has_probe(now_s) or (now_s < self._open_until_s and not in_panic):
            return False
        self._probe_at_s = now_s
        return True

    def release(self, dispatched_at_s: float) -> None:
        """The request ended without a verdict (client gone, 429, the caller's own error)."""
        if self._is_probe(dispatched_at_s):
            self._probe_at_s = None

    def _is_probe(self, dispatched_at_s: float) -> bool:
        return self._probe_at_s is not None and dispatched_at_s >= self._probe_at_s

    def succeeded(self, dispatched_at_s: float, now_s: float) -> bool:
        """True when this closed the breaker."""
        if self.is_closed:
            self._failures_in_row = 0
            self._counts.add(True, now_s)
            return False
        if not self._is_probe(dispatched_at_s):
            return False
        self._close(now_s)
        return True

    def failed(self, dispatched_at_s: float, now_s: float) -> bool:
        """True when this opened the breaker, or kept it open for longer."""
        if self.is_closed:
            self._failures_in_row += 1
            self._counts.add(False, now_s)
            if self._failures_in_row < FAILURES_IN_ROW_MAX and not self._is_failing():
                return False
            is_calm = self._closed_at_s is None or now_s - self._closed_at_s >= CALM_S
            self._open(now_s, 0 if is_calm else self._openings)
            return True
        if not self._is_probe(dispatched_at_s):
            return False
        self._open(now_s, self._openings)
        return True

    def heard(self, is_success: bool, dispatched_at_s: float, now_s: float) -> bool:
        """Another replica's result. True when this opened or closed it, or kept it open."""
        if self.is_closed:
            judge = self.succeeded if is_success else self.failed
            return judge(dispatched_at_s, now_s)
        if not self._is_others_probe(dispatched_at_s):
            return False
        if is_success:
            self._close(now_s)
        else:
            self._open(now_s, self._openings)
        return True

    def _is_others_probe(self, dispatched_at_s: float) -> bool:
        """Soon after an opening some have not heard of it yet: what they send is no probe."""
        return dispatched_at_s >= self._opened_at_s + OPEN_FIRST_S * (1.0 - OPEN_JITTER)

    def _close(self, now_s: float) -> None:
        self.is_closed = True
        self._closed_at_s = now_s
        self._probe_at_s = None
        self._failures_in_row = 0
        self._counts.clear()

    def _is_failing(self) -> bool:
        counts = self._counts
        return counts.n >= SUCCESS_SAMPLES_MIN and counts.successes < SUCCESS_SHARE_MIN * counts.n

    def _open(self, now_s: float, doublings: int) -> None:
        open_s: float = min(OPEN_MAX_S, OPEN_FIRST_S * 2.0 ** min(doublings, 16))
        jitter = 1.0 + OPEN_JITTER * (2.0 * self._rng.random() - 1.0)
        turn_s = self._rng.random() * self.num_others * TURN_S if self.num_others else 0.0
        self.is_closed = False
        self._opened_at_s = now_s
        self._open_until_s = now_s + open_s * jitter + turn_s
        self._openings = doublings + 1
        self._probe_at_s = None
