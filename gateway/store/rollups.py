"""Sums by minute, hour and day: added up in memory, written in the transaction of their rows.

Whoever books attempts or writes request rows adds here and calls `write` last, so a kill leaves
both or neither. Buckets are written in one order by every process, so two never wait in a ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.rollup_tables import (
    GRAINS_S,
    REQUEST_NAMES,
    REQUEST_SUMS,
    SPEND_NAMES,
    SPEND_SUMS,
    request_rollups,
    spend_rollups,
)

Names = tuple[object, ...]


class Sums:
    """What one transaction adds to the roll-ups of a table."""

    def __init__(self, table: sa.Table, names: Sequence[str], sums: Sequence[str]) -> None:
        self.table = table
        self._names = tuple(names)
        self._sums = tuple(sums)
        self._found: dict[tuple[int, Names], list[int]] = {}

    def add(self, at_unix_s: float, names: Names, amounts: Sequence[int]) -> None:
        """Add to the minute of `at_unix_s`; both sequences in the table's own order."""
        key = (int(at_unix_s // 60) * 60, names)
        known = self._found.get(key)
        if known is None:
            self._found[key] = list(amounts)
            return
        for i, amount in enumerate(amounts):
            if amount:
                known[i] += amount

    def rows(self) -> list[tuple[Any, ...]]:
        """A row a grain and bucket, in the order that they are to be written in."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for (minute, names), amounts in self._found.items():
            for grain, size_s in GRAINS_S.items():
                key = (grain, minute // size_s * size_s, *names)
                known = found.setdefault(key, [0] * len(amounts))
                for i, amount in enumerate(amounts):
                    known[i] += amount
        return [(*key, *found[key]) for key in sorted(found) if any(found[key])]

    async def write(self, connection: AsyncConnection) -> None:
        """Add to what is there. Call it last: the rows stay locked until the transaction ends."""
        rows = self.rows()
        if rows:
            names = ("grain", "bucket_start", *self._names, *self._sums)
            statement = _adding(connection.dialect, self.table, names, self._sums)
            await connection.exec_driver_sql(statement, rows)


def spend_sums() -> Sums:
    """Of ended attempts; names are SPEND_NAMES and `is_wasted`."""
    return Sums(spend_rollups, (*SPEND_NAMES, "is_wasted"), SPEND_SUMS)


def request_sums() -> Sums:
    """Of requests of the log."""
    return Sums(request_rollups, REQUEST_NAMES, REQUEST_SUMS)


@lru_cache(8)
def _adding(
    dialect: Dialect, table: sa.Table, names: tuple[str, ...], sums: tuple[str, ...]
) -> str:
    """INSERT … ON CONFLICT that adds, in the driver's own words: one round trip for all rows."""
    module: Any = postgresql if dialect.name == "postgresql" else sqlite
    insert = module.insert(table)
    key = [column.name for column in table.primary_key]
    added = {name: table.c[name] + insert.excluded[name] for name in sums}
    statement = insert.on_conflict_do_update(index_elements=key, set_=added)
    compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
    assert tuple(compiled.positiontup) == names
    return str(compiled)


async def purge_rollups(
    connection: AsyncConnection, grain: str, *, older_than: float, rows: int
) -> int:
    """
    Delete the oldest rows of a grain from before an instant; returns how many.

    `rows` of each table, and then the rest of the bucket it came to: a bucket is whole or gone.
    """
    assert grain != "day", "days are the bill"
    num_gone = 0
    for table in (spend_rollups, request_rollups):
        c = table.c
        old = (c.grain == grain, c.bucket_start < int(older_than))
        oldest = sa.select(c.bucket_start).where(*old).order_by(c.bucket_start)
        last = await connection.scalar(oldest.limit(1).offset(rows - 1))
        limit = [] if last is None else [c.bucket_start <= last]
        deleted = await connection.execute(sa.delete(table).where(*old, *limit))
        num_gone += deleted.rowcount
    return num_gone


def total(rows: Iterable[Mapping[str, Any]], sums: Sequence[str]) -> dict[str, int]:
    """The sums over some rows."""
    found = dict.fromkeys(sums, 0)
    for row in rows:
        for name in sums:
            found[name] += int(row[name])
    return found
