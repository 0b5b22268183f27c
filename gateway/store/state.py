"""What must outlive a restart and belongs to no tenant: the fleet's beliefs, small facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.tables import endpoint_state, meta
from gateway.store.upsert import insert_into

STATE_BYTES_MAX = 16 * 1024 * 1024


async def save_endpoint_state(
    connection: AsyncConnection, states: Mapping[str, object], *, now: float
) -> None:
    """Write JSON-able state by state key; keys that are not named stay as they were."""
    if not states:
        return
    rows = []
    for state_key, state in states.items():
        text = msgspec.json.encode(state)
        if len(text) > STATE_BYTES_MAX:
            raise ValueError(
                f"state of endpoint {state_key} has {len(text)} bytes; at most {STATE_BYTES_MAX}"
            )
        rows.append({"state_key": state_key, "state": text.decode(), "updated_at": now})
    insert = insert_into(connection, endpoint_state)
    await connection.execute(
        insert.on_conflict_do_update(
            index_elements=["state_key"],
            set_={"state": insert.excluded.state, "updated_at": insert.excluded.updated_at},
        ),
        rows,
    )


async def load_endpoint_state(
    connection: AsyncConnection,
) -> dict[str, tuple[float, Any]]:
    """(written at, state) by state key."""
    found = await connection.execute(sa.select(endpoint_state))
    return {row.state_key: (row.updated_at, msgspec.json.decode(row.state)) for row in found}


async def put_meta(connection: AsyncConnection, key: str, value: str) -> None:
    insert = insert_into(connection, meta).values(key=key, value=value)
    await connection.execute(
        insert.on_conflict_do_update(index_elements=["key"], set_={"value": value})
    )


async def get_meta(connection: AsyncConnection, key: str) -> str | None:
    query = sa.select(meta.c.value).where(meta.c.key == key)
    return (await connection.execute(query)).scalar_one_or_none()
