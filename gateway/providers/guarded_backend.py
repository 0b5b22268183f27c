"""httpcore's network layer: the network rule at every new connection, stamps at the socket."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import httpcore

from gateway.core import Network
from gateway.providers.netguard import ForbiddenTarget, check_address
from gateway.providers.sockets import connect
from gateway.providers.transport import SendProgress

Resolver = Callable[[str, int], Awaitable[list[str]]]

ADDRESSES_MAX = 8  # of one name; more are not tried
RECEIVE_BUFFER_BYTES = 256 * 1024  # the kernel's own choice is up to 32 MB a connection
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A client that does not read must stall its provider, not fill this machine's memory.
    (socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES),
)


class Sending:
    """One `send` in progress, as the socket layer sees it. Lives in a context variable."""

    __slots__ = ("has_failed_write", "is_connected", "progress", "stream")

    def __init__(self, progress: SendProgress) -> None:
        self.progress = progress
        self.stream: SocketStream | None = None  # the one the request was written to
        self.is_connected = False  # a new connection was made for this request
        self.has_failed_write = False  # some write was not accepted whole


_sending: contextvars.ContextVar[Sending] = contextvars.ContextVar("sending")


@contextlib.contextmanager
def sending(progress: SendProgress) -> Iterator[Sending]:
    """Follow the socket work that the current task does inside the block."""
    token = _sending.set(Sending(progress))
    try:
        yield _sending.get()
    finally:
        _sending.reset(token)


class SocketStream(httpcore.AsyncNetworkStream):
    """A connected socket that remembers when bytes last came and whether any came at all."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self.read_at_s = 0.0
        self.num_reads = 0  # since the last write

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        received = await self._inner.read(max_bytes, timeout)
        self.read_at_s = self._clock()
        if received:
            self.num_reads += 1
        return received

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        current = _sending.get()
        current.stream = self
        self.num_reads = 0
        try:
            await self._inner.write(buffer, timeout)
        except httpcore.WriteError:
            current.has_failed_write = True
            raise
        finally:
            # Even a failed write may have left bytes on the wire, unless it was the first.
            if not current.has_failed_write:
                current.progress.is_sent = True

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return SocketStream(inner, self._clock)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves, judges every address, connects to a judged one. Serves one kind of network."""

    def __init__(
        self, network: Network, *, clock: Callable[[], float], resolve: Resolver | None = None
    ) -> None:
        self._network = network
        self._clock = clock
        self._resolve = resolve or resolve_with_system
        self.num_connections = 0
        self.num_forbidden = 0

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                stream = await self._connect(host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection within {timeout} s") from error
        except ForbiddenTarget:
            self.num_forbidden += 1
            raise
        except OSError as error:
            raise httpcore.ConnectError(f"cannot resolve {host}: {error}") from error
        self.num_connections += 1
        _sending.get().is_connected = True
        return SocketStream(stream, self._clock)

    async def _connect(self, host: str, port: int) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not addresses:
            raise httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            # One bad address spoils the name: a mixed answer is what rebinding looks like.
            check_address(address, self._network)
        failure: httpcore.ConnectError | None = None
        for address in addresses[:ADDRESSES_MAX]:
            try:
                return await connect(address, port, socket_options=_SOCKET_OPTIONS)
            except httpcore.ConnectError as error:
                failure = error
        assert failure is not None
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("sockets in the file system are not used")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def resolve_with_system(host: str, port: int) -> list[str]:
    """Addresses of a name in the system's order of preference, each once."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
