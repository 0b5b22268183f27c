"""The client as the loop writes to it: lost once, and then silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from gateway.relay.job import ClientSink, Headers


class ClientSide:
    """Guards a ClientSink: a write that stalls or fails, or `gone`, loses the client for good."""

    def __init__(
        self, client: ClientSink, *, stalled_s_max: float, when_lost: Callable[[], None]
    ) -> None:
        self.is_lost = False  # nobody reads what we write
        self._client = client
        self._stalled_s_max = stalled_s_max
        self._when_lost = when_lost
        self._writing: asyncio.Timeout | None = None

    @property
    def is_started(self) -> bool:
        return self._client.is_started

    async def watch(self) -> None:
        """A task of its own: the loop may be stuck in a write when the client leaves."""
        await self._client.gone.wait()
        self._lose()

    async def start(self, status: int, headers: Headers) -> None:
        await self._guard(self._client.start(status, headers))

    async def send(self, frames: bytes) -> None:
        if frames:
            await self._guard(self._client.send(frames))

    async def end(self) -> None:
        await self._guard(self._client.finish())

    async def _guard(self, write: Coroutine[object, object, None]) -> None:
        if self.is_lost:
            write.close()
            return
        try:
            async with asyncio.timeout(self._stalled_s_max) as limit:
                self._writing = limit
                try:
                    await write
                finally:
                    self._writing = None
        except (TimeoutError, OSError):
            self._lose()

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._writing is not None and not self._writing.expired():
            self._writing.reschedule(0.0)  # in the past: the write ends now
        self._when_lost()
