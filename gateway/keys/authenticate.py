"""Credential → Caller: one function for every form, from memory after the first time."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import msgspec
from cachetools import LRUCache
from sqlalchemy.exc import SQLAlchemyError

from gateway.core import Caller
from gateway.errors import Overloaded, Unauthenticated
from gateway.keys.credentials import credential
from gateway.keys.virtual_key import MalformedKey, hash_secret, parse
from gateway.store.engine import Store
from gateway.store.tenancy import StoredKey, find_stored_key

KNOWN_MAX = 20_000
UNKNOWN_MAX = 20_000
# How long a key is believed when no change was heard of: the bound on a revocation that
# the watcher missed, and on serving while the database is away.
FRESH_S = 30.0
# Look-ups of ids never seen. Keys seen before are looked up again whatever strangers do.
MISSES_PER_S = 50.0
MISSES_BURST = 200.0
LOOKUP_WAIT_S = 5.0

_NO_HASH = bytes(32)


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one public id. One that does not exist has hashes nothing matches."""

    secret_hash: bytes = _NO_HASH
    previous_hash: bytes = _NO_HASH
    previous_expires_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    caller: Caller | None = None
    generation: int = 0
    fresh_until_s: float = 0.0


class _Proven(msgspec.Struct, frozen=True, kw_only=True):
    """A credential whose secret was right, and until when that need not be looked at again."""

    caller: Caller
    generation: int
    good_until_s: float  # by the clock of this process
    expires_at: float  # unix seconds


