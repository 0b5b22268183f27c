"""Who did what to which thing, and what the gateway did by itself. Rows are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.tables import audit_events

PAGE_ROWS_MAX = 1_000
DETAIL_BYTES_MAX = 16 * 1024
WHOLE_GATEWAY = ""  # tenant of an event that concerns all: a breaker, a policy


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `detail` is JSON-able and never holds a secret or a prompt."""

    tenant_id: str
    at: float
    actor: str
    action: str
    subject: str
    detail: dict[str, Any] = {}
    id: int = 0  # given by the database


async def append_events(connection: AsyncConnection, events: Sequence[AuditEvent]) -> None:
    """Add events of any tenants, in order."""
    if events:
        await connection.execute(sa.insert(audit_events), [_written(event) for event in events])


async def list_events(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    limit: int = 100,
    before_id: int | None = None,
) -> list[AuditEvent]:
    """Newest first."""
    query = sa.select(audit_events).where(audit_events.c.tenant_id == tenant_id)
    if before_id is not None:
        query = query.where(audit_events.c.id < before_id)
    query = query.order_by(audit_events.c.id.desc()).limit(min(limit, PAGE_ROWS_MAX))
    return [
        AuditEvent(**{**row, "detail": msgspec.json.decode(row["detail"] or "{}")})
        for row in (await connection.execute(query)).mappings()
    ]


async def list_all_events(
    connection: AsyncConnection,
    *,
    actor: str = "",
    action: str = "",
    subject: str = "",
    limit: int = 100,
    before_id: int | None = None,
) -> list[AuditEvent]:
    """Newest first, of the whole gateway: for the operator only.

    `actor` and `action` are beginnings ("admin:", "key."), `subject` is the whole.
    """
    c = audit_events.c
    query = sa.select(audit_events)
    for column, beginning in ((c.actor, actor), (c.action, action)):
        if beginning:
            query = query.where(column.startswith(beginning, autoescape=True))
    if subject:
        query = query.where(c.subject == subject)
    if before_id is not None:
        query = query.where(c.id < before_id)
    query = query.order_by(c.id.desc()).limit(min(limit, PAGE_ROWS_MAX))
    return [
        AuditEvent(**{**row, "detail": msgspec.json.decode(row["detail"] or "{}")})
        for row in (await connection.execute(query)).mappings()
    ]


def _written(event: AuditEvent) -> dict[str, Any]:
    values = msgspec.structs.asdict(event)
    del values["id"]
    detail = msgspec.json.encode(event.detail)
    if len(detail) > DETAIL_BYTES_MAX:
        detail = msgspec.json.encode({"omitted_bytes": len(detail)})
    values["detail"] = detail.decode()
    return values
