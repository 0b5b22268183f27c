"""Who is logged in: a random token in a cookie, its hash in SQL, two expiries.

The same cookie holds a visitor's token before the log-in, so that one rule guards every write:
the CSRF token is an HMAC of the cookie's token (OWASP: signed double submit), keyed by the server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.store import admins
from gateway.store.admins import AdminRow, SessionRow
from gateway.store.engine import Store

IDLE_S = 2 * 3_600.0
ABSOLUTE_S = 12 * 3_600.0
TOUCH_EVERY_S = 60.0
BROWSER_CHARS_MAX = 200
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class Session:
    """A log-in that is in force."""

    row: SessionRow
    admin: AdminRow


class Sessions:
    """Sessions in the store. `pepper` keys the CSRF tokens; `wall_clock` gives unix seconds."""

    def __init__(self, store: Store, pepper: bytes, wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._key = hmac.new(pepper, b"dashboard csrf", hashlib.sha256).digest()
        self._wall_clock = wall_clock

    async def begin(self, admin: AdminRow, *, address: str, browser: str) -> str:
        """Log an admin in with a token that nobody had before."""
        now = self._wall_clock()
        token = new_token()
        row = SessionRow(
            token_hash=_hash(token),
            admin_id=admin.id,
            created_at=now,
            last_seen_at=now,
            expires_at=now + ABSOLUTE_S,
            address=address,
            browser=browser[:BROWSER_CHARS_MAX],
        )
        async with self._store.begin() as connection:
            await admins.insert_session(connection, row)
            await admins.update_admin(connection, admin.id, last_login_at=now)
        return token

    async def find(self, token: str) -> Session | None:
        """The session of a token, if neither it nor its admin has ended."""
        if not is_token(token):
            return None
        now = self._wall_clock()
        async with self._store.read() as connection:
            found = await admins.find_session(connection, _hash(token))
        if found is None:
            return None
        row, admin = found
        if (
            row.expires_at <= now
            or row.last_seen_at <= now - IDLE_S
            or admin.disabled_at is not None
        ):
            return None
        if row.last_seen_at <= now - TOUCH_EVERY_S:
            async with self._store.begin() as connection:
                await admins.touch_session(connection, row.token_hash, now=now)
            row = msgspec.structs.replace(row, last_seen_at=now)
        return Session(row=row, admin=admin)

    async def end(self, session: Session) -> None:
        """Log out: the token is worth nothing from now on."""
        async with self._store.begin() as connection:
            await admins.delete_session(connection, session.row.token_hash)

    def csrf_token(self, token: str) -> str:
        """What a write must carry besides the cookie that holds `token`."""
        return hmac.new(self._key, token.encode(), hashlib.sha256).hexdigest()

    def is_csrf_token(self, token: str, sent: str) -> bool:
        return hmac.compare_digest(self.csrf_token(token).encode(), sent.encode())


def new_token() -> str:
    """256 random bits for a cookie."""
    return secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    """Whether it has the form of our tokens; others are not looked up."""
    return _TOKEN.fullmatch(text) is not None


def _hash(token: str) -> bytes:
    # The token is random, so a plain hash will do: there is nothing to guess.
    return hashlib.sha256(token.encode()).digest()
