"""One request's ASGI connection: body, sends, waits that end when the client leaves, cuts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_BYTES_MAX = 32 * 1024 * 1024
CLOSE_S_MAX = 30.0  # for a client that does not read what was written before a cut


class Timers(Protocol):
    """The clock, and a callback at an instant of it. An asyncio loop is one; tests bring theirs."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Any: ...


class BodyTooLarge(Exception):
    pass


class ClientGone(Exception):
    """The client left before its request was read."""


class Connection:
    """The wire side of one request. No task a token: one timer a wait, one watcher a request."""

    def __init__(self, scope: Message, receive: Receive, send: Send, timers: Timers) -> None:
        self._transport = scope.get("extensions", {}).get("simulator.transport")
        self._receive = receive
        self._send = send
        self._timers = timers
        self._waiter: asyncio.Future[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.is_gone = False
        self.is_started = False

    async def body(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise BodyTooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def watch(self) -> None:
        """From now on `is_gone` tells when the client left. Call once, after `body`."""
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_until(self, when_s: float) -> bool:
        """Whether the client is still there at `when_s`; False at once when it leaves."""
        if self.is_gone:
            return False
        if when_s <= self._timers.time():
            return True
        self._waiter = asyncio.get_running_loop().create_future()
        handle = self._timers.call_at(when_s, self._wake)
        try:
            await self._waiter
        finally:
            handle.cancel()
            self._waiter = None
        return not self.is_gone

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes, *, more: bool = True) -> bool:
        """Whether the bytes went to the transport; False when the client has left.

        The server drops bytes for a lost connection in silence. Without a wait in `_send` the
        connection cannot have been lost meanwhile, so asking afterwards is exact.
        """
        if self.is_gone:
            return False
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        return not (self.is_gone or (self._transport is not None and self._transport.is_closing()))

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, [*headers, length])
        await self.send(body, more=False)

    async def cut(self) -> None:
        """Close the connection under the client: what was written still arrives, no end mark."""
        if self._transport is not None:
            self._transport.close()
            await self.wait_until(self._timers.time() + CLOSE_S_MAX)

    async def abort(self) -> None:
        """Close the connection and drop what was not yet sent."""
        if self._transport is not None:
            self._transport.abort()
            await self.wait_until(self._timers.time() + CLOSE_S_MAX)

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
