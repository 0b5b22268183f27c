"""Uvicorn with our limits: a deadline and a size for request heads, an orderly drain."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from backend.errors import SetupError
from gateway.wire.errors import error_body
from gateway.wire.pieces import Dialect

HEADER_WAIT_S = 10.0
HEADER_BYTES_MAX = 64 * 1024
KEEP_ALIVE_S = 75
BACKLOG = 2048


class HeadTooLarge(Exception):
    """Raised inside the parser, which then calls `send_400_response`."""


class LimitedProtocol(HttpToolsProtocol):
    """Ends connections whose heads drip or never end, and says why as JSON that SDKs read."""

    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the base narrows it too
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEADER_WAIT_S, self._late)

    def data_received(self, data: bytes) -> None:
        # Counted by packet: one endless header is never handed to `on_header`.
        self._num_head_bytes = self._num_head_bytes + len(data) if self._is_in_head else 0
        super().data_received(data)
        if self._is_in_head and self._num_head_bytes > HEADER_BYTES_MAX:
            self._refuse(431, f"the request's head is larger than {HEADER_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._unwatch()
        self._timer = self.loop.call_later(HEADER_WAIT_S, self._late)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._unwatch()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is not valid HTTP/1.1")

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self._num_head_bytes:
            self._refuse(408, f"the request's head was not complete in {HEADER_WAIT_S:.0f} s")
        elif self.transport is not None:
            self.transport.close()  # nothing was received: it may close without a word

    def _refuse(self, status: int, message: str) -> None:
        self._unwatch()
        if self.transport is None or self.transport.is_closing():
            return
        body = error_body(
            Dialect.OPENAI,
            status=status,
            type="invalid_request_error",
            message=message,
            code="bad_http",
        )
        head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """On SIGTERM or SIGINT lets `drain` run to its end first; the second signal means now."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        # Not noted as captured: uvicorn would raise it again at the end.
        asyncio.get_event_loop().call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            await self._drain()
        finally:
            self.should_exit = True


def make_server(app: Any, drain: Callable[[], Awaitable[None]]) -> DrainingServer:
    """One process, one event loop, no access log."""
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=10,
        backlog=BACKLOG,
    )
    return DrainingServer(config, drain)


def listen(host: str, port: int) -> tuple[socket.socket, int]:
    """A bound socket and its port (0: any free one). Raises SetupError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise SetupError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port"
        ) from None
    sock.setblocking(False)
    return sock, int(sock.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
