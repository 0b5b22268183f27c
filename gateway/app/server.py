"""Uvicorn with our limits: parse errors in an API shape, a header deadline, an orderly drain."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import SetupError
from gateway.wire.errors import error_body
from gateway.wire.pieces import Dialect

HEADER_WAIT_S = 10.0
HEADER_BYTES_MAX = 64 * 1024
KEEP_ALIVE_S = 75
UNSENT_BYTES_MAX = 16 * 1024  # of one client in our memory; then its provider waits
SEND_BUFFER_BYTES = 256 * 1024  # for a client; the kernel would take up to 4 MB from us
BACKLOG = 2048
PORT_TRIES = 20


class BadHttp(Exception):
    """A request that is refused by its head alone; the connection is closed behind it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


NOT_HTTP = BadHttp(
    400,
    "the request is not valid HTTP/1.1 "
    "(check the request line, Content-Length, Transfer-Encoding and header characters)",
)


_H2C_OFFER = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|$)", re.IGNORECASE)


class LimitedProtocol(HttpToolsProtocol):
    """Refuses drip-fed, oversized and ambiguous heads, and says so as JSON that SDKs can read."""

    _header_timer: asyncio.TimerHandle | None = None
    _is_fresh = True  # nothing was received
    _is_in_head = False
    _head_bytes = 0
    _head_bytes_read = 0  # whole packets of an unfinished head
    _bad: BadHttp | None = None
    _is_deaf = False  # the last answer is under way; what comes behind it is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the base narrows it too
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._is_fresh:
            self._is_fresh = False
            data = without_h2c_offer(data)
        if self._is_in_head:
            # One endless header is never handed to `on_header`, so its bytes are counted here.
            self._head_bytes_read += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes_read > HEADER_BYTES_MAX:
            self._bad = _too_large()
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = self._head_bytes_read = 0
        self._watch_headers()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is no header: nobody who looks at the head knows it (a key, a host, a length).
        if self._is_in_head:
            self._count_head(len(name) + len(value) + 4)
            super().on_header(name, value)

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > HEADER_BYTES_MAX:
            self._fail(_too_large())

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._unwatch_headers()
        bad = bad_head(
            self.url, self.headers, self.parser.get_http_version(), self.parser.should_upgrade()
        )
        if bad is not None:
            self._fail(bad)
        super().on_headers_complete()

    def _fail(self, bad: BadHttp) -> None:
        """Make the parser stop; the base then calls `send_400_response`."""
        self._bad = bad
        raise bad

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_headers()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._unwatch_headers()
        self._is_deaf = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # What is wrong stands behind a whole request. That one is answered, then we close.
            cycle.keep_alive = False
        elif self.pipeline:
            self.transport.close()  # an answer of ours would be taken for one to those before
        else:
            self._refuse(self._bad or NOT_HTTP)

    def _watch_headers(self) -> None:
        self._unwatch_headers()
        self._header_timer = self.loop.call_later(HEADER_WAIT_S, self._headers_late)

    def _unwatch_headers(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        self._header_timer = None
        if self._is_in_head:
            self._refuse(BadHttp(408, f"the headers were not complete in {HEADER_WAIT_S:.0f} s"))
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.close()  # nothing was received: it may close without a word

    def _refuse(self, bad: BadHttp) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        target = getattr(self, "url", b"")
        body = error_body(
            Dialect.ANTHROPIC if target.startswith(b"/v1/messages") else Dialect.OPENAI,
            status=bad.status,
            type="invalid_request_error",
            message=bad.message,
            param=None,
            code="bad_http",
            request_id="",
        )
        head = STATUS_LINE[bad.status] + b"content-type: application/json\r\nconnection: close\r\n"
        head += b"content-length: " + str(len(body)).encode() + b"\r\n\r\n"
        self.transport.write(head + body)
        self.transport.close()


def without_h2c_offer(data: bytes) -> bytes:
    """The first bytes of a connection without an offer to speak HTTP/2 in clear (RFC 9110 7.8).

    Java's own client makes it with its first request to a host; the parser would then take the
    body for the other protocol. It may be left alone, so it is.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if b"h2c" not in head:
        return data
    return _H2C_OFFER.sub(b"", head) + end + rest


def _too_large() -> BadHttp:
    return BadHttp(431, f"the request line and headers are larger than {HEADER_BYTES_MAX} bytes")


def bad_head(
    target: bytes, headers: Sequence[tuple[bytes, bytes]], version: str, is_upgrade: bool
) -> BadHttp | None:
    """What another parser on the way may have read differently (RFC 9112 2.3, 3.2, 6.1, 7.8)."""
    if version not in ("1.1", "1.0"):
        return BadHttp(400, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    codings = [
        value.strip(b" \t").lower() for name, value in headers if name == b"transfer-encoding"
    ]
    if codings and (version == "1.0" or codings != [b"chunked"]):
        return BadHttp(400, "Transfer-Encoding may only be 'chunked', once, and in HTTP/1.1")
    if is_upgrade:
        return BadHttp(400, "a connection cannot be upgraded here; leave Upgrade out")
    if b"#" in target:
        return BadHttp(400, "a request target has no fragment; leave '#' out")
    if not target.startswith(b"/") and target != b"*":
        return _bad_absolute(target, headers)
    return None


def _bad_absolute(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> BadHttp | None:
    """A target with a host of its own must name the one that Host names."""
    try:
        url = urlsplit(target.decode("ascii"))
    except ValueError:
        return NOT_HTTP
    hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
    if url.scheme not in ("http", "https") or [url.netloc.lower()] != hosts:
        return BadHttp(400, "the request target names another host than the Host header")
    return None


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT lets `drain` run to its end before connections are closed."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None
        self.on_ready: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_ready is not None and not self.should_exit:
            self.on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            # The second signal means now.
            self.should_exit = self.force_exit = True
            return
        # Not noted as captured: uvicorn would raise it again at the end, and that would end this
        # process before the ledger is closed and the beliefs are kept.
        asyncio.get_event_loop().call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True


def make_server(app: Any, drain: Callable[[], Awaitable[None]]) -> DrainingServer:
    """One process, one event loop. No access log: the request table is the log of requests."""
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=10,
        backlog=BACKLOG,
    )
    return DrainingServer(config, drain)


def listen(host: str, port: int, *, take_next: bool = False) -> tuple[socket.socket, int]:
    """A bound socket and its port; `take_next` walks upward from a busy one.

    Raises SetupError when the port is busy or may not be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last_error: OSError | None = None
    for candidate in range(port, port + (PORT_TRIES if take_next and port else 1)):
        sock = socket.socket(family, socket.SOCK_STREAM)
        # Not on a port that another program serves: only over what lingers in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited
        try:
            sock.bind((host, candidate))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            last_error = error
            continue
        sock.setblocking(False)
        return sock, sock.getsockname()[1]
    raise SetupError(
        f"cannot listen on {host}:{port}: {last_error.strerror if last_error else ''}; "
        "choose another with --port"
    )


RELOAD_SIGNAL = getattr(signal, "SIGHUP", None)
