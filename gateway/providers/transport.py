"""The seam to the network: one request out, a status line and a byte iterator back.

Whatever stands behind `Transport` must pass tests/contracts/test_transport.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core import Network
from gateway.errors import FailureClass, LoopRouterError

CONNECT_TIMEOUT_S = 2.0
HEADERS_TIMEOUT_S = 120.0
RESPONSE_HEAD_BYTES_MAX = 128 * 1024

Headers = tuple[tuple[bytes, bytes], ...]

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")
_VALUE = re.compile(rb"(?![ \t])[\t\x20-\x7e\x80-\xff]*(?<![ \t])\Z")


class Content(Protocol):
    """A body too large to be held whole: a file to upload."""

    num_bytes: int

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Exactly `num_bytes`, in pieces, from the start each time it is called.

        What it raises comes out of `send`, and the connection is closed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """A whole request; the transport adds Host and Content-Length and nothing else."""

    method: str
    url: str
    headers: Headers
    body: bytes = b""
    content: Content | None = None  # instead of `body`; read only as fast as it is sent
    network: Network = Network.PUBLIC
    verify_tls: bool = True  # False only on private networks


@dataclass(slots=True)
class SendProgress:
    """How far a `send` came; valid also after it raised or was cancelled."""

    is_sent: bool = False  # some byte of the request was handed to a socket


class TransportError(LoopRouterError):
    """The exchange failed below HTTP. `was_refused`: certain that nothing was processed."""

    def __init__(self, failure: FailureClass, message: str, *, was_refused: bool) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.was_refused = was_refused


class UnsendableRequest(ValueError):
    """A request that may not be put on a wire; nothing was sent, or (content) not the whole."""


class UpstreamResponse(Protocol):
    """Status and headers of an answer whose body is still on its way."""

    status: int
    headers: Headers  # names in lower case
    headers_at_s: float  # monotonic, when the head came from the socket
    read_at_s: float  # monotonic, when the bytes yielded last came from the socket

    def stream(self) -> AsyncIterator[bytes]:
        """The body, decoded, each piece at once as it arrives; to be iterated once.

        Raises TransportError (STREAM_BROKEN) when it ends early or is malformed. Not iterating
        stops the reading of the socket.
        """
        ...

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end, else close the socket."""
        ...


class Transport(Protocol):
    async def send(
        self,
        request: UpstreamRequest,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        headers_timeout_s: float = HEADERS_TIMEOUT_S,
        progress: SendProgress | None = None,
    ) -> UpstreamResponse:
        """Send and wait for the status line and headers.

        Raises TransportError (CONNECT, TIMEOUT_FIRST_TOKEN, SERVER_ERROR), or
        UnsendableRequest. Redirects are answers like any other.
        """
        ...

    async def aclose(self) -> None: ...


def check_request(request: UpstreamRequest) -> None:
    """Raise UnsendableRequest for what could split or smuggle: bad method, name, CR, LF, NUL."""
    if not request.verify_tls and request.network is not Network.PRIVATE:
        raise UnsendableRequest("certificates go unchecked only with `network: private`")
    if request.method not in ("GET", "POST", "DELETE"):
        raise UnsendableRequest(f"method {request.method!r} is not used upstream")
    if request.content is not None and (request.body or request.method != "POST"):
        raise UnsendableRequest("content goes with POST, and in the place of a body")
    for name, value in request.headers:
        if not _NAME.match(name):
            raise UnsendableRequest(f"header name {name!r} is not an HTTP token")
        if not _VALUE.match(value):
            # The value may be a secret, so it is not part of the message.
            raise UnsendableRequest(f"header {name.decode()}: its value has a forbidden character")
        if name.lower() in _FRAMING:
            raise UnsendableRequest(f"header {name.decode()} is the transport's own")


_FRAMING = frozenset(
    b"host content-length transfer-encoding connection te upgrade trailer keep-alive"
    b" proxy-connection expect".split()
)


@dataclass(slots=True)
class TransportCounters:
    """What a transport did since it was made; for metrics and tests."""

    num_requests: int = 0
    num_connections: int = 0
    num_stale_retries: int = 0
    num_forbidden: int = 0
    by_failure: dict[str, int] = field(default_factory=dict)
