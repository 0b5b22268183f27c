"""Limits of a key: requests and tokens a minute, requests at once. Alone, or shared by Redis.

Redis keeps the shared windows; when it does not answer, each process carries on with
limit / replicas (never more than the limit together) and asks again a second later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from gateway.core import Caller
from gateway.errors import RateLimited
from gateway.keys.local_limits import LocalLimits, Verdict
from gateway.keys.ticket import Ticket
from gateway.store.redis import end_if_cancelled, load_script
from gateway.wire.limits_headers import RateLimitState

if TYPE_CHECKING:
    from redis.asyncio import Redis

REDIS_WAIT_S = 0.25
REDIS_AWAY_S = 1.0
LEASE_S = 30.0
RENEW_S = 10.0
CONCURRENCY_RETRY_S = 1.0
CLOSES_MAX = 100_000
CLOSES_PER_BATCH = 256
TICKETS_PER_RENEWAL = 500
_EXCEEDED = ("", "requests", "tokens", "concurrency")

_log = structlog.get_logger(__name__)


class _Close(msgspec.Struct, frozen=True):
    """A request that ended and that Redis must still hear of."""

    keys: tuple[str, str]
    tokens_per_minute: int
    extra_tokens: int
    ticket_id: str


class Limits:
    """
    Admits requests. With Redis, `run()` must be running: it reports the ends of requests.

    A key without limits costs nothing here and never touches Redis.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        redis: Redis | None = None,
        replicas: int = 1,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._redis = redis
        self._new_id = new_id
        # Without Redis a process knows only of itself, and is alone (SQLite) or told how many.
        self._local = LocalLimits(clock=clock, wall_clock=wall_clock, replicas=replicas)
        self._away_until_s = 0.0
        self._closes: deque[_Close] = deque(maxlen=CLOSES_MAX)
        self._has_closes = asyncio.Event()
        self._open: dict[str, str] = {}  # ticket → its sorted set, for renewal
        if redis is not None:
            self._admit_script = load_script(redis, "limits_admit")
            self._close_script = load_script(redis, "limits_close")
            self._renew_script = load_script(redis, "limits_renew")

    async def admit(self, caller: Caller, tokens: int) -> Ticket:
        """
        A place for a request of about `tokens` tokens; close the ticket in any case.

        Raises RateLimited whose `limit_state` is what the headers say.
        """
        if (
            caller.requests_per_minute is None
            and caller.tokens_per_minute is None
            and caller.concurrency_max is None
        ):
            return Ticket()
        _refuse_too_large(caller, tokens)
        ticket_id = ""
        verdict: Verdict | None = None
        if self._redis is not None and self._clock() >= self._away_until_s:
            ticket_id = self._new_id()
            verdict = await self._ask_redis(caller, tokens, ticket_id)
        if verdict is None:
            ticket_id = ""
            verdict = self._local.admit(caller, tokens)
        if verdict.exceeded:
            raise _refusal(caller, verdict)

        def on_close(extra_tokens: int) -> None:
            self._local.close(caller, extra_tokens)
            if ticket_id:
                self._report_close(caller, ticket_id, extra_tokens)

        return Ticket(verdict.state, tokens=tokens, on_close=on_close)

    @property
    def is_shared(self) -> bool:
        """Redis answers, or has not been asked yet; False = each process is on its own."""
        return self._redis is not None and self._clock() >= self._away_until_s

    @property
    def num_unreported(self) -> int:
        """Ends of requests that Redis has not heard of; at most CLOSES_MAX."""
        return len(self._closes)

    async def run(self) -> None:
        """Tell Redis of ended and of still running requests, until cancelled."""
        if self._redis is None:
            return
        renew_at_s = self._clock() + RENEW_S
        while True:
            end_if_cancelled()
            if self._clock() >= renew_at_s:
                renew_at_s = self._clock() + RENEW_S
                await self._guarded(self._renew())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, renew_at_s - self._clock())):
                    await self._has_closes.wait()
            if self._has_closes.is_set() and not await self.flush():
                await asyncio.sleep(REDIS_AWAY_S)

    async def flush(self) -> bool:
        """Send what `run` still has to tell; False when Redis did not take it."""
        while self._closes:
            batch = [
                self._closes.popleft() for _ in range(min(CLOSES_PER_BATCH, len(self._closes)))
            ]
            if not await self._guarded(self._send_closes(batch)):
                # Kept for later, as many as there is room for; leases end by themselves anyway.
                room = CLOSES_MAX - len(self._closes)
                self._closes.extendleft(reversed(batch[:room]))
                return False
        self._has_closes.clear()
        return True

    async def _ask_redis(self, caller: Caller, tokens: int, ticket_id: str) -> Verdict | None:
        requests_key, tokens_key, open_key = _redis_keys(caller)
        answer: list[int] = []

        async def ask() -> None:
            answer.extend(
                await self._admit_script(
                    keys=[requests_key, tokens_key, open_key],
                    args=[
                        caller.requests_per_minute or 0,
                        caller.tokens_per_minute or 0,
                        tokens,
                        caller.concurrency_max or 0,
                        ticket_id,
                        int(LEASE_S * 1e6),
                    ],
                )
            )

        is_heard = False
        try:
            is_heard = await self._guarded(ask())
        finally:
            if not is_heard:  # late or cancelled: it may have taken a place all the same
                self._report_close(caller, ticket_id, 0)
        if not is_heard:
            return None
        verdict = _read_verdict(caller, answer, self._wall_clock())
        if not verdict.exceeded:
            self._local.follow(caller, tokens)
            if caller.concurrency_max is not None:
                self._open[ticket_id] = open_key
        return verdict

    def _report_close(self, caller: Caller, ticket_id: str, extra_tokens: int) -> None:
        self._open.pop(ticket_id, None)
        if caller.concurrency_max is None and not extra_tokens:
            return
        _, tokens_key, open_key = _redis_keys(caller)
        self._closes.append(
            _Close(
                keys=(tokens_key, open_key),
                tokens_per_minute=caller.tokens_per_minute or 0,
                extra_tokens=extra_tokens,
                ticket_id=ticket_id,
            )
        )
        self._has_closes.set()

    async def _send_closes(self, batch: list[_Close]) -> None:
        assert self._redis is not None
        async with self._redis.pipeline(transaction=False) as pipe:
            for close in batch:
                args = [close.tokens_per_minute, close.extra_tokens, close.ticket_id]
                await self._close_script(keys=list(close.keys), args=args, client=pipe)
            await pipe.execute()

    async def _renew(self) -> None:
        by_set: dict[str, list[str]] = {}
        for ticket_id, open_key in self._open.items():
            by_set.setdefault(open_key, []).append(ticket_id)
        for open_key, ticket_ids in by_set.items():
            for start in range(0, len(ticket_ids), TICKETS_PER_RENEWAL):
                part = ticket_ids[start : start + TICKETS_PER_RENEWAL]
                await self._renew_script(keys=[open_key], args=[int(LEASE_S * 1e6), *part])

    async def _guarded(self, work: Any) -> bool:
        # `redis` is optional, so its errors can be named only where it is known to be there.
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(REDIS_WAIT_S):
                await work
        except (RedisError, OSError, TimeoutError) as e:
            if self._clock() >= self._away_until_s:
                _log.warning("redis_away", error=f"{type(e).__name__}: {e}"[:200])
            self._away_until_s = self._clock() + REDIS_AWAY_S
            return False
        return True


