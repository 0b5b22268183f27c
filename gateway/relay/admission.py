"""Bounded waiting for a slot when every endpoint is full: interactive first, batch is shed first.

An interactive request waits at most `wait_s_max` (an answer after that is worth less than an
honest 503 with Retry-After); a batch request does not wait at all and leaves headroom for others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from gateway.core import Lane
from gateway.errors import Overloaded

WAITERS_MAX = 1024
INTERACTIVE_WAIT_S_MAX = 2.0
BATCH_SHARE_MAX = 0.8  # of the requests the process may have in flight


class Admission:
    """Counts requests in flight in this process and queues those that find no slot."""

    def __init__(self, in_flight_max: int, *, wait_s_max: float = INTERACTIVE_WAIT_S_MAX) -> None:
        self.in_flight = 0
        self.in_flight_max = in_flight_max
        self._wait_s_max = wait_s_max
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def enter(self, lane: Lane) -> None:
        """Take a place in this process. Raises Overloaded: batch at 80 %, others when full."""
        is_batch = lane is Lane.BATCH
        limit = self.in_flight_max * (BATCH_SHARE_MAX if is_batch else 1.0)
        if self.in_flight >= limit:
            raise Overloaded(
                f"{self.in_flight} requests are in flight and this gateway takes "
                f"{int(limit)} of the {lane.value} lane; try again shortly",
                retry_after_s=5.0 if is_batch else 1.0,
            )
        self.in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Give the place back and wake the longest waiter, for an endpoint slot may be free."""
        assert self.in_flight > 0

        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def wait_idle(self, wait_s: float) -> bool:
        """Whether nothing is in flight within `wait_s`; what a drain waits for."""
        try:
            await asyncio.wait_for(self._idle.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    async def wait_for_slot(self, lane: Lane, waited_s: float, clock: Callable[[], float]) -> float:
        """Wait until some request ends; returns the seconds waited in all.

        Raises Overloaded at once for batch, when the queue is full, or when `wait_s_max` is spent.
        """
        left_s = self._wait_s_max - waited_s
        if lane is Lane.BATCH or left_s <= 0 or len(self._waiters) >= WAITERS_MAX:
            raise Overloaded(
                "every endpoint that could serve this request is at its learned capacity",
                retry_after_s=5.0 if lane is Lane.BATCH else 2.0,
            )
        began_at_s = clock()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            # Capacity also grows without a request ending, so no wait is longer than this.
            await asyncio.wait_for(waiter, min(left_s, 0.25))
        except TimeoutError:
            pass
        finally:
            if not waiter.done():
                waiter.cancel()
        return waited_s + clock() - began_at_s
