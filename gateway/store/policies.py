"""Every policy that was ever in force, verbatim: requests name the version they were decided by."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.changes import POLICIES, note_change
from gateway.store.tables import policies
from gateway.store.upsert import insert_into

PAGE_ROWS_MAX = 1_000


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version. The gateway has one policy for all tenants."""

    version: str  # hash of the text
    text: str
    source: str  # a path, "store", "import"
    created_at: float
    activated_at: float  # when it last came into force


async def activate_policy(
    connection: AsyncConnection, *, version: str, text: str, source: str, now: float
) -> None:
    """Write the version if it is new, and make it the one in force."""
    await connection.execute(
        insert_into(connection, policies)
        .values(version=version, text=text, source=source, created_at=now, activated_at=now)
        .on_conflict_do_update(
            index_elements=[policies.c.version], set_={"source": source, "activated_at": now}
        )
    )
    await note_change(connection, POLICIES)


async def active_policy(connection: AsyncConnection) -> PolicyRow | None:
    """The version that came into force last."""
    found = await list_policies(connection, limit=1)
    return found[0] if found else None


async def find_policy(connection: AsyncConnection, version: str) -> PolicyRow | None:
    query = sa.select(policies).where(policies.c.version == version)
    row = (await connection.execute(query)).mappings().one_or_none()
    return PolicyRow(**row) if row else None


async def list_policies(connection: AsyncConnection, *, limit: int = 50) -> list[PolicyRow]:
    """Latest activation first."""
    query = sa.select(policies).order_by(policies.c.activated_at.desc(), policies.c.version)
    found = await connection.execute(query.limit(min(limit, PAGE_ROWS_MAX)))
    return [PolicyRow(**row) for row in found.mappings()]
