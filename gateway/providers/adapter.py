"""What one dialect's adapter does: builds the upstream request, tells what an error means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from gateway.core import Endpoint, Lane
from gateway.errors import FailureClass
from gateway.providers.transport import Headers, UpstreamRequest
from gateway.wire.pieces import Surface, WireError
from gateway.wire.requests import ParsedRequest
from gateway.wire.translate import CannotTranslate

USER_AGENT = b"looprouter"
TENANT_CHARS = 32

_BRIDGED: dict[Surface, Surface] = {
    Surface.CHAT: Surface.MESSAGES,
    Surface.MESSAGES: Surface.CHAT,
}

# Never taken from the policy's fixed headers: ours, the transport's, or a hop's own.
_RESERVED_HEADERS = frozenset(
    [
        "accept",
        "accept-encoding",
        "api-key",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
        "x-looprouter-priority",
        "x-looprouter-tenant",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One attempt's request, before it is put into the endpoint's form."""

    endpoint: Endpoint
    parsed: ParsedRequest
    secret: str | None = None  # the provider's key; never the client's
    max_tokens: int | None = None  # to set in the body; None leaves it as sent
    max_tokens_default: int = 4_096  # where a dialect demands one and the request has none
    client_headers: Mapping[str, str] | None = None  # lower-case names; only listed ones pass
    verify_tls: bool = True
    attempt_id: str = ""  # sent along, so that a provider's bill can be matched line by line
    tenant_id: str = ""  # own machines are told, as a hash: they share no cached prompt across it
    lane: Lane = Lane.INTERACTIVE  # own machines are told: they serve batch when nobody waits


@dataclass(frozen=True, slots=True)
class Built:
    """What goes on the wire, and how to read what comes back."""

    request: UpstreamRequest
    surface: Surface  # the upstream's; another than the caller's means translation
    dropped: tuple[str, ...] = ()  # fields and headers that could not be carried


@dataclass(frozen=True, slots=True)
class Fault:
    """An upstream's error, understood."""

    failure: FailureClass
    error: WireError
    was_refused: bool  # certain that the provider did no billable work
    retry_after_s: float | None = None


class Adapter(Protocol):
    def build(self, call: Call) -> Built:
        """Raises CannotTranslate when the endpoint's dialect cannot carry the request."""
        ...

    def classify(self, status: int, headers: Headers, body: bytes, *, now_unix_s: float) -> Fault:
        """What an answer with an error status (anything but 2xx) means."""
        ...

    def classify_in_band(self, error: WireError) -> Fault:
        """What an error inside a 200 means: in a stream, or as the whole body."""
        ...


def upstream_surface(endpoint: Endpoint, surface: Surface) -> Surface:
    """The caller's surface if the endpoint serves it, else the one it can be translated to."""
    if not endpoint.surfaces or surface.value in endpoint.surfaces:
        return surface
    bridged = _BRIDGED.get(surface)
    if bridged is not None and bridged.value in endpoint.surfaces:
        return bridged
    raise CannotTranslate(
        f"{endpoint.id} does not serve {surface.value} requests, nor anything they could be "
        "translated to",
        param="model",
    )


def dropped_in_same_dialect(call: Call) -> tuple[str, ...]:
    """Fields that ask something of an endpoint and go to it only if it is known to read them."""
    known = call.endpoint.parameters or frozenset()
    members = call.parsed.members
    return ("speculation",) if "speculation" in members and "speculation" not in known else ()


def join_url(base_url: str, path: str) -> str:
    """`path` behind the base URL's own path; a query of the base (an api-version) stays last."""
    base, mark, query = base_url.partition("?")
    return f"{base.rstrip('/')}{path}{mark}{query}"


def common_headers(call: Call, *, is_stream: bool) -> list[tuple[bytes, bytes]]:
    """What every request carries, and the policy's fixed headers for this provider."""
    headers = [
        (b"content-type", b"application/json"),
        (b"accept", b"text/event-stream" if is_stream else b"application/json"),
        (b"user-agent", USER_AGENT),
    ]
    if call.attempt_id:
        headers.append((b"x-client-request-id", call.attempt_id.encode("ascii")))
    if call.endpoint.machine:
        headers.append((b"x-looprouter-priority", call.lane.value.encode()))
        if call.tenant_id:
            tenant = sha256(call.tenant_id.encode()).hexdigest()[:TENANT_CHARS]
            headers.append((b"x-looprouter-tenant", tenant.encode()))
    return headers + policy_headers(call.endpoint)


def policy_headers(endpoint: Endpoint) -> list[tuple[bytes, bytes]]:
    """The policy's fixed headers for this endpoint's provider, but for those that are ours."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in endpoint.headers
        if name.lower() not in _RESERVED_HEADERS
    ]
