"""Rows of uploaded files and of what batches wrote. The bytes are in `gateway.batch.storage`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.batch_tables import batches, files

PAGE_ROWS_MAX = 10_000
SWEEP_ROWS_MAX = 500


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    """One file. Instants are unix seconds."""

    id: str
    tenant_id: str
    key_id: str
    filename: str
    purpose: str  # "batch" | "batch_output"
    num_bytes: int
    num_lines: int = 0
    sha256: str = ""
    storage_key: str
    created_at: float
    expires_at: float | None = None


_COLUMNS = tuple(files.c[name] for name in FileRow.__struct_fields__)


async def insert_file(connection: AsyncConnection, row: FileRow) -> None:
    await connection.execute(sa.insert(files).values(msgspec.structs.asdict(row)))


async def find_file(
    connection: AsyncConnection, tenant_id: str, file_id: str, *, now: float
) -> FileRow | None:
    """None where it is another tenant's, deleted or past its time."""
    query = sa.select(*_COLUMNS).where(
        files.c.tenant_id == tenant_id, files.c.id == file_id, _is_there(now)
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    return FileRow(**row) if row else None


async def list_files(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    now: float,
    limit: int,
    after: FileRow | None = None,
    purpose: str = "",
    is_ascending: bool = False,
) -> list[FileRow]:
    """A page in the order of creation, the newest first; `after` is the last row of one before."""
    c = files.c
    query = sa.select(*_COLUMNS).where(c.tenant_id == tenant_id, _is_there(now))
    if purpose:
        query = query.where(c.purpose == purpose)
    place = sa.tuple_(c.created_at, c.id)
    if after is not None:
        mark = sa.tuple_(sa.literal(after.created_at), sa.literal(after.id))
        query = query.where(place > mark if is_ascending else place < mark)
    order = (c.created_at, c.id) if is_ascending else (c.created_at.desc(), c.id.desc())
    found = await connection.execute(query.order_by(*order).limit(min(limit, PAGE_ROWS_MAX)))
    return [FileRow(**row) for row in found.mappings()]


async def usage_of(connection: AsyncConnection, tenant_id: str, *, now: float) -> tuple[int, int]:
    """(files, bytes) that a tenant has lying here."""
    query = sa.select(
        sa.func.count(), sa.cast(sa.func.coalesce(sa.func.sum(files.c.num_bytes), 0), sa.BigInteger)
    ).where(files.c.tenant_id == tenant_id, _is_there(now))
    count, num_bytes = (await connection.execute(query)).one()
    return int(count), int(num_bytes)


async def mark_deleted(
    connection: AsyncConnection, tenant_id: str, file_id: str, *, now: float
) -> bool:
    """Gone for its owner from now on. False where there was none."""
    done = await connection.execute(
        sa.update(files)
        .where(files.c.tenant_id == tenant_id, files.c.id == file_id, _is_there(now))
        .values(deleted_at=now)
    )
    return done.rowcount == 1


async def keep_until(
    connection: AsyncConnection, tenant_id: str, file_id: str, *, expires_at: float, now: float
) -> bool:
    """It stays longer. False where there was none."""
    done = await connection.execute(
        sa.update(files)
        .where(files.c.tenant_id == tenant_id, files.c.id == file_id, _is_there(now))
        .values(expires_at=expires_at)
    )
    return done.rowcount == 1


async def is_in_use(connection: AsyncConnection, tenant_id: str, file_id: str) -> bool:
    """Whether a batch that has not ended still reads it."""
    query = (
        sa.select(batches.c.id)
        .where(
            batches.c.tenant_id == tenant_id,
            batches.c.input_file_id == file_id,
            batches.c.state.in_(("validating", "in_progress", "finalizing", "cancelling")),
        )
        .limit(1)
    )
    return (await connection.execute(query)).first() is not None


async def due_for_sweep(connection: AsyncConnection, *, now: float) -> list[FileRow]:
    """Deleted or expired files of all tenants whose bytes may go; running batches keep theirs."""
    busy = sa.select(batches.c.input_file_id).where(
        batches.c.state.in_(("validating", "in_progress", "finalizing", "cancelling"))
    )
    query = (
        sa.select(*_COLUMNS)
        .where(
            sa.or_(files.c.deleted_at.is_not(None), files.c.expires_at <= now),
            files.c.id.not_in(busy),
        )
        .order_by(files.c.id)
        .limit(SWEEP_ROWS_MAX)
    )
    return [FileRow(**row) for row in (await connection.execute(query)).mappings()]


async def forget_files(connection: AsyncConnection, file_ids: Sequence[str]) -> None:
    """Drop the rows, once their bytes are gone."""
    await connection.execute(sa.delete(files).where(files.c.id.in_(file_ids)))


def _is_there(now: float) -> sa.ColumnElement[bool]:
    c = files.c
    return sa.and_(c.deleted_at.is_(None), sa.or_(c.expires_at.is_(None), c.expires_at > now))
