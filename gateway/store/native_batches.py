"""Rows of batches that providers hold for us, and the lines that are in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.batch_tables import batch_lines, batches, native_batches
from gateway.store.ledger_tables import attempts

OPEN_STATES = ("submitting", "running", "cancelling", "ended")
HISTORY_ROWS = 64  # of one endpoint, for its turnaround


class NativeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's batch. Instants are unix seconds."""

    id: str
    batch_id: str
    endpoint_id: str
    state: str
    provider_file_id: str = ""
    provider_batch_id: str = ""
    num_lines: int = 0
    error: str = ""
    owner: str = ""
    submitted_at: float | None = None
    polled_at: float | None = None
    ended_at: float | None = None


class NativeMember(msgspec.Struct, frozen=True, kw_only=True):
    """A line that goes with a provider's batch, and what its request takes."""

    line_no: int
    offset_bytes: int
    num_bytes: int
    model: str
    lane: str
    num_tries: int


class LaneDue(msgspec.Struct, frozen=True, kw_only=True):
    """Open lines of one batch on one lane whose time has come."""

    batch_id: str
    lane: str
    count: int


_COLUMNS = tuple(native_batches.c[name] for name in NativeRow.__struct_fields__)


async def lanes_due(
    connection: AsyncConnection, batch_ids: Sequence[str], *, now: float
) -> list[LaneDue]:
    """Where open lines wait to be sent now, the earliest deadline first."""
    c = batch_lines.c
    query = (
        sa.select(c.batch_id, c.lane, sa.func.count().label("count"))
        .join(batches, batches.c.id == c.batch_id)
        .where(
            c.batch_id.in_(batch_ids),
            c.state == "open",
            c.lane != "",
            sa.or_(c.not_before.is_(None), c.not_before <= now),
        )
        .group_by(batches.c.deadline_at, c.batch_id, c.lane)
        .order_by(batches.c.deadline_at, c.batch_id, c.lane)
    )
    return [LaneDue(**row) for row in (await connection.execute(query)).mappings()]


async def gather_lines(
    connection: AsyncConnection, row: NativeRow, *, lane: str, now: float, limit: int
) -> list[NativeMember]:
    """Put open lines of one batch and lane into a new provider's batch, which is written down."""
    c = batch_lines.c
    chosen = (
        sa.select(c.line_no)
        .where(
            c.batch_id == row.batch_id,
            c.lane == lane,
            c.state == "open",
            sa.or_(c.not_before.is_(None), c.not_before <= now),
        )
        .order_by(c.line_no)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    numbers = [each.line_no for each in await connection.execute(chosen)]
    if not numbers:
        return []
    values = msgspec.structs.asdict(row) | {"num_lines": len(numbers)}
    await connection.execute(sa.insert(native_batches).values(values))
    mine = sa.and_(
        c.batch_id == row.batch_id, c.line_no.between(numbers[0], numbers[-1]), c.lane == lane
    )
    await connection.execute(
        sa.update(batch_lines)
        .where(mine, c.state == "open", sa.or_(c.not_before.is_(None), c.not_before <= now))
        .values(state="submitted", native_id=row.id, num_tries=c.num_tries + 1)
    )
    return await members_of(connection, row)


async def members_of(connection: AsyncConnection, row: NativeRow) -> list[NativeMember]:
    """Its lines that have not ended, in the order of the input."""
    c = batch_lines.c
    query = (
        sa.select(*(c[name] for name in NativeMember.__struct_fields__))
        .where(c.batch_id == row.batch_id, c.native_id == row.id, c.state == "submitted")
        .order_by(c.line_no)
    )
    return [NativeMember(**each) for each in (await connection.execute(query)).mappings()]


async def reopen_members(
    connection: AsyncConnection,
    row: NativeRow,
    line_nos: Sequence[int] | None = None,
    *,
    state: str = "open",
    not_before: float | None = None,
    now: float | None = None,
) -> int:
    """Lines that came to nothing there: open again, or ended as `cancelled` or `expired`."""
    c = batch_lines.c
    condition = sa.and_(c.batch_id == row.batch_id, c.native_id == row.id, c.state == "submitted")
    if line_nos is not None:
        condition = sa.and_(condition, c.line_no.in_(line_nos))
    values: dict[str, Any] = {"state": state, "native_id": "", "not_before": not_before}
    if state != "open":
        values["ended_at"] = now
    done = await connection.execute(sa.update(batch_lines).where(condition).values(**values))
    return done.rowcount


async def native_in(connection: AsyncConnection, *states: str) -> list[NativeRow]:
    query = (
        sa.select(*_COLUMNS)
        .where(native_batches.c.state.in_(states))
        .order_by(native_batches.c.submitted_at, native_batches.c.id)
    )
    return [NativeRow(**row) for row in (await connection.execute(query)).mappings()]


async def take_natives(
    connection: AsyncConnection, *, owner: str, now: float, silent_since: float
) -> list[NativeRow]:
    """
    All open ones of this owner, after it has said that it lives.

    Those whose owner has not said so since `silent_since` become its own; two that take the same
    one take turns, and the second finds it alive.
    """
    c = native_batches.c
    is_open = c.state.in_(OPEN_STATES)
    seen_at = sa.func.coalesce(c.polled_at, c.submitted_at, 0.0)
    await connection.execute(
        sa.update(native_batches)
        .where(is_open, sa.or_(c.owner == owner, seen_at < silent_since))
        .values(owner=owner, polled_at=now)
    )
    query = sa.select(*_COLUMNS).where(is_open, c.owner == owner).order_by(c.submitted_at, c.id)
    return [NativeRow(**row) for row in (await connection.execute(query)).mappings()]


async def leave_natives(connection: AsyncConnection, *, owner: str) -> None:
    """Whoever comes may have them at once."""
    c = native_batches.c
    await connection.execute(
        sa.update(native_batches)
        .where(c.state.in_(OPEN_STATES), c.owner == owner)
        .values(owner="", polled_at=0.0)
    )


async def has_unsettled(connection: AsyncConnection, row: NativeRow) -> bool:
    """Whether the ledger has an attempt of it that has not ended: not even by an estimate."""
    c = batch_lines.c
    attempt_id = sa.literal(f"att_{row.id}_", sa.Text()) + sa.cast(c.line_no, sa.Text())
    query = (
        sa.select(attempts.c.attempt_id)
        .join(batch_lines, attempts.c.attempt_id == attempt_id)
        .where(c.batch_id == row.batch_id, c.native_id == row.id, attempts.c.state == "sent")
        .limit(1)
    )
    return (await connection.execute(query)).first() is not None


async def native_history(connection: AsyncConnection, endpoint_id: str) -> list[NativeRow]:
    """Those that ended last and were collected, the oldest first."""
    c = native_batches.c
    query = (
        sa.select(*_COLUMNS)
        .where(c.endpoint_id == endpoint_id, c.state == "collected")
        .order_by(c.ended_at.desc())
        .limit(HISTORY_ROWS)
    )
    rows = [NativeRow(**row) for row in (await connection.execute(query)).mappings()]
    return rows[::-1]


async def update_native(connection: AsyncConnection, native_id: str, **values: Any) -> None:
    await connection.execute(
        sa.update(native_batches).where(native_batches.c.id == native_id).values(**values)
    )
