"""The policies that were in force, verbatim: requests name the version they were decided by.

Who put which into force is told by the audit log alone (subject `policy`), so that there is one
account of it, whether it was the dashboard, a command or a hand on the file.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.audit import WHOLE_GATEWAY, AuditEvent, append_events, list_all_events
from gateway.store.changes import POLICIES, note_change
from gateway.store.tables import policies
from gateway.store.upsert import insert_into

PAGE_ROWS_MAX = 1_000
VERSIONS_KEPT = 500  # texts; the oldest go first, the audit log still names them
SUBJECT = "policy"  # of the audit events of this file
FROM_FILE = "policy.file"
IMPORTED = "policy.import"
PUBLISHED = "policy.publish"
ROLLED_BACK = "policy.rollback"


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One version. The gateway has one policy for all tenants."""

    version: str  # hash of the text
    text: str
    source: str  # a path, "store", "import"
    created_at: float
    activated_at: float  # when it last came into force


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """Who put a version into force, when and why."""

    id: int
    at: float
    actor: str  # "admin:NAME", "cli", "file:OWNER"
    action: str  # "policy.publish" | "policy.rollback" | "policy.file" | "policy.import"
    version: str
    before: str  # the version that it replaced; "" = the first
    note: str


async def lock_policies(connection: AsyncConnection) -> None:
    """Until this transaction ends, nobody else puts a policy into force."""
    await note_change(connection, POLICIES)


async def activate_policy(
    connection: AsyncConnection,
    *,
    version: str,
    text: str,
    source: str,
    now: float,
    actor: str = "gateway",
    action: str = FROM_FILE,
    note: str = "",
) -> None:
    """
    Write the version if it is new, and make it the one in force.

    The audit log is told unless it was in force already. Beyond VERSIONS_KEPT the oldest go.
    """
    await lock_policies(connection)
    last = await list_policy_changes(connection, limit=1)
    before = last[0].version if last else ""
    if before != version:
        detail = {
            "before": {"version": before},
            "after": {"version": version},
            "note": note,
            "source": source,
        }
        event = AuditEvent(
            tenant_id=WHOLE_GATEWAY, at=now, actor=actor, action=action, subject=SUBJECT,
            detail=detail,
        )  # fmt: skip
        await append_events(connection, [event])
    await connection.execute(
        insert_into(connection, policies)
        .values(version=version, text=text, source=source, created_at=now, activated_at=now)
        .on_conflict_do_update(
            index_elements=[policies.c.version], set_={"source": source, "activated_at": now}
        )
    )
    newest = sa.select(policies.c.version).order_by(
        policies.c.activated_at.desc(), policies.c.version
    )
    kept = newest.limit(VERSIONS_KEPT).subquery()
    await connection.execute(
        sa.delete(policies).where(policies.c.version.not_in(sa.select(kept.c.version)))
    )


async def list_policy_changes(
    connection: AsyncConnection, *, limit: int = 50, before_id: int | None = None
) -> list[PolicyChange]:
    """Newest first."""
    events = await list_all_events(
        connection, action=f"{SUBJECT}.", subject=SUBJECT, limit=limit, before_id=before_id
    )
    return [
        PolicyChange(
            id=event.id,
            at=event.at,
            actor=event.actor,
            action=event.action,
            version=event.detail.get("after", {}).get("version", ""),
            before=event.detail.get("before", {}).get("version", ""),
            note=event.detail.get("note", ""),
        )
        for event in events
    ]


async def kept_versions(connection: AsyncConnection, versions: list[str]) -> frozenset[str]:
    """Those of `versions` whose text is still here."""
    query = sa.select(policies.c.version).where(policies.c.version.in_(versions[:PAGE_ROWS_MAX]))
    return frozenset((await connection.execute(query)).scalars())


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