class Authenticator:
    """
    Says who holds the key of a request.

    Unknown keys and wrong secrets take the same path: same error, same work. `invalidate()`
    makes every entry be looked up again; call it when the topic `keys` has changed.
    """

    def __init__(
        self,
        store: Store,
        pepper: bytes,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        misses_per_s: float = MISSES_PER_S,
        misses_burst: float = MISSES_BURST,
    ) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock
        self._wall_clock = wall_clock
        self._known: LRUCache[str, _Entry] = LRUCache(KNOWN_MAX)
        self._unknown: LRUCache[str, _Entry] = LRUCache(UNKNOWN_MAX)
        self._proven: dict[bytes, _Proven] = {}
        self._mark_key = secrets.token_bytes(32)
        self._generation = 0
        self._lookups: dict[str, asyncio.Future[_Entry]] = {}
        self._misses_per_s = misses_per_s
        self._misses_burst = misses_burst
        self._misses_left = misses_burst
        self._misses_at_s = clock()

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Raises Unauthenticated (401), InvalidRequest (400: two credentials) or Overloaded."""
        return await self.identify(credential(headers))

    async def identify(self, text: str) -> Caller:
        """The caller that holds the key `text`."""
        # Looked up by a keyed hash, so the time it takes says nothing about any key.
        mark = hashlib.blake2b(
            text.encode(errors="replace"), digest_size=16, key=self._mark_key
        ).digest()
        proven = self._proven.get(mark)
        if (
            proven is not None
            and proven.generation == self._generation
            and proven.good_until_s > self._clock()
            and proven.expires_at > self._wall_clock()
        ):
            return proven.caller
        return await self._prove(text, mark)

    async def caller_of(self, key_id: str) -> Caller:
        """Who holds a key, for work that its holder left with us. Raises as `identify` does."""
        entry = self._known.get(key_id)
        is_stale = entry is None or entry.generation != self._generation
        if entry is None or is_stale or entry.fresh_until_s <= self._clock():
            entry = await self._look_up(key_id)
        # The hash that the entry itself holds: nobody presents a secret here.
        return self._checked(entry, entry.secret_hash).caller

    async def _prove(self, text: str, mark: bytes) -> Caller:
        try:
            key = parse(text)
        except MalformedKey as e:
            raise Unauthenticated(str(e)) from None
        entry = self._known.get(key.id) or self._unknown.get(key.id)
        if (
            entry is None
            or entry.generation != self._generation
            or entry.fresh_until_s <= self._clock()
        ):
            entry = await self._look_up(key.id)
        proven = self._checked(entry, hash_secret(self._pepper, key.secret))
        self._proven.pop(mark, None)
        while len(self._proven) >= KNOWN_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[mark] = proven
        return proven.caller

    def invalidate(self) -> None:
        """Believe nothing that was read before this instant."""
        self._generation += 1

    @property
    def num_remembered(self) -> int:
        """Entries in memory; bounded by 2 · KNOWN_MAX + UNKNOWN_MAX."""
        return len(self._known) + len(self._unknown) + len(self._proven)

    def _checked(self, entry: _Entry, given: bytes) -> _Proven:
        is_current = hmac.compare_digest(entry.secret_hash, given)
        is_previous = hmac.compare_digest(entry.previous_hash, given)
        caller = entry.caller
        if caller is None or not (is_current or is_previous):
            raise Unauthenticated("this API key is unknown; list yours with: looprouter keys list")
        # From here on the secret was right, so its holder may know what became of the key.
        now = self._wall_clock()
        if entry.revoked_at is not None:
            raise Unauthenticated(f"this API key was revoked on {_date(entry.revoked_at)}")
        if entry.expires_at is not None and entry.expires_at <= now:
            raise Unauthenticated(f"this API key expired on {_date(entry.expires_at)}")
        if not is_current and entry.previous_expires_at <= now:
            raise Unauthenticated(
                "this API key was replaced by a rotation and its overlap ended on "
                f"{_date(entry.previous_expires_at)}; use the new one"
            )
        ends = [math.inf if entry.expires_at is None else entry.expires_at]
        if not is_current:
            ends.append(entry.previous_expires_at)
        return _Proven(
            caller=caller,
            generation=entry.generation,
            good_until_s=entry.fresh_until_s,
            expires_at=min(ends),
        )

    async def _look_up(self, key_id: str) -> _Entry:
        while True:
            running = self._lookups.get(key_id)
            if running is None:
                break
            # Someone asks for this id already; if that is cancelled, ask oneself.
            await asyncio.wait([running])
            if not running.cancelled():
                entry = running.result()
                if entry.generation == self._generation:
                    return entry
        self._spend_miss(key_id)
        answer: asyncio.Future[_Entry] = asyncio.get_running_loop().create_future()
        self._lookups[key_id] = answer
        try:
            entry = await self._read(key_id)
            answer.set_result(entry)
            return entry
        finally:
            del self._lookups[key_id]
            answer.cancel()  # failed or cancelled: those who wait ask for themselves

    async def _read(self, key_id: str) -> _Entry:
        # Taken before the read: a change during it makes this entry stale at once.
        generation = self._generation
        try:
            async with asyncio.timeout(LOOKUP_WAIT_S), self._store.read() as connection:
                stored = await find_stored_key(connection, key_id)
        except (SQLAlchemyError, OSError, TimeoutError) as e:
            raise Overloaded(
                "API keys cannot be checked now: the database does not answer",
                code="key_store_unavailable",
                retry_after_s=1.0,
            ) from e
        fresh_until_s = self._clock() + FRESH_S
        entry = _entry(stored, generation, fresh_until_s)
        if entry.caller is None:
            self._known.pop(key_id, None)
            self._unknown[key_id] = entry
        else:
            self._unknown.pop(key_id, None)
            self._known[key_id] = entry
        return entry

    def _spend_miss(self, key_id: str) -> None:
        if key_id in self._known:
            return
        now_s = self._clock()
        earned = (now_s - self._misses_at_s) * self._misses_per_s
        self._misses_left = min(self._misses_burst, self._misses_left + earned)
        self._misses_at_s = now_s
        if self._misses_left < 1.0:
            raise Overloaded(
                "too many requests with unknown API keys; try again in a second",
                code="key_lookups_exhausted",
                retry_after_s=1.0,
            )
        self._misses_left -= 1.0


def _entry(stored: StoredKey | None, generation: int, fresh_until_s: float) -> _Entry:
    if stored is None:
        return _Entry(generation=generation, fresh_until_s=fresh_until_s)
    row = stored.row
    return _Entry(
        secret_hash=stored.secret_hash,
        previous_hash=stored.previous_hash or _NO_HASH,
        previous_expires_at=row.previous_expires_at or 0.0,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        generation=generation,
        fresh_until_s=fresh_until_s,
        caller=Caller(
            tenant_id=row.tenant_id,
            team_id=row.team_id,
            key_id=row.id,
            key_name=row.name,
            models=row.models,
            routes=row.routes,
            requests_per_minute=row.requests_per_minute,
            tokens_per_minute=row.tokens_per_minute,
            concurrency_max=row.concurrency_max,
            no_explore=row.no_explore,
            budget_ids=stored.budget_ids,
        ),
    )


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
