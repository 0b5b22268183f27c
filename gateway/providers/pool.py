"""Keeps connections alive by origin; a request costs the same however many are open.

httpcore's own pool looks at every connection (and polls each idle socket) at every request and
every close: with a hundred streams open that was over a quarter of the gateway's time. Its
connections are used as they are; only which one to take is decided here.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterable, AsyncIterator

import httpcore

_Key = tuple[bytes, bytes, int | None]


class KeepAlivePool:
    """At most `connections_max` open at once; at most `idle_max` of them kept for `idle_s_max`."""

    def __init__(
        self,
        ssl_context: ssl.SSLContext,
        backend: httpcore.AsyncNetworkBackend,
        *,
        connections_max: int,
        idle_max: int,
        idle_s_max: float,
    ) -> None:
        self._ssl_context = ssl_context
        self._backend = backend
        self._idle_max = idle_max
        self._idle_s_max = idle_s_max
        self._slots = asyncio.Semaphore(connections_max)
        self._idle: dict[_Key, deque[httpcore.AsyncHTTPConnection]] = {}
        # Every idle connection in the order it became idle: the first to forget comes first.
        self._since_s: OrderedDict[httpcore.AsyncHTTPConnection, tuple[float, _Key]] = OrderedDict()
        self._active: set[httpcore.AsyncHTTPConnection] = set()

    async def handle_async_request(self, request: httpcore.Request) -> httpcore.Response:
        """Send over an idle connection or a new one. Raises PoolTimeout when none becomes free."""
        await self._enter(request.extensions.get("timeout", {}).get("pool"))
        connection: httpcore.AsyncHTTPConnection | None = None
        try:
            connection = await self._taken(request.url)
            answer = await connection.handle_async_request(request)
        except BaseException:
            if connection is not None:
                # httpcore has closed the socket already if it was opened; this only tidies up.
                await asyncio.shield(self._discard(connection))
            self._slots.release()
            raise
        stream = answer.stream
        assert isinstance(stream, AsyncIterable)
        return httpcore.Response(
            status=answer.status,
            headers=answer.headers,
            content=_Body(stream, connection, self, _key(request.url)),
            extensions=answer.extensions,
        )

    async def _enter(self, wait_s: float | None) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise httpcore.PoolTimeout(
                "every connection that may be open at once is in use"
            ) from None

    async def _taken(self, url: httpcore.URL) -> httpcore.AsyncHTTPConnection:
        """An idle connection that is still good, the one used last first; else a new one."""
        idle = self._idle.get(_key(url))
        while idle:
            connection = idle.pop()
            del self._since_s[connection]
            if not connection.has_expired():
                self._active.add(connection)
                return connection
            await connection.aclose()
        connection = httpcore.AsyncHTTPConnection(
            origin=url.origin,
            ssl_context=self._ssl_context,
            keepalive_expiry=self._idle_s_max,
            network_backend=self._backend,
        )
        self._active.add(connection)
        return connection

    async def release(self, connection: httpcore.AsyncHTTPConnection, key: _Key) -> None:
        """The answer is closed: keep the connection if it can carry another, else close it."""
        if connection not in self._active:
            return
        self._slots.release()
        if not connection.is_idle():
            await self._discard(connection)
            return
        self._active.discard(connection)
        self._idle.setdefault(key, deque()).append(connection)
        self._since_s[connection] = (time.monotonic(), key)
        await self._forget_oldest()

    async def _forget_oldest(self) -> None:
        """Close what is over age or number; nothing else is looked at."""
        while self._since_s:
            oldest, (since_s, key) = next(iter(self._since_s.items()))
            is_old = time.monotonic() - since_s > self._idle_s_max
            if not is_old and len(self._since_s) <= self._idle_max:
                return
            del self._since_s[oldest]
            self._idle[key].remove(oldest)
            if not self._idle[key]:
                del self._idle[key]
            await oldest.aclose()

    async def _discard(self, connection: httpcore.AsyncHTTPConnection) -> None:
        self._active.discard(connection)
        await connection.aclose()

    async def aclose(self) -> None:
        """Close every connection, those in use too."""
        connections = [*self._since_s, *self._active]
        self._since_s.clear()
        self._idle.clear()
        self._active.clear()
        for connection in connections:
            await connection.aclose()


def _key(url: httpcore.URL) -> _Key:
    return (url.scheme, url.host, url.port)


class _Body:
    """An answer's body that gives its connection back when it is closed."""

    def __init__(
        self,
        stream: AsyncIterable[bytes],
        connection: httpcore.AsyncHTTPConnection,
        pool: KeepAlivePool,
        key: _Key,
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._pool = pool
        self._key = key
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._stream.aclose()  # type: ignore[attr-defined]  # an async byte stream
        finally:
            await asyncio.shield(self._pool.release(self._connection, self._key))
