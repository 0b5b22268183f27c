"""Writes what lines came to, many in one transaction, and lets each wait until its own is written.

An answer is kept before its attempt is settled, so a line whose money was settled is never sent
again; its cost follows after. A kill between the two leaves a line whose cost the ledger knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from sqlalchemy.exc import SQLAlchemyError

from gateway.store.batch_work import LineCost, LineResult, keep_costs, keep_results
from gateway.store.engine import Store

log = structlog.get_logger()

GATHER_S = 0.02
ROWS_MAX = 500
RETRY_S = 1.0
RETRIES_MAX = 60


class Keeper:
    """`run()` must be running. Bounded by how many lines are under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._results: list[tuple[LineResult, asyncio.Future[None]]] = []
        self._costs: list[LineCost] = []
        self._has_work = asyncio.Event()

    async def keep(self, result: LineResult) -> None:
        """Returns once the result is in SQL. Raises what the database said, after a minute."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._results.append((result, done))
        self._has_work.set()
        await done

    def note_cost(self, cost: LineCost) -> None:
        self._costs.append(cost)
        self._has_work.set()

    async def run(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(GATHER_S)
            await self.flush()

    async def flush(self) -> None:
        """Write what there is."""
        while self._results or self._costs:
            results, self._results = self._results[:ROWS_MAX], self._results[ROWS_MAX:]
            costs, self._costs = self._costs[:ROWS_MAX], self._costs[ROWS_MAX:]
            try:
                await self._write([each for each, _ in results], costs)
            except BaseException as error:
                for _, done in results:
                    if not done.done():
                        done.set_exception(
                            error if isinstance(error, Exception) else asyncio.CancelledError()
                        )
                if not isinstance(error, Exception):
                    raise
                log.error("results of batch lines are not kept", error=error, lines=len(results))
                continue
            for _, done in results:
                if not done.done():
                    done.set_result(None)
        self._has_work.clear()

    async def _write(self, results: Sequence[LineResult], costs: Sequence[LineCost]) -> None:
        for attempt in range(RETRIES_MAX):
            try:
                async with self._store.begin() as connection:
                    if results:
                        # Open: its time was over, and nobody else has taken it since.
                        await keep_results(connection, results, out_of=("leased", "open"))
                    if costs:
                        await keep_costs(connection, costs)
                return
            except (SQLAlchemyError, OSError, TimeoutError) as error:
                if attempt == RETRIES_MAX - 1:
                    raise
                log.warning("batch lines not kept, will try again", error=error)
                await asyncio.sleep(RETRY_S)
