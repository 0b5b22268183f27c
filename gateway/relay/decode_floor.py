"""Whether a stream decodes slower than the policy's floor: tokens of the last `grace` seconds."""

from __future__ import annotations

from collections import deque

BINS = 32  # the window is kept in so many steps


class DecodeFloor:
    """Sliding window over one stream, from its first token on. Times in monotonic seconds."""

    __slots__ = ("_bins", "_step_s", "_tokens", "_tokens_min", "check_at", "grace_s")

    def __init__(self, tokens_per_s: float, grace_s: float, now: float) -> None:
        self.grace_s = grace_s
        self.check_at = now + grace_s  # earlier it cannot be too slow
        self._tokens_min = tokens_per_s * grace_s
        self._step_s = grace_s / BINS
        self._bins: deque[tuple[float, float]] = deque()  # (when it began, tokens)
        self._tokens = 0.0

    def add(self, tokens: float, now: float) -> None:
        """Tokens that came now."""
        bins = self._bins
        self._tokens += tokens
        if bins and now - bins[-1][0] < self._step_s:
            bins[-1] = (bins[-1][0], bins[-1][1] + tokens)
        else:
            bins.append((now, tokens))
            self._forget(now)

    def restart(self, now: float) -> None:
        """Judge anew: for a while nothing was read, and not by the endpoint's fault."""
        self._bins.clear()
        self._tokens = 0.0
        self.check_at = now + self.grace_s

    def is_slow(self, now: float) -> bool:
        """Whether fewer tokens came than the floor asks for; sets when to ask again."""
        if now < self.check_at:
            return False
        self._forget(now)
        left = self._tokens
        if left < self._tokens_min:
            return True
        for at, tokens in self._bins:
            left -= tokens
            if left < self._tokens_min:
                # Without another token it is then: this step has left the window.
                self.check_at = max(at + self.grace_s, now) + self._step_s
                return False
        raise AssertionError("a window without tokens is slow")

    def _forget(self, now: float) -> None:
        bins, oldest = self._bins, now - self.grace_s
        while bins and bins[0][0] < oldest:
            self._tokens -= bins.popleft()[1]
        if not bins:
            self._tokens = 0.0  # rounding
