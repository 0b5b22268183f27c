"""Endpoints that an operator has taken out of routing, for all processes and over restarts."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.changes import ENDPOINTS, note_change
from gateway.store.tables import endpoint_holds
from gateway.store.upsert import insert_into

PAUSED, DRAINING = "paused", "draining"
MODES = (PAUSED, DRAINING)
HOLDS_MAX = 10_000  # more endpoints than any policy has


class HoldRow(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint that gets no new requests, and who said so."""

    endpoint_id: str
    mode: str  # PAUSED | DRAINING
    actor: str
    note: str = ""
    since: float = 0.0  # unix seconds


async def lock_holds(connection: AsyncConnection) -> None:
    """Until this transaction ends, nobody else holds an endpoint or lets one go."""
    await note_change(connection, ENDPOINTS)


async def put_hold(connection: AsyncConnection, row: HoldRow) -> None:
    """Hold an endpoint, or hold it otherwise; every process hears of it within a second."""
    values = msgspec.structs.asdict(row)
    insert = insert_into(connection, endpoint_holds).values(values)
    del values["endpoint_id"]
    await connection.execute(
        insert.on_conflict_do_update(index_elements=["endpoint_id"], set_=values)
    )
    await note_change(connection, ENDPOINTS)


async def end_hold(connection: AsyncConnection, endpoint_id: str) -> None:
    """Let an endpoint go; every process hears of it within a second."""
    await connection.execute(
        sa.delete(endpoint_holds).where(endpoint_holds.c.endpoint_id == endpoint_id)
    )
    await note_change(connection, ENDPOINTS)


async def list_holds(connection: AsyncConnection) -> dict[str, HoldRow]:
    """All there are, by endpoint id."""
    query = sa.select(endpoint_holds).order_by(endpoint_holds.c.since).limit(HOLDS_MAX)
    return {
        row["endpoint_id"]: HoldRow(**row) for row in (await connection.execute(query)).mappings()
    }
