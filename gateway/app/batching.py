"""Builds the batch lane over a running gateway, and keeps its worker going."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.app.housekeeping import tell_of_end
from gateway.batch.file_handlers import drop_objects
from gateway.batch.lane import BatchLane
from gateway.batch.native_lane import NativeLane
from gateway.batch.planning import LanePlanner
from gateway.batch.storage import open_storage
from gateway.batch.worker import BatchWorker
from gateway.errors import ServiceError
from gateway.pipeline import Gateway
from gateway.providers.httpx_transport import HttpxTransport
from gateway.store.files import due_for_sweep, forget_files

log = structlog.get_logger()

SWEEP_EVERY_S = 300.0


@asynccontextmanager
async def running_batches(gateway: Gateway) -> AsyncIterator[BatchLane]:
    """The batch lane, with its worker and sweeper at work until the context ends."""
    settings = gateway.settings
    storage = open_storage(settings.files_url, settings.home)
    transport = HttpxTransport(clock=gateway.clock)
    owner = f"worker-{secrets.token_hex(8)}"
    native = NativeLane(gateway, storage, transport, owner=owner)
    planner = LanePlanner(gateway.policy, gateway.fleet, gateway.store, native.facts)
    worker = BatchWorker(gateway, storage, planner, native, owner=owner)
    lane = BatchLane(gateway, storage, planner, worker.wake)

    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(_sweep(lane))]
    for task in tasks:
        task.add_done_callback(tell_of_end)
    try:
        yield lane
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await transport.aclose()


async def _sweep(lane: BatchLane) -> None:
    """Take away the bytes of files that were deleted or whose time is over, and unfinished ones."""
    while True:
        try:
            if num_swept := await lane.storage.sweep_unfinished(now=lane.gateway.wall_clock()):
                log.info("unfinished files of killed writers taken away", num=num_swept)
            await sweep_once(lane)
        except (SQLAlchemyError, OSError, TimeoutError, ServiceError) as error:
            log.warning("files not swept, will try again", error=error)
        await asyncio.sleep(SWEEP_EVERY_S)


async def sweep_once(lane: BatchLane) -> int:
    """How many files went."""
    store = lane.gateway.store
    async with store.read() as connection:
        rows = await due_for_sweep(connection, now=lane.gateway.wall_clock())
    for row in rows:
        await drop_objects(lane.storage, row.storage_key)
    async with store.begin() as connection:
        await forget_files(connection, [row.id for row in rows])
    return len(rows)
