"""TCP and TLS streams for httpcore that stop reading at once when nobody takes what came.

anyio's stream pauses its socket only when its reader runs next; until then a fast upstream fills
memory, up to megabytes a stream. Here the pause is made where the bytes arrive.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import httpcore

BUFFER_BYTES = 32 * 1024  # taken from the socket in one go
UNREAD_BYTES_MAX = 32 * 1024  # then the socket is left alone


class _Wire(asyncio.BufferedProtocol):
    """What has come and was not taken; who waits for more, or for room to write."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_over = False  # end of file, or the connection is lost
        self.error: Exception | None = None
        self.num_unread = 0
        self._unread: deque[bytes] = deque()
        self._buffer = bytearray(BUFFER_BYTES)
        self._is_paused = False
        self._can_write = True
        self._waiters: list[asyncio.Future[None]] = []

    # The loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._unread.append(bytes(memoryview(self._buffer)[:nbytes]))
        self.num_unread += nbytes
        if self.num_unread >= UNREAD_BYTES_MAX and not self._is_paused:
            assert self.transport is not None
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self.is_over = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.error = self.error or exc
        self._can_write = True
        self._wake()

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # The stream's side

    def take(self, max_bytes: int) -> bytes:
        """The next bytes; there must be some."""
        piece = self._unread.popleft()
        if len(piece) > max_bytes:
            self._unread.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        self.num_unread -= len(piece)
        if self._is_paused and self.num_unread < UNREAD_BYTES_MAX // 2:
            self._is_paused = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
        return piece

    @property
    def is_readable(self) -> bool:
        return self.num_unread > 0 or self.is_over

    @property
    def is_writable(self) -> bool:
        return self._can_write

    async def until(self, holds: Callable[[], bool], wait_s: float | None) -> bool:
        """Whether the condition held in time."""
        if holds():
            return True
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        is_late = False

        def late() -> None:
            nonlocal is_late
            is_late = True
            self._wake()

        if wait_s is not None:
            timer = loop.call_later(max(0.0, wait_s), late)
        try:
            while not holds() and not is_late:
                waiter = loop.create_future()
                self._waiters.append(waiter)
                await waiter
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters = [each for each in self._waiters if not each.done()]
        return holds()


class WireStream(httpcore.AsyncNetworkStream):
    """One connection. At most two buffers of it are in memory unread."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        wire = self._wire
        if not wire.num_unread and not await wire.until(lambda: wire.is_readable, timeout):
            raise httpcore.ReadTimeout(f"nothing came within {timeout} s")
        if wire.num_unread:
            return wire.take(max_bytes)
        if wire.error is not None:
            raise httpcore.ReadError(str(wire.error)) from wire.error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        wire = self._wire
        if not buffer:
            return
        self._check_writable()
        assert wire.transport is not None
        wire.transport.write(buffer)
        if not wire.is_writable and not await wire.until(lambda: wire.is_writable, timeout):
            raise httpcore.WriteTimeout(f"the peer took nothing within {timeout} s")
        if wire.error is not None:
            raise httpcore.WriteError(str(wire.error)) from wire.error

    def _check_writable(self) -> None:
        wire = self._wire
        if wire.transport is None or wire.transport.is_closing() or wire.is_over:
            raise httpcore.WriteError("the peer has closed the connection") from wire.error

    async def aclose(self) -> None:
        """Drop the connection with all that was not sent; what an answer's end wants."""
        transport = self._wire.transport
        if transport is not None:
            transport.abort()
            await asyncio.sleep(0)  # the loop closes the socket

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        wire = self._wire
        assert wire.transport is not None
        try:
            async with asyncio.timeout(timeout):
                transport = await asyncio.get_running_loop().start_tls(
                    wire.transport, wire, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            wire.transport.abort()
            raise httpcore.ConnectTimeout(f"no TLS handshake within {timeout} s") from error
        except (OSError, ssl.SSLError) as error:
            wire.transport.abort()
            raise httpcore.ConnectError(str(error)) from error
        except BaseException:
            wire.transport.abort()
            raise
        assert transport is not None
        wire.transport = transport
        return self

    def get_extra_info(self, info: str) -> Any:
        wire = self._wire
        if info == "is_readable":
            return wire.is_readable
        name = {"client_addr": "sockname", "server_addr": "peername"}.get(info, info)
        return wire.transport.get_extra_info(name) if wire.transport is not None else None


async def connect(
    address: str, port: int, *, socket_options: Iterable[tuple[int, int, int]] = ()
) -> WireStream:
    """A connection to one address, as it is. Raises httpcore.ConnectError."""
    loop = asyncio.get_running_loop()
    try:
        transport, wire = await loop.create_connection(_Wire, address, port)
    except OSError as error:
        raise httpcore.ConnectError(str(error)) from error
    sock = transport.get_extra_info("socket")
    for option in socket_options:
        sock.setsockopt(*option)
    return WireStream(wire)
