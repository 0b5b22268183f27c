"""Passwords as argon2id hashes (RFC 9106), worked out off the event loop, a few at a time."""

from __future__ import annotations

import asyncio
import secrets
from functools import cache
from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from argon2 import PasswordHasher

PASSWORD_CHARS_MIN = 12
PASSWORD_CHARS_MAX = 256
# RFC 9106's second choice (4): each check takes 64 MiB, so few run at once.
ROUNDS, MEMORY_KIB, LANES = 3, 64 * 1024, 4
CHECKS_AT_ONCE_MAX = 2


@cache
def _hasher() -> PasswordHasher:
    # Imported here: no other command and no request needs it.
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=ROUNDS, memory_cost=MEMORY_KIB, parallelism=LANES)


@cache
def _nobody() -> str:
    """The hash of a password that nobody has: checked where a name is unknown."""
    return _hasher().hash(secrets.token_urlsafe(24))


def new_password() -> str:
    """Random, 120 bits, to be printed once and changed or kept."""
    return secrets.token_urlsafe(15)


def check_password_rules(password: str) -> None:
    """Raise InvalidRequest for one that is too short to be one, or too long to be typed."""
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise InvalidRequest(
            f"a password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters",
            param="password",
        )


def hash_password(password: str) -> str:
    """The argon2id hash in PHC form, salted. Takes about 0.1 s."""
    return _hasher().hash(password)


class PasswordChecker:
    """Compares passwords in threads, CHECKS_AT_ONCE_MAX at a time; the others wait their turn."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)

    async def is_right(self, password_hash: str | None, password: str) -> bool:
        """Takes as long for an unknown name (`password_hash` None) as for a wrong password."""
        async with self._turns:
            return await asyncio.to_thread(_is_right, password_hash, password)


def _is_right(password_hash: str | None, password: str) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        _hasher().verify(password_hash or _nobody(), password[:PASSWORD_CHARS_MAX])
    except (VerificationError, InvalidHashError):
        return False
    return password_hash is not None and len(password) <= PASSWORD_CHARS_MAX
