"""The text of a virtual key: `lr-` + public id + secret + checksum, and what is kept of it.

    lr-  Ab3dE6gH  <43 characters, 32 random bytes>  <6 characters, CRC-32>

All base62, no separators, so that a double click selects the whole key. The checksum tells a
mistyped key from an unknown one without asking the database; it protects nothing. The secret has
256 random bits, so one keyed hash of it is enough: there is nothing to guess slowly.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

import msgspec

PREFIX = "lr-"
ID_CHARS = 8
SECRET_BYTES = 32
SECRET_CHARS = 43  # ceil(256 / log2(62))
CHECKSUM_CHARS = 6  # ceil(32 / log2(62))
KEY_CHARS = len(PREFIX) + ID_CHARS + SECRET_CHARS + CHECKSUM_CHARS
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHAPE = re.compile(
    rf"{PREFIX}([0-9A-Za-z]{{{ID_CHARS}}})([0-9A-Za-z]{{{SECRET_CHARS}}})"
    rf"([0-9A-Za-z]{{{CHECKSUM_CHARS}}})"
)


class MintedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key; `key` and `secret` are shown once and never stored."""

    key: str
    id: str
    secret: str

    def __repr__(self) -> str:
        return f"MintedKey(id={self.id!r})"


class ParsedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed key; nothing says yet that it exists."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"ParsedKey(id={self.id!r})"


class MalformedKey(ValueError):
    """The text is no virtual key. The message never holds the text."""


def mint(
    *, key_id: str | None = None, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> MintedKey:
    """A new key; `key_id` keeps the public id, for a rotation."""
    if key_id is None:
        # 62^8 is a little under 2^48; 16 bytes make the remainder's bias immaterial.
        number = int.from_bytes(random_bytes(16), "big") % 62**ID_CHARS
        key_id = base62(number, ID_CHARS)
    secret = base62(int.from_bytes(random_bytes(SECRET_BYTES), "big"), SECRET_CHARS)
    body = PREFIX + key_id + secret
    return MintedKey(key=body + _checksum(body), id=key_id, secret=secret)


def parse(text: str) -> ParsedKey:
    """Take a key apart. Raises MalformedKey when its shape or checksum is wrong."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        if not text.startswith(PREFIX):
            raise MalformedKey(
                "this is not a LoopRouter key: one begins with 'lr-'; a provider's own key "
                "is not accepted here"
            )
        raise MalformedKey(
            f"this LoopRouter key is damaged: it has {len(text)} characters instead of "
            f"{KEY_CHARS}, or characters no key has; copy it again"
        )
    if _checksum(text[:-CHECKSUM_CHARS]) != match[3]:
        raise MalformedKey("this LoopRouter key is mistyped: its checksum is wrong; copy it again")
    return ParsedKey(id=match[1], secret=match[2])


def hash_secret(pepper: bytes, secret: str) -> bytes:
    """What is stored of a secret: HMAC-SHA-256 under the server's pepper."""
    return hmac.digest(pepper, secret.encode("ascii"), hashlib.sha256)


def tenant_secret(pepper: bytes, tenant_id: str) -> bytes:
    """A tenant's own key for affinity hashes, so that equal prompts of two tenants differ."""
    return hmac.digest(pepper, b"tenant\0" + tenant_id.encode(), hashlib.sha256)


def base62(number: int, num_chars: int) -> str:
    """`number` in exactly `num_chars` characters, most significant first."""
    digits = []
    for _ in range(num_chars):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    assert number == 0, "does not fit"
    return "".join(reversed(digits))


def _checksum(body: str) -> str:
    return base62(binascii.crc32(body.encode("ascii")), CHECKSUM_CHARS)
