"""Providers' batch APIs as lanes: gather lines, submit, poll, collect, re-attach after a restart.

Each endpoint is served by a task of its own: one that does not answer holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.batch.native_open import OpenNatives
from gateway.batch.native_submit import RETRY_S, Submitting
from gateway.batch.native_watch import Watching
from gateway.batch.offers import Turnaround as Quantiles
from gateway.batch.planning import NativeFacts
from gateway.batch.storage import FileStorage
from gateway.core import Endpoint
from gateway.errors import ServiceError
from gateway.pipeline import Gateway
from gateway.policy.placement import NATIVE
from gateway.providers.transport import Transport
from gateway.store.batches import BatchRow
from gateway.store.native_batches import LaneDue, NativeRow

log = structlog.get_logger()

InputGone = Callable[[str], Awaitable[None]]


class NativeLane:
    """All providers' batches of this process. Used from one event loop.

    `input_gone` is told of an input file whose content is gone.
    """

    def __init__(
        self, gateway: Gateway, storage: FileStorage, transport: Transport, *, owner: str
    ) -> None:
        self._gateway = gateway
        self._natives = OpenNatives(gateway, transport, owner=owner)
        self._submitting = Submitting(gateway, storage, self._natives)
        self._watching = Watching(gateway, self._natives)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rests_until_s: dict[str, float] = {}

    # What the planner wants to know

    def facts(self) -> NativeFacts:
        """Of this instant: endpoints with an API, turnarounds, since when each batch runs."""
        now = self._gateway.wall_clock()
        rows = self._natives.rows.values()
        endpoints, turnarounds = set(), {}
        for endpoint in self._gateway.policy().endpoints.values():
            if self._natives.api(endpoint) is None:
                continue
            endpoints.add(endpoint.id)
            learned = self._natives.turnaround(endpoint.id)
            ages = tuple(
                now - row.submitted_at
                for row in rows
                if row.endpoint_id == endpoint.id and row.submitted_at is not None
            )
            p50_s, p95_s = learned.quantiles(ages)
            turnarounds[endpoint.id] = Quantiles(p50_s, p95_s, learned.opens_at_s)
        since = {row.id: row.submitted_at or now for row in rows}
        return NativeFacts(frozenset(endpoints), turnarounds, since)

    # At start and in between

    async def take_over(self) -> None:
        """Know again what runs at providers, and how long they took before."""
        await self._natives.learn()
        await self._natives.renew(is_first=True)

    async def renew(self) -> None:
        """Say that this process lives; on PostgreSQL, take what dead ones left."""
        await self._natives.renew()

    # A round

    def serve(
        self,
        rows: Sequence[BatchRow],
        due: Sequence[LaneDue],
        *,
        now: float,
        input_gone: InputGone,
        wake: Callable[[], None],
    ) -> None:
        """Set to work on what is due, endpoint by endpoint; returns at once."""
        looks: dict[str, list[NativeRow]] = defaultdict(list)
        for row in self._natives.due(now, but_of=self._tasks):
            looks[row.endpoint_id].append(row)
        by_id = {row.id: row for row in rows}
        lanes: dict[str, list[tuple[BatchRow, str]]] = defaultdict(list)
        for each in due:
            endpoint_id, _, kind = each.lane.rpartition("#")
            if kind == NATIVE and self._rests_until_s.get(endpoint_id, 0.0) <= now:
                lanes[endpoint_id].append((by_id[each.batch_id], each.lane))
        for endpoint_id in (looks.keys() | lanes.keys()) - self._tasks.keys():
            work = self._endpoint(endpoint_id, looks[endpoint_id], lanes[endpoint_id], input_gone)
            task = self._tasks[endpoint_id] = asyncio.create_task(work)
            task.add_done_callback(partial(self._ended, endpoint_id, wake))

    def _ended(self, endpoint_id: str, wake: Callable[[], None], _task: asyncio.Task[None]) -> None:
        self._tasks.pop(endpoint_id, None)
        wake()

    async def _endpoint(
        self,
        endpoint_id: str,
        looks: Sequence[NativeRow],
        lanes: Sequence[tuple[BatchRow, str]],
        input_gone: InputGone,
    ) -> None:
        for row in looks:
            await self._guarded(endpoint_id, self._watching.look(row))
        endpoint = self._gateway.policy().endpoints.get(endpoint_id)
        if endpoint is None:
            return
        for batch, lane in lanes:
            await self._guarded(endpoint_id, self._submit(batch, endpoint, lane, input_gone))

    async def _submit(
        self, batch: BatchRow, endpoint: Endpoint, lane: str, input_gone: InputGone
    ) -> None:
        try:
            await self._submitting.submit(batch, endpoint, lane)
        except FileNotFoundError:
            await input_gone(batch.input_file_id)

    async def _guarded(self, endpoint_id: str, work: Awaitable[None]) -> None:
        """A database that is away costs time, and a bug of ours this endpoint a while."""
        try:
            await work
            return
        except (SQLAlchemyError, OSError, TimeoutError, ServiceError) as error:
            log.warning("native batch work failed, will try again", error=error)
        except Exception as error:
            log.error("native batch work failed by our own fault", error=error, exc_info=error)
        self._rests_until_s[endpoint_id] = self._gateway.wall_clock() + RETRY_S

    # Stopping

    def cancel(self, native_id: str) -> None:
        """Its provider is asked to stop at the next look, which is now; results are collected."""
        self._natives.cancel(native_id)

    def cancel_batch(self, batch_id: str) -> None:
        for row in self._natives.rows.values():
            if row.batch_id == batch_id:
                self._natives.cancel(row.id)

    async def stop(self) -> None:
        """End what is under way here; what runs at providers runs on, for whoever comes next."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._natives.leave()
