"""What the engine reports to one waiting request, handed over on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from backend.engine.interface import TokenEvent
from backend.errors import BackendError


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine has the request in its queue."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine will not, or no longer, work on the request."""

    request_id: str
    error: BackendError


Report = TokenEvent | Accepted | Refused


class Mailbox:
    """Reports in order. One reader; all calls on the loop's thread."""

    __slots__ = ("_is_closed", "_reports", "_waiter")

    def __init__(self) -> None:
        self._reports: deque[Report] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def put(self, report: Report) -> None:
        self._reports.append(report)
        self._wake()

    def close(self) -> None:
        """Nobody will answer the client any more: the reader wakes and finds it closed."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self, deadline_s: float) -> list[Report]:
        """All that is there, waiting until there is something; empty when the loop's clock
        passes `deadline_s` or the box was closed."""
        if not self._reports and not self._is_closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._waiter
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        taken = list(self._reports)
        self._reports.clear()
        return taken
