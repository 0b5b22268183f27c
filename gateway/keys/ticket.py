"""One admitted request under the limits of its key."""

from __future__ import annotations

from collections.abc import Callable

from gateway.wire.limits_headers import RateLimitState


class Ticket:
    """
    A place under the key's limits, from `admit` until `close`.

    `state` is what the rate-limit headers say; None when the key has no limit a minute. Both
    methods are plain calls, so that they work in a `finally` while the task is cancelled.
    """

    __slots__ = ("_is_closed", "_on_close", "_tokens", "_tokens_used", "state")

    def __init__(
        self,
        state: RateLimitState | None = None,
        *,
        tokens: int = 0,
        on_close: Callable[[int], None] | None = None,
    ) -> None:
        self.state = state
        self._tokens = tokens
        self._tokens_used = tokens
        self._on_close = on_close  # called with the tokens used beyond those taken
        self._is_closed = False

    def settle(self, tokens_used: int) -> None:
        """What the request came to; counted at `close`. Without it the estimate holds."""
        self._tokens_used = max(0, tokens_used)

    def close(self) -> None:
        """Free the place and correct the tokens, once; later calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._on_close is not None:
            self._on_close(self._tokens_used - self._tokens)
