"""Rows of batches and their lines, as the API sees them. Who works on lines: `batch_work`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.batch_tables import (
    LINE_ENDS,
    batch_lines,
    batch_results,
    batches,
    native_batches,
)

PAGE_ROWS_MAX = 100
INSERT_ROWS_MAX = 2_000  # a statement: other writers of SQLite wait for it
ENDED = ("completed", "failed", "expired", "cancelled")


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One batch. Instants are unix seconds, money is nano-dollars."""

    id: str
    tenant_id: str
    team_id: str
    key_id: str
    dialect: str
    surface: str
    state: str
    input_file_id: str
    output_file_id: str = ""
    error_file_id: str = ""
    completion_window: str = ""
    metadata: str = ""
    errors: str = ""
    deadline_at: float
    max_cost_nanos: int | None = None
    plan: str = ""
    list_cost_nanos: int = 0
    created_at: float
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None
    planned_at: float | None = None
    num_lines: int = 0

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


class NewLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it is put down with its batch."""

    line_no: int
    custom_id: str
    offset_bytes: int
    num_bytes: int
    model: str
    prompt_tokens: int
    output_tokens: int
    lane: str = ""
    not_before: float | None = None


class LineCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch is: lines by state, and the money of those that ended."""

    by_state: dict[str, int]
    cost_nanos: int = 0
    billed_nanos: int = 0
    list_nanos: int = 0
    num_estimated: int = 0

    def count(self, *states: str) -> int:
        return sum(self.by_state.get(each, 0) for each in states)

    @property
    def num_lines(self) -> int:
        return sum(self.by_state.values())

    @property
    def num_unended(self) -> int:
        return self.num_lines - self.count(*LINE_ENDS)


_COLUMNS = tuple(batches.c[name] for name in BatchRow.__struct_fields__)


async def insert_batch(connection: AsyncConnection, row: BatchRow) -> None:
    await connection.execute(sa.insert(batches).values(msgspec.structs.asdict(row)))


async def insert_lines(
    connection: AsyncConnection, batch_id: str, lines: Sequence[NewLine]
) -> None:
    """At most INSERT_ROWS_MAX at once, so that nobody waits long for the database."""
    assert len(lines) <= INSERT_ROWS_MAX
    rows = [
        {"batch_id": batch_id, "state": "open", **msgspec.structs.asdict(each)} for each in lines
    ]
    await connection.execute(sa.insert(batch_lines), rows)


async def find_batch(connection: AsyncConnection, tenant_id: str, batch_id: str) -> BatchRow | None:
    query = sa.select(*_COLUMNS).where(batches.c.tenant_id == tenant_id, batches.c.id == batch_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    return BatchRow(**row) if row else None


async def batch_of_id(connection: AsyncConnection, batch_id: str) -> BatchRow | None:
    """Of whatever tenant: for the worker only."""
    query = sa.select(*_COLUMNS).where(batches.c.id == batch_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    return BatchRow(**row) if row else None


async def list_batches(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    limit: int,
    dialect: str = "",
    after: BatchRow | None = None,
    before: BatchRow | None = None,
) -> list[BatchRow]:
    """A page, the newest first, behind `after` or in front of `before`."""
    c = batches.c
    query = sa.select(*_COLUMNS).where(c.tenant_id == tenant_id)
    if dialect:
        query = query.where(c.dialect == dialect)
    place = sa.tuple_(c.created_at, c.id)
    if after is not None:
        query = query.where(place < sa.tuple_(sa.literal(after.created_at), sa.literal(after.id)))
    if before is not None:
        query = query.where(place > sa.tuple_(sa.literal(before.created_at), sa.literal(before.id)))
        query = query.order_by(c.created_at, c.id)  # those next to it
    else:
        query = query.order_by(c.created_at.desc(), c.id.desc())
    found = await connection.execute(query.limit(min(limit, PAGE_ROWS_MAX + 1)))
    rows = [BatchRow(**row) for row in found.mappings()]
    return rows[::-1] if before is not None else rows


async def batches_in(connection: AsyncConnection, *states: str) -> list[BatchRow]:
    """Batches of all tenants in these states, the earliest deadline first."""
    query = (
        sa.select(*_COLUMNS)
        .where(batches.c.state.in_(states))
        .order_by(batches.c.deadline_at, batches.c.id)
    )
    return [BatchRow(**row) for row in (await connection.execute(query)).mappings()]


async def move_batch(
    connection: AsyncConnection,
    batch_id: str,
    *,
    to: str,
    out_of: Sequence[str],
    values: Mapping[str, Any] | None = None,
    begun_at: float | None = None,
) -> bool:
    """
    Change the state if it is one of `out_of`. False: somebody else was first.

    Out of `finalizing` only where it was last begun at `begun_at`: two that go on with it take
    turns.
    """
    conditions = [batches.c.id == batch_id, batches.c.state.in_(out_of)]
    if begun_at is not None:
        conditions.append(batches.c.finalizing_at == begun_at)
    done = await connection.execute(
        sa.update(batches).where(*conditions).values(state=to, **(values or {}))
    )
    return done.rowcount == 1


async def update_batch(connection: AsyncConnection, batch_id: str, **values: Any) -> None:
    await connection.execute(sa.update(batches).where(batches.c.id == batch_id).values(**values))


async def line_counts(
    connection: AsyncConnection, batch_ids: Sequence[str]
) -> dict[str, LineCounts]:
    """By batch; one without lines yet is not in it."""
    c = batch_lines.c

    def total(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)

    query = (
        sa.select(
            c.batch_id,
            c.state,
            sa.func.count().label("lines"),
            total(c.cost_nanos).label("cost"),
            total(c.billed_nanos).label("billed"),
            total(c.list_nanos).label("listed"),
            total(sa.case((c.is_estimated, 1), else_=0)).label("estimated"),
        )
        .where(c.batch_id.in_(batch_ids))
        .group_by(c.batch_id, c.state)
    )
    found: dict[str, LineCounts] = {}
    for row in await connection.execute(query):
        known = found.get(row.batch_id, LineCounts(by_state={}))
        found[row.batch_id] = LineCounts(
            by_state={**known.by_state, row.state: int(row.lines)},
            cost_nanos=known.cost_nanos + int(row.cost),
            billed_nanos=known.billed_nanos + int(row.billed),
            list_nanos=known.list_nanos + int(row.listed),
            num_estimated=known.num_estimated + int(row.estimated),
        )
    return found


async def unended_of(connection: AsyncConnection, batch_ids: Sequence[str]) -> set[str]:
    """Which of these batches have lines that have not ended, or results that are not collected."""
    c, n = batch_lines.c, native_batches.c
    has_some = sa.exists().where(
        c.batch_id == batches.c.id, c.state.in_(("open", "leased", "submitted"))
    )
    has_native = sa.exists().where(
        n.batch_id == batches.c.id, n.state.not_in(("collected", "lost"))
    )
    query = sa.select(batches.c.id).where(batches.c.id.in_(batch_ids), sa.or_(has_some, has_native))
    return set((await connection.execute(query)).scalars())


async def drop_lines(connection: AsyncConnection, batch_id: str) -> None:
    """Of a batch whose creation was not finished."""
    await connection.execute(sa.delete(batch_results).where(batch_results.c.batch_id == batch_id))
    await connection.execute(sa.delete(batch_lines).where(batch_lines.c.batch_id == batch_id))
