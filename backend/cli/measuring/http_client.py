"""A small HTTP/1.1 client whose stamps are taken at the socket, before anything is parsed.

A general client costs several times more processor time a read, and on a machine that also runs
the server this time would be taken from what is measured. No redirects, no proxies.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from backend.errors import SetupError

CONNECT_S = 10.0

OnBody = Callable[[bytes, float], None]  # bytes of the body, monotonic seconds of their read


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server's API begins, e.g. http://127.0.0.1:8100/v1."""

    host: str
    port: int
    is_tls: bool
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """`/v1` is added to a bare host. Raises SetupError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise SetupError(f"{url} has a port that is no number") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SetupError(f"{url} is no URL like http://127.0.0.1:8100/v1")
        if parts.username or parts.query or parts.fragment:
            raise SetupError(f"{url}: leave user name, query and fragment out")
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if is_tls else 80),
            is_tls=is_tls,
            path=parts.path.rstrip("/") or "/v1",
        )

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self._authority}{self.path}"

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def head(self, method: str, path: str, headers: Mapping[str, str], num_bytes: int) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method == "POST":
            lines += ["content-type: application/json", f"content-length: {num_bytes}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class ConnectionBroken(Exception):
    """The server could not be reached, closed the connection or did not speak HTTP."""


class _Connection(asyncio.Protocol):
    """One socket; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.status = 0
        self.num_bytes = 0  # of the current answer
        self._on_body: OnBody | None = None
        self._read_at_s = 0.0
        self._is_framed = False  # else the body ends with the connection
        self._done: asyncio.Future[bool] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    async def exchange(self, data: bytes, on_body: OnBody) -> int:
        """Send a request, hand the body of its answer on; the status. Raises ConnectionBroken."""
        assert self._transport is not None
        self.status = self.num_bytes = 0
        self._is_framed = False
        self._on_body = on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        is_kept = await self._done
        self._on_body = self._done = None
        if not is_kept:
            self.close()
        return self.status

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._read_at_s = time.monotonic()
        self.num_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if exc is None and self.status and not self._is_framed:
            self.on_message_complete()
        self._fail(f"the connection was lost: {exc}" if exc else "the server closed the connection")

    def _fail(self, message: str) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionBroken(message))

    # httptools
    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._on_body is not None:
            self._on_body(body, self._read_at_s)

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(self._parser.should_keep_alive())
        # A parser keeps no state that the next answer needs.
        self._parser = httptools.HttpResponseParser(self)


class HttpClient:
    """Connections to one server, used again while they stay open. Close it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[_Connection] = []
        self._tls = ssl.create_default_context() if address.is_tls else None

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, on_body: OnBody
    ) -> int:
        """The status; `on_body` sees the body as it comes. Raises ConnectionBroken."""
        data = self.address.head(method, path, headers, len(body)) + body
        while self._idle:
            kept = self._idle.pop()
            if not kept.is_open:
                continue
            try:
                return await self._exchange(kept, data, on_body)
            except ConnectionBroken:
                if kept.num_bytes:
                    raise
                # The server had closed it meanwhile: a fresh connection, as browsers do.
        return await self._exchange(await self._connect(), data, on_body)

    async def _exchange(self, connection: _Connection, data: bytes, on_body: OnBody) -> int:
        try:
            status = await connection.exchange(data, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._idle.append(connection)
        return status

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        host, port = self.address.host, self.address.port
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    _Connection, host, port, ssl=self._tls, happy_eyeballs_delay=0.25
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {CONNECT_S:.0f} s"
            raise ConnectionBroken(f"cannot connect to {host} port {port}: {reason}") from error
        return connection

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)
