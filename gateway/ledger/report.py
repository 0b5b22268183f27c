"""What was spent, by model, key, endpoint or day, read from SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.ledger.corrections import booked_usage
from gateway.ledger.windows import SECONDS_PER_DAY
from gateway.store.batch_tables import corrections
from gateway.store.engine import Store
from gateway.store.ledger_tables import attempts
from gateway.store.tables import keys
from gateway.wire.usage import BUCKETS, Usage

By = Literal["model", "key", "endpoint", "day"]
GROUPS: tuple[By, ...] = ("model", "key", "endpoint", "day")
ROWS_MAX = 10_000
ATTEMPTS_MAX = 200  # of one request

_TOKENS = tuple(column.name for column in attempts.c if column.name.endswith("_tokens"))


async def report(
    store: Store, *, by: By, since: float | None = None, tenant: str | None = None
) -> list[dict[str, Any]]:
    """
    One row a group, dearest first (days in order): attempts, tokens by bucket, dollars as strings.

    `cost_usd` is what providers charge: billed to clients + overrun + waste, both the operator's.
    What became known of an attempt after it was booked is in its group: all sums are with the
    corrections. What `unpriced` attempts cost nobody knows; it is not in it.
    `since` is unix seconds of when an attempt was sent; `tenant` is a tenant's id. At most
    ROWS_MAX rows come back.
    """
    group = _group(by, is_sqlite=store.is_sqlite)
    c = attempts.c
    moved = _moved_money()
    money = {name: c[name] + sa.func.coalesce(moved.c[name], 0) for name in _MONEY}
    is_sent = sa.case((c.state == "sent", 1), else_=0)
    is_unpriced = sa.and_(_is_unpriced(), money["cost_nanos"] == 0)
    query = (
        sa.select(
            group.label("grouped"),
            sa.func.count().label("attempts"),
            sa.func.sum(is_sent).label("in_flight"),
            sa.func.sum(sa.case((c.is_estimated, 1), else_=0)).label("estimated"),
            sa.func.sum(sa.case((is_unpriced, 1), else_=0)).label("unpriced"),
            *(sa.func.sum(moneys).label(name) for name, moneys in money.items()),
            *(sa.func.sum(c[name]).label(name) for name in _TOKENS),
        )
        .outerjoin(moved, moved.c.attempt_id == c.attempt_id)
        .group_by(group)
    )
    conditions = [] if since is None else [c.sent_at >= since]
    if tenant is not None:
        conditions.append(c.tenant_id == tenant)
    order = (group,) if by == "day" else (sa.func.sum(money["cost_nanos"]).desc(), group)
    query = query.where(*conditions).order_by(*order).limit(ROWS_MAX)
    async with store.read() as connection:
        rows = list(await connection.execute(query))
        tokens = await _moved_tokens(connection, group, conditions)
        names: dict[str, str] = {}
        if by == "key":
            named = await connection.execute(sa.select(keys.c.id, keys.c.name))
            names = {row.id: row.name for row in named}
    return [_row(by, row, names, tokens.get(row.grouped, {})) for row in rows]


async def attempts_of(store: Store, tenant_id: str, request_id: str) -> list[dict[str, Any]]:
    """The attempts of one request as they are booked, in the order they were sent."""
    c = attempts.c
    # Not by the index of the tenant, which SQLite likes for its order: it has all that tenant's.
    of_tenant = (c.tenant_id + "") == tenant_id
    query = (
        sa.select(attempts)
        .where(of_tenant, c.request_id == request_id)
        .order_by(c.sent_at, c.attempt_id)
        .limit(ATTEMPTS_MAX)
    )
    async with store.read() as connection:
        return [_attempt(row) for row in await connection.execute(query)]


def _attempt(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.attempt_id,
        "endpoint": row.endpoint_id,
        "model": row.model,
        "state": row.state,
        "failure": row.failure,
        "finish": row.finish,
        "usage": {name.removesuffix("_tokens"): getattr(row, name) for name in _BILLED},
        "is_estimated": row.is_estimated,
        "price": {"source": row.price_source, "id": row.price_id, "tier": row.price_tier},
        **{name.removesuffix("_nanos"): dollars(getattr(row, name)) for name in _MONEY},
        "sent_at": row.sent_at,
        "settled_at": row.settled_at,
    }


_BILLED = tuple(f"{bucket}_tokens" for bucket in BUCKETS)
_MONEY = ("cost_nanos", "billed_nanos", "overrun_nanos", "waste_nanos")


def _is_unpriced() -> sa.ColumnElement[bool]:
    """Settled without any price, not even an assumed one: a 0 is no statement about money."""
    c = attempts.c
    return sa.and_(c.state == "settled", c.price_source == "unpriced")


def _moved_money() -> sa.Subquery:
    """What the corrections of each attempt add up to."""
    c = corrections.c
    sums = (sa.func.sum(c[name]).label(name) for name in _MONEY)
    return sa.select(c.attempt_id, *sums).group_by(c.attempt_id).subquery()


async def _moved_tokens(
    connection: AsyncConnection,
    group: sa.ColumnElement[Any],
    conditions: Sequence[sa.ColumnElement[bool]],
) -> dict[Any, dict[str, int]]:
    """By group and column: tokens of the newest corrections, less what was booked at first."""
    c, k = attempts.c, corrections.c
    query = (
        sa.select(group.label("grouped"), k.attempt_id, k.usage, *(c[name] for name in _BILLED))
        .join(attempts, c.attempt_id == k.attempt_id)
        .where(k.usage != "", *conditions)
        .order_by(k.created_at, k.id)
    )
    newest = {row.attempt_id: row for row in await connection.execute(query)}
    moved: dict[Any, dict[str, int]] = {}
    for row in newest.values():
        known, booked = msgspec.json.decode(row.usage, type=Usage), booked_usage(row)
        its = moved.setdefault(row.grouped, dict.fromkeys(_BILLED, 0))
        for bucket in BUCKETS:
            its[f"{bucket}_tokens"] += getattr(known, bucket) - getattr(booked, bucket)
    return moved


def _group(by: By, *, is_sqlite: bool) -> sa.ColumnElement[Any]:
    c = attempts.c
    if by == "day":
        days = c.sent_at / SECONDS_PER_DAY
        # A cast cuts off on SQLite and rounds on PostgreSQL.
        return sa.cast(days if is_sqlite else sa.func.floor(days), sa.BigInteger)
    columns: dict[str, sa.Column[str]] = {
        "model": c.model,
        "key": c.key_id,
        "endpoint": c.endpoint_id,
    }
    if by not in columns:
        raise ValueError(f"cannot report by {by!r}; use {', '.join(GROUPS)}")
    return columns[by]


def _row(
    by: By, row: sa.Row[Any], names: dict[str, str], moved_tokens: dict[str, int]
) -> dict[str, Any]:
    grouped = row.grouped
    if by == "day":
        grouped = datetime.fromtimestamp(int(grouped) * SECONDS_PER_DAY, UTC).strftime("%Y-%m-%d")
    found: dict[str, Any] = {by: grouped}
    if by == "key":
        found["key_name"] = names.get(grouped, "")
    for name in ("attempts", "in_flight", "estimated", "unpriced", *_TOKENS):
        found[name] = int(getattr(row, name)) + moved_tokens.get(name, 0)
    for name in _MONEY:
        found[name.removesuffix("_nanos") + "_usd"] = dollars(int(getattr(row, name)))
    return found
