"""Idempotency-Key: a request that is sent again is answered, not done again (reliability D.1).

A key belongs to its tenant and to the hash of its first request. While that runs, a second one is
a 409; afterwards the stored answer is repeated for 24 h. The process that runs it renews its
claims; those of a process that died end with their time, and the key may be used anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import Conflict, IdempotencyMismatch, InvalidRequest
from gateway.store.tables import idempotency
from gateway.store.upsert import insert_into
from gateway.wire.usage import Usage

KEEP_S = 86_400.0
CLAIM_S = 60.0
RENEW_S = 15.0
RETRY_AFTER_S = 1.0
BODY_BYTES_MAX = 1024 * 1024
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_HEADERS = msgspec.json.Decoder(list[tuple[str, str]])


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to do the request of a key; finish or drop it with `claim_id`."""

    claim_id: str


class StoredAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the first request of a key came to. `body` is None for a stream or a long answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | None
    usage: Usage | None


def checked_key(text: str) -> str:
    """The header's value; InvalidRequest when it is not 1 to 255 visible ASCII characters."""
    if not _KEY.fullmatch(text):
        raise InvalidRequest(
            "Idempotency-Key must be 1 to 255 visible ASCII characters without spaces; "
            "a random UUID is a good one",
            code="idempotency_key_invalid",
        )
    return text


async def claim(
    connection: AsyncConnection,
    tenant_id: str,
    key: str,
    *,
    request_hash: bytes,
    claim_id: str,
    holder_id: str,
    now: float,
) -> Claim | StoredAnswer:
    """
    Begin the request of `key`, or return what it came to before.

    Raises IdempotencyMismatch (422) when the key was used for another body, and Conflict (409,
    with Retry-After) while its request is still running.
    """
    values = {
        "tenant_id": tenant_id,
        "key": key,
        "claim_id": claim_id,
        "holder_id": holder_id,
        "request_hash": request_hash,
        "state": "in_flight",
        "created_at": now,
        "expires_at": now + CLAIM_S,
        "status": 0,
        "headers": "",
        "body": None,
        "usage": "",
    }
    taken = {name: values[name] for name in values if name not in {"tenant_id", "key"}}
    # One statement: of two requests at the same instant, one gets the key, on both databases.
    statement = (
        insert_into(connection, idempotency)
        .values(**values)
        .on_conflict_do_update(
            index_elements=["tenant_id", "key"],
            set_=taken,
            where=sa.and_(idempotency.c.tenant_id == tenant_id, idempotency.c.expires_at <= now),
        )
        .returning(idempotency.c.claim_id)
    )
    if (await connection.execute(statement)).scalar_one_or_none() is not None:
        return Claim(claim_id=claim_id)
    row = await _find(connection, tenant_id, key)
    if row is None or (row["state"] == "in_flight" and row["request_hash"] == request_hash):
        raise Conflict(
            "a request with this Idempotency-Key is still running; try again in a moment",
            retry_after_s=RETRY_AFTER_S,
        )
    if row["request_hash"] != request_hash:
        raise IdempotencyMismatch(
            "this Idempotency-Key was used for another request; use a new key for a new request"
        )
    return StoredAnswer(
        status=row["status"],
        headers=_HEADERS.decode(row["headers"]) if row["headers"] else [],
        body=row["body"],
        usage=msgspec.json.decode(row["usage"], type=Usage) if row["usage"] else None,
    )


async def finish(
    connection: AsyncConnection,
    tenant_id: str,
    key: str,
    *,
    claim_id: str,
    answer: StoredAnswer,
    now: float,
) -> bool:
    """Store the answer for KEEP_S. False when the claim was lost; then nothing is changed."""
    body = answer.body
    if body is not None and len(body) > BODY_BYTES_MAX:
        body = None
    statement = (
        idempotency.update()
        .where(*_claimed(tenant_id, key, claim_id))
        .values(
            state="done",
            status=answer.status,
            headers=msgspec.json.encode(answer.headers).decode(),
            body=body,
            usage=msgspec.json.encode(answer.usage).decode() if answer.usage else "",
            expires_at=now + KEEP_S,
        )
    )
    return (await connection.execute(statement)).rowcount == 1


async def drop(connection: AsyncConnection, tenant_id: str, key: str, *, claim_id: str) -> bool:
    """Give the key back unused: for a request refused before anything was done."""
    statement = idempotency.delete().where(*_claimed(tenant_id, key, claim_id))
    return (await connection.execute(statement)).rowcount == 1


async def renew_claims(
    connection: AsyncConnection, *, holder_id: str, claim_ids: Collection[str], now: float
) -> int:
    """Keep the claims that a process still works on, each RENEW_S. Covers every tenant."""
    statement = (
        idempotency.update()
        .where(
            idempotency.c.holder_id == holder_id,
            idempotency.c.state == "in_flight",
            idempotency.c.claim_id.in_(claim_ids),
        )
        .values(expires_at=now + CLAIM_S)
    )
    return (await connection.execute(statement)).rowcount


async def purge_expired(connection: AsyncConnection, *, now: float, rows: int) -> int:
    """Delete at most `rows` whose time is over, of every tenant."""
    table = idempotency
    old = (
        sa.select(table.c.tenant_id, table.c.key)
        .where(table.c.expires_at <= now)
        .order_by(table.c.expires_at)
        .limit(rows)
    )
    statement = table.delete().where(sa.tuple_(table.c.tenant_id, table.c.key).in_(old))
    return (await connection.execute(statement)).rowcount


async def _find(connection: AsyncConnection, tenant_id: str, key: str) -> Any:
    query = sa.select(idempotency).where(
        idempotency.c.tenant_id == tenant_id, idempotency.c.key == key
    )
    return (await connection.execute(query)).mappings().one_or_none()


def _claimed(tenant_id: str, key: str, claim_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        idempotency.c.tenant_id == tenant_id,
        idempotency.c.key == key,
        idempotency.c.claim_id == claim_id,
        idempotency.c.state == "in_flight",
    )
