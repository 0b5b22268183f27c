"""The bounded queue between an attempt's reader and the request's loop: one consumer, no locks."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

LATE_TURNS = 3

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`post` never waits; a reader that sees `is_full` waits for `room`, which stops its socket."""

    __slots__ = ("_bytes_max", "_events_max", "_letters", "_room", "_size", "_waiter")

    def __init__(self, *, events_max: int, bytes_max: int) -> None:
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._letters: deque[tuple[T, int]] = deque()
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Event | None = None

    @property
    def is_full(self) -> bool:
        return self._size >= self._bytes_max or len(self._letters) >= self._events_max

    def post(self, event: T, size: int = 0, *, is_urgent: bool = False) -> None:
        """Queue an event; `is_urgent` puts it before all others."""
        if is_urgent:
            self._letters.appendleft((event, size))
        else:
            self._letters.append((event, size))
        self._size += size
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def room(self) -> None:
        """Wait until the consumer has caught up to half of the limits."""
        if self._room is None:
            self._room = asyncio.Event()
        self._room.clear()
        while self.is_full:
            await self._room.wait()
            self._room.clear()

    async def _wait(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(wait_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def next(self, wait_s: float) -> T | None:
        """The next event, or None after `wait_s` seconds without one."""
        if not self._letters:
            if wait_s > 0:
                await self._wait(wait_s)
            # A process that was starved of CPU finds the data and the timer due in one turn. What
            # has come counts as in time, so what waits in the sockets gets its turns first.
            for _ in range(LATE_TURNS):
                if self._letters:
                    break
                await asyncio.sleep(0)
            if not self._letters:
                return None
        event, size = self._letters.popleft()
        self._size -= size
        if self._room is not None and (
            self._size * 2 <= self._bytes_max and len(self._letters) * 2 <= self._events_max
        ):
            self._room.set()
        return event


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
