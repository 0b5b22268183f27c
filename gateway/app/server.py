"""Uvicorn with our limits: parse errors in an API shape, a header deadline, an orderly drain."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import SetupError
from gateway.wire.errors import error_body
from gateway.wire.pieces import Dialect

HEADER_WAIT_S = 10.0
HEADER_BYTES_MAX = 64 * 1024
KEEP_ALIVE_S = 75
BACKLOG = 2048
PORT_TRIES = 20


class LimitedProtocol(HttpToolsProtocol):
    """Refuses drip-fed and oversized headers, and says so as JSON that SDKs can read."""

    _header_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # the base narrows it too
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        if self._header_timer is not None:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES_MAX and b"\r\n\r\n" not in data:
                self._refuse(431, f"the headers are larger than {HEADER_BYTES_MAX} bytes")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._watch_headers()

    def on_headers_complete(self) -> None:
        self._unwatch_headers()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_headers()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._unwatch_headers()
        self._refuse(
            400,
            "the request is not valid HTTP/1.1 "
            "(check the request line, Content-Length, Transfer-Encoding and header characters)",
        )

    def _watch_headers(self) -> None:
        self._unwatch_headers()
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(HEADER_WAIT_S, self._headers_late)

    def _unwatch_headers(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        self._header_timer = None
        # Nothing was received: an idle keep-alive connection, which may close without a word.
        if self._header_bytes == 0:
            if self.transport is not None and not self.transport.is_closing():
                self.transport.close()
            return
        self._refuse(408, f"the headers were not complete within {HEADER_WAIT_S:.0f} s")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        body = error_body(
            Dialect.OPENAI,
            status=status,
            type="invalid_request_error",
            message=message,
            param=None,
            code="bad_http",
            request_id="",
        )
        head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
        head += b"content-length: " + str(len(body)).encode() + b"\r\n\r\n"
        self.transport.write(head + body)
        self.transport.close()


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
