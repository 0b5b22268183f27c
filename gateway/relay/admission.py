"""Bounded waiting for a slot when every endpoint is full: interactive first, batch is shed first.

An interactive request waits at most `wait_s_max` (an answer after that is worth less than an
honest 503 with Retry-After), in order of arrival, and only in a line so short that it moves on
within the time of one answer. A batch request does not wait at all and leaves headroom for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from gateway.core import Lane
from gateway.errors import Overloaded

WAITERS_MAX = 1024
WAITERS_MIN = 4  # may wait for endpoints of which nothing is known
INTERACTIVE_WAIT_S_MAX = 2.0
BATCH_SHARE_MAX = 0.8  # of the requests the process may have in flight
LINE_ANSWERS = 0.75  # the last in the line waits for about so much of one answer's time
WAIT_S_MIN = 0.001
LOOK_AGAIN_S = 0.25  # capacity also grows without a request ending
SERVICE_SHARE = 0.1  # of the newest answer in the mean of an endpoint
ENDPOINTS_MAX = 10_000


class _Waiter:
    """One request in the line and the endpoints that would do for it."""

    __slots__ = ("turn", "wanted")

    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted  # empty: any
        self.turn: asyncio.Future[None] | None = None

    def wants(self, endpoint_id: str) -> bool:
        return not self.wanted or not endpoint_id or endpoint_id in self.wanted

    def competes_for(self, wanted: Collection[str]) -> bool:
        return not self.wanted or not wanted or not self.wanted.isdisjoint(wanted)


class Admission:
    """Counts requests in flight in this process and lines up those that find no slot."""

    def __init__(self, in_flight_max: int, *, wait_s_max: float = INTERACTIVE_WAIT_S_MAX) -> None:
        self.in_flight = 0
        self.in_flight_max = in_flight_max
        self.wait_s_max = wait_s_max
        self._idle = asyncio.Event()
        self._idle.set()
        self._line: list[_Waiter] = []  # in order of arrival
        self._service_s: dict[str, float] = {}  # endpoint → how long its answers take

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

    def leave(self, endpoint_id: str = "") -> None:
        """Give the place back and wake who waited longest for the endpoint that is free now."""
        assert self.in_flight > 0

        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
        self.wake(endpoint_id)

    def served(self, endpoint_id: str, service_s: float) -> None:
        """An endpoint gave a whole answer in so many seconds."""
        known = self._service_s.get(endpoint_id)
        if known is None and len(self._service_s) >= ENDPOINTS_MAX:
            self._service_s.clear()  # endpoints of policies long gone
        step = 1.0 if known is None else SERVICE_SHARE
        self._service_s[endpoint_id] = (known or 0.0) * (1.0 - step) + service_s * step

    def wake(self, endpoint_id: str = "") -> None:
        """Let the first who waits for this endpoint try; "" = the first of all."""
        for waiter in self._line:
            turn = waiter.turn
            if turn is not None and not turn.done() and waiter.wants(endpoint_id):
                turn.set_result(None)
                return

    async def wait_idle(self, wait_s: float) -> bool:
        """Whether nothing is in flight within `wait_s`; what a drain waits for."""
        try:
            await asyncio.wait_for(self._idle.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    def is_awaited(self, endpoint_id: str, turn: Turn | None = None) -> bool:
        """Whether someone in the line before `turn` wants this endpoint."""
        own = turn.waiter if turn is not None else None
        for waiter in self._line:
            if waiter is own:
                return False
            if waiter.wants(endpoint_id):
                return True
        return False

    def places_in_line(self, wanted: Collection[str], capacity: float) -> float:
        """How many may wait for these endpoints so that the last does so for LINE_ANSWERS."""
        known = [self._service_s[each] for each in wanted if each in self._service_s]
        service_s = min(known) if known else self.wait_s_max
        share = min(LINE_ANSWERS, self.wait_s_max / max(service_s, 1e-3))
        return min(WAITERS_MAX, max(WAITERS_MIN, capacity * share))


class Turn:
    """One request's standing in the line; leaves it with the context."""

    def __init__(self, admission: Admission, lane: Lane, clock: Callable[[], float]) -> None:
        self.waited_s = 0.0
        self.waiter: _Waiter | None = None
        self._admission = admission
        self._lane = lane
        self._clock = clock

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self.waiter is None:
            return
        self._admission._line.remove(self.waiter)
        # Who gave up, and who got one of several free places, leaves a chance to the next.
        self._admission.wake()

    async def wait(
        self, wanted: Collection[str] = (), capacity: float = 0.0, *, free_in_s: float = 0.0
    ) -> None:
        """Wait until a request at one of the endpoints `wanted` ends, or a moment.

        `capacity`: their learned capacity together. `free_in_s`: no use before that. Raises
        Overloaded at once for batch, when the line is full, or when the time for waiting is spent.
        """
        admission = self._admission
        left_s = admission.wait_s_max - self.waited_s
        is_late = left_s <= max(free_in_s, WAIT_S_MIN)
        if self._lane is Lane.BATCH or is_late or self._is_line_full(wanted, capacity):
            least_s = 5.0 if self._lane is Lane.BATCH else 1.0
            raise Overloaded(
                "every endpoint that could serve this request is at its learned capacity",
                retry_after_s=max(least_s, free_in_s),
            )
        if self.waiter is None:
            self.waiter = _Waiter(frozenset(wanted))
            admission._line.append(self.waiter)
        else:
            self.waiter.wanted = frozenset(wanted)
        began_at_s = self._clock()
        self.waiter.turn = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(self.waiter.turn, min(left_s, LOOK_AGAIN_S))
        except TimeoutError:
            pass
        finally:
            self.waiter.turn = None
        self.waited_s += self._clock() - began_at_s

    def _is_line_full(self, wanted: Collection[str], capacity: float) -> bool:
        if self.waiter is not None:
            return False
        rivals = sum(each.competes_for(wanted) for each in self._admission._line)
        return rivals >= self._admission.places_in_line(wanted, capacity)
