"""Who asks: a key compared in constant time, and the salt that keeps tenants' caches apart."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from backend.api.problems import NotLocal, WrongKey
from backend.errors import BadRequest

TENANT_HEADER = "x-looprouter-tenant"
TENANT_CHARS_MAX = 256
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SALT_BYTES = 16


def check_local(headers: Mapping[str, str], names: frozenset[str] = LOCAL_NAMES) -> None:
    """For a server without keys: a web page that the user has open may not ask it.

    A page of another site sends its Origin; one whose name was rebound to this machine sends that
    name as Host. Raises NotLocal.
    """
    for header, url in (
        ("host", "//" + headers.get("host", "")),
        ("origin", headers.get("origin")),
    ):
        if url is not None and _host_of(url) not in names:
            raise NotLocal(
                f"this server has no key and answers this machine only, not {header} "
                f"{headers.get(header, '')[:100]!r}"
            )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


class Keys:
    """The keys this server takes; without any, everybody is let in."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @property
    def is_open(self) -> bool:
        return not self._digests

    def check(self, headers: Mapping[str, str]) -> bytes:
        """Which key it is, as its digest; empty where none is needed. Raises WrongKey."""
        if self.is_open:
            return b""
        given = _digest(_credential(headers).encode())
        # All are compared, so that the time tells nothing about which one was near.
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        if not any(matches):
            raise WrongKey("give this server's API key as Authorization: Bearer KEY")
        return given


def tenant_salt(key_digest: bytes, headers: Mapping[str, str]) -> bytes:
    """Requests share cached prompts only where key and tenant header are equal.

    Raises BadRequest for a header that is too long.
    """
    tenant = headers.get(TENANT_HEADER, "")
    if len(tenant) > TENANT_CHARS_MAX:
        raise BadRequest(f"{TENANT_HEADER} is longer than {TENANT_CHARS_MAX} characters")
    if not tenant and not key_digest:
        return b""
    return hashlib.blake2b(tenant.encode(), key=key_digest, digest_size=_SALT_BYTES).digest()


def _credential(headers: Mapping[str, str]) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    return headers.get("x-api-key", "")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
