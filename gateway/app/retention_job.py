"""Deletes what has outlived its age while the gateway serves: by slices, with pauses, at any time.

Each slice is a transaction of its own and takes the oldest first, so that whoever is stopped in
between leaves nothing half done, and the next round goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.dashboard.sessions import IDLE_S
from gateway.store import admins, idempotency
from gateway.store.engine import Store
from gateway.store.retention import chosen_days, kept_of, purge_aged, take_turn

log = structlog.get_logger()

SLICE_ROWS_MAX = 500
SLICE_ROWS_MIN = 20
SLICE_S = 0.05  # the writer is held for about so long, by fewer rows where the disk is slow
PAUSE_S = 0.05  # and not again for so long, nor for as long as it was held

Work = Callable[[AsyncConnection, float, int], Awaitable[int]]  # connection, now, rows


class RetentionJob:
    """`given` is what the environment says; the dashboard's word is read anew each round."""

    def __init__(
        self,
        store: Store,
        given: Mapping[str, int],
        *,
        wall_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._given = given
        self._wall_clock = wall_clock
        self._clock = clock
        self._sleep = sleep
        self.rows = SLICE_ROWS_MAX  # of the next slice

    async def run(self) -> dict[str, int]:
        """Until nothing is left that is too old; how many rows of each kind went."""
        gone: dict[str, int] = {}
        for name, work in (await self._works()).items():
            while num := await self._slice(work):
                gone[name] = gone.get(name, 0) + num
        if gone:
            log.info("rows outlived their age", **gone)
        return gone

    async def _works(self) -> dict[str, Work]:
        async with self._store.read() as connection:
            kept = kept_of(self._given, await chosen_days(connection))

        def aged(name: str) -> Work:
            return lambda connection, now, rows: purge_aged(
                connection, kept[name], now=now, rows=rows
            )

        return {
            **{name: aged(name) for name in kept},
            "sessions": lambda connection, now, rows: admins.purge_sessions(
                connection, now=now, idle_since=now - IDLE_S, rows=rows
            ),
            "idempotency": lambda connection, now, rows: idempotency.purge_expired(
                connection, now=now, rows=rows
            ),
        }

    async def _slice(self, work: Work) -> int:
        """One transaction and the pause after it."""
        async with self._store.begin() as connection:
            begun = self._clock()
            if not await take_turn(connection):
                return 0
            num = await work(connection, self._wall_clock(), self.rows)
        took_s = self._clock() - begun
        if took_s > SLICE_S:
            self.rows = max(SLICE_ROWS_MIN, self.rows // 2)
        elif took_s < SLICE_S / 2:
            self.rows = min(SLICE_ROWS_MAX, self.rows * 2)
        if num:
            await self._sleep(max(PAUSE_S, took_s))
        return num