def _redis_keys(caller: Caller) -> tuple[str, str, str]:
    # The braces keep all keys of a tenant in one slot of a cluster, as a script needs.
    stem = f"looprouter:{{{caller.tenant_id}}}:{caller.key_id}"
    return f"{stem}:requests", f"{stem}:tokens", f"{stem}:open"


def _read_verdict(caller: Caller, answer: list[int], now_unix_s: float) -> Verdict:
    refused, wait_us, requests_left, requests_full_us, tokens_left, tokens_full_us = answer
    state = None
    if caller.requests_per_minute is not None or caller.tokens_per_minute is not None:
        state = RateLimitState(
            now_unix_s=now_unix_s,
            limit_requests=caller.requests_per_minute,
            remaining_requests=requests_left,
            reset_requests_s=requests_full_us / 1e6,
            limit_tokens=caller.tokens_per_minute,
            remaining_tokens=tokens_left,
            reset_tokens_s=tokens_full_us / 1e6,
        )
    return Verdict(state, _EXCEEDED[refused], wait_us / 1e6)


def _refuse_too_large(caller: Caller, tokens: int) -> None:
    limit = caller.tokens_per_minute
    if limit is not None and tokens > limit:
        error = RateLimited(
            f"this request has about {tokens} tokens, and the key allows {limit} a minute, so it "
            "can never be served; shorten it or raise the key's limit",
            code="request_exceeds_limit",
        )
        error.should_retry = False
        raise error


def _refusal(caller: Caller, verdict: Verdict) -> RateLimited:
    exceeded = verdict.exceeded
    if exceeded == "concurrency":
        wait_s = CONCURRENCY_RETRY_S
        message = (
            f"this key allows {caller.concurrency_max} requests at once and that many are running; "
            "wait for one to end"
        )
    else:
        wait_s = verdict.wait_s
        limit = caller.requests_per_minute if exceeded == "requests" else caller.tokens_per_minute
        message = f"this key allows {limit} {exceeded} a minute; try again in {wait_s:.3g} s"
    error = RateLimited(message, retry_after_s=wait_s)
    if verdict.state is not None:
        error.limit_state = msgspec.structs.replace(
            verdict.state, retry_after_s=wait_s, exceeded=exceeded
        )
    return error
