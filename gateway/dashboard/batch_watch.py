"""What pages and streams of batches share: counts that are not taken anew for each of them.

To count a batch all of its lines are read, up to 50,000. So at most LINES_A_LOOK are read at a
time, one look after the other; a batch that has ended is counted once; and what was counted less
than FRESH_S ago stands, however many pages watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from cachetools import LRUCache

from gateway.dashboard.batch_data import BatchShown, batch_shown, plan_of, problems_of
from gateway.dashboard.batch_opened import (
    ErrorKind,
    OpenedBatch,
    errors_of,
    files_of,
    history_of,
    natives_shown,
)
from gateway.dashboard.batch_queries import (
    Filters,
    Found,
    LaneCount,
    count_lanes,
    list_page,
    names_of,
)
from gateway.dashboard.page import Desk
from gateway.dashboard.queries_requests import Place
from gateway.errors import NotFound
from gateway.store.batches import BatchRow, batch_of_id

FRESH_S = 2.0
ERRORS_FRESH_S = 10.0  # all failed lines are read for them
LINES_A_LOOK = 60_000  # one batch of the largest size always fits
KNOWN_MAX = 2_000

Counts = tuple[LaneCount, ...]


class BatchDesk:
    """One for all pages, streams and the API."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._gateway = desk.gateway
        self._known: LRUCache[str, tuple[float, Counts]] = LRUCache(KNOWN_MAX)
        self._errors: LRUCache[tuple[str, bool], tuple[float, int, list[ErrorKind]]] = LRUCache(
            KNOWN_MAX
        )
        self._turn = asyncio.Lock()

    async def list_page(
        self, filters: Filters, before: Place | None
    ) -> tuple[Found, list[BatchShown]]:
        async with self._gateway.store.read() as connection:
            found = await list_page(connection, filters, before=before)
        return found, await self.shown(found.rows)

    async def shown(self, rows: Sequence[BatchRow]) -> list[BatchShown]:
        counts = await self.counts(rows)
        async with self._gateway.store.read() as connection:
            names = await names_of(connection, rows)
        now = self._gateway.wall_clock()
        return [batch_shown(row, counts.get(row.id), names, now=now) for row in rows]

    async def counts(self, rows: Sequence[BatchRow]) -> dict[str, Counts]:
        """Of those that are known or can be counted now; what was known longest ago comes first."""
        async with self._turn:
            clock_s = self._gateway.clock()
            stale = [row for row in rows if self._counted_at(row) <= clock_s - FRESH_S]
            wanted: list[BatchRow] = []
            num_lines = 0
            for row in sorted(stale, key=self._counted_at):
                if wanted and num_lines + row.num_lines > LINES_A_LOOK:
                    break
                wanted.append(row)
                num_lines += row.num_lines
            if wanted:
                async with self._gateway.store.read() as connection:
                    found = await count_lanes(connection, [row.id for row in wanted])
                for row in wanted:
                    # Nothing of a batch that has ended changes any more.
                    until_s = float("inf") if row.is_ended else clock_s
                    self._known[row.id] = (until_s, tuple(found[row.id]))
            return {row.id: self._known[row.id][1] for row in rows if row.id in self._known}

    def _counted_at(self, row: BatchRow) -> float:
        """By our clock; never, where it was before its end, and for ever, where it was after."""
        at_s = self._known[row.id][0] if row.id in self._known else float("-inf")
        return float("-inf") if row.is_ended and at_s < float("inf") else at_s

    async def find(self, batch_id: str) -> BatchRow:
        """Of whichever tenant. Raises NotFound."""
        async with self._gateway.store.read() as connection:
            row = await batch_of_id(connection, batch_id)
        if row is None:
            raise NotFound(f"there is no batch {batch_id[:80]!r}")
        return row

    async def opened(self, row: BatchRow, *, may_read: bool) -> OpenedBatch:
        (batch,) = await self.shown([row])
        now = self._gateway.wall_clock()
        async with self._gateway.store.read() as connection:
            natives = await natives_shown(connection, row.id)
            files = await files_of(connection, row, now=now)
            history = await history_of(connection, row)
        num_failed = batch.progress.failed if batch.progress is not None else 0
        return OpenedBatch(
            batch=batch,
            plan=plan_of(row),
            problems=problems_of(row),
            natives=natives,
            errors=await self._errors_of(row, num_failed, may_read=may_read),
            files=files,
            history=history,
            metadata=metadata_of(row),
        )

    async def _errors_of(
        self, row: BatchRow, num_failed: int, *, may_read: bool
    ) -> list[ErrorKind]:
        if not num_failed:
            return []
        at_s, known, kinds = self._errors.get((row.id, may_read), (float("-inf"), 0, []))
        clock_s = self._gateway.clock()
        if known != num_failed and clock_s - at_s >= ERRORS_FRESH_S:
            kinds = await errors_of(self.desk, row, may_read=may_read)
            self._errors[row.id, may_read] = (clock_s, num_failed, kinds)
        return kinds


def metadata_of(row: BatchRow) -> dict[str, str]:
    try:
        return msgspec.json.decode(row.metadata, type=dict[str, str]) if row.metadata else {}
    except msgspec.MsgspecError:
        return {}
