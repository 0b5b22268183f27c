"""Limits of keys in the memory of this process: the whole limit, or its share of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from gateway.core import Caller
from gateway.errors import Overloaded
from gateway.keys import window
from gateway.keys.window import WINDOW_S
from gateway.wire.limits_headers import RateLimitState

KEYS_MAX = 50_000
_EVICTIONS_TRIED_MAX = 16


class _Counters(msgspec.Struct):
    requests_full_at_s: float = 0.0
    tokens_full_at_s: float = 0.0
    num_open: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """Whether a request was admitted. `exceeded` names the limit that refused it."""

    state: RateLimitState | None
    exceeded: str = ""  # "" = admitted | "requests" | "tokens" | "concurrency"
    wait_s: float = 0.0


class LocalLimits:
    """
    GCRA windows and open requests by key. `replicas` processes each allow limit / replicas.

    A key may take a cost above its share when its window is full, and then waits it off: with
    many replicas a share may be less than one request.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        replicas: int = 1,
        keys_max: int = KEYS_MAX,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._replicas = replicas
        self._keys_max = keys_max
        self._counters: OrderedDict[str, _Counters] = OrderedDict()

    def admit(self, caller: Caller, tokens: int) -> Verdict:
        """Take the request's place under all limits of its key, or none of them."""
        now_s = self._clock()
        counters = self._of(caller.key_id)
        rpm, tpm = self._share(caller.requests_per_minute), self._share(caller.tokens_per_minute)
        exceeded, wait_s = "", 0.0
        if rpm is not None:
            cost = min(1.0, rpm)
            wait_s = window.wait_s(counters.requests_full_at_s, now_s, limit=rpm, cost=cost)
            exceeded = "requests" if wait_s else ""
        if tpm is not None:
            cost = min(float(tokens), tpm)
            tokens_wait_s = window.wait_s(counters.tokens_full_at_s, now_s, limit=tpm, cost=cost)
            if tokens_wait_s > wait_s:
                exceeded, wait_s = "tokens", tokens_wait_s
        if not exceeded and self._is_full(caller, counters):
            exceeded = "concurrency"
        if not exceeded:
            counters.num_open += 1
            if rpm is not None:
                counters.requests_full_at_s = window.taken(
                    counters.requests_full_at_s, now_s, limit=rpm, cost=1.0
                )
            if tpm is not None:
                counters.tokens_full_at_s = window.taken(
                    counters.tokens_full_at_s, now_s, limit=tpm, cost=tokens
                )
        return Verdict(self._state(caller, counters, now_s), exceeded, wait_s)

    def follow(self, caller: Caller, tokens: int) -> None:
        """Count a request that Redis admitted, so that its loss opens no fresh window here."""
        now_s = self._clock()
        counters = self._of(caller.key_id)
        counters.num_open += 1
        # Redis may rightly let this process have more than its share: an empty window at worst.
        rpm, tpm = self._share(caller.requests_per_minute), self._share(caller.tokens_per_minute)
        if rpm is not None:
            full_at_s = window.taken(counters.requests_full_at_s, now_s, limit=rpm, cost=1.0)
            counters.requests_full_at_s = min(full_at_s, now_s + WINDOW_S)
        if tpm is not None:
            full_at_s = window.taken(counters.tokens_full_at_s, now_s, limit=tpm, cost=tokens)
            counters.tokens_full_at_s = min(full_at_s, now_s + WINDOW_S)

    def close(self, caller: Caller, extra_tokens: int) -> None:
        """Free a place taken by `admit` or `follow`, and correct its tokens."""
        counters = self._counters.get(caller.key_id)
        assert counters is not None
        assert counters.num_open > 0
        counters.num_open -= 1
        tpm = self._share(caller.tokens_per_minute)
        if tpm is not None and extra_tokens:
            counters.tokens_full_at_s = window.taken(
                counters.tokens_full_at_s, self._clock(), limit=tpm, cost=extra_tokens
            )

    def num_open(self, key_id: str) -> int:
        counters = self._counters.get(key_id)
        return counters.num_open if counters is not None else 0

    def _share(self, limit: int | None) -> float | None:
        return None if limit is None else limit / self._replicas

    def _is_full(self, caller: Caller, counters: _Counters) -> bool:
        limit = caller.concurrency_max
        return limit is not None and counters.num_open >= max(1, limit // self._replicas)

    def _state(self, caller: Caller, counters: _Counters, now_s: float) -> RateLimitState | None:
        if caller.requests_per_minute is None and caller.tokens_per_minute is None:
            return None
        rpm, tpm = self._share(caller.requests_per_minute), self._share(caller.tokens_per_minute)
        requests_at_s, tokens_at_s = counters.requests_full_at_s, counters.tokens_full_at_s
        return RateLimitState(
            now_unix_s=self._wall_clock(),
            limit_requests=caller.requests_per_minute,
            remaining_requests=0 if rpm is None else window.left(requests_at_s, now_s, limit=rpm),
            reset_requests_s=max(0.0, requests_at_s - now_s),
            limit_tokens=caller.tokens_per_minute,
            remaining_tokens=0 if tpm is None else window.left(tokens_at_s, now_s, limit=tpm),
            reset_tokens_s=max(0.0, tokens_at_s - now_s),
        )

    def _of(self, key_id: str) -> _Counters:
        counters = self._counters.get(key_id)
        if counters is None:
            if len(self._counters) >= self._keys_max:
                self._evict()
            counters = self._counters[key_id] = _Counters()
        else:
            self._counters.move_to_end(key_id)
        return counters

    def _evict(self) -> None:
        # The key seen longest ago that has no open request. Its windows are most likely full
        # again, and then nothing is forgotten.
        for _ in range(_EVICTIONS_TRIED_MAX):
            key_id, counters = next(iter(self._counters.items()))
            if counters.num_open == 0:
                del self._counters[key_id]
                return
            self._counters.move_to_end(key_id)
        raise Overloaded(
            f"more than {self._keys_max} API keys with limits are in use at once",
            code="too_many_keys",
            retry_after_s=1.0,
        )
