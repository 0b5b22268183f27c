"""What became known after an attempt was booked: new entries, never an edit of the old ones.

The client pays the true cost up to the hold, as it would have if it had been known at once; what is
above is the operator's. Budgets are not moved: they count what was leased when the request ran.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.ledger.booking import IDS_PER_QUERY_MAX, entry_rows
from gateway.ledger.spend import add_correction, is_wasted
from gateway.ledger.windows import day_of
from gateway.store.batch_tables import corrections
from gateway.store.engine import Store
from gateway.store.ledger_tables import attempts, entries
from gateway.store.rollup_tables import MONEY, SPEND_NAMES, TOKENS
from gateway.store.rollups import spend_sums
from gateway.wire.usage import BUCKETS, Usage

Kind = Literal["native_result", "reconcile"]


class KnownCost(msgspec.Struct, frozen=True, kw_only=True):
    """The true cost of one attempt that was settled, and where it is known from."""

    attempt_id: str
    cost_nanos: int
    usage: Usage | None = None  # None: no more is known of it than before
    source: str = ""


@dataclass(slots=True)
class Corrected:
    """What the corrections of one attempt add up to; `usage` is the newest, if any told one."""

    money: dict[str, int]
    usage: Usage | None = None
    kind: str = ""  # of the newest
    source: str = ""


async def correct_attempts(
    store: Store, known: Sequence[KnownCost], *, kind: Kind, now: float
) -> int:
    """
    Book the difference between what these attempts cost and what was booked; how many differed.

    Attempts that are not settled are left alone. Saying the same twice books nothing.
    """
    num_corrected = 0
    for begin in range(0, len(known), IDS_PER_QUERY_MAX):
        part = {each.attempt_id: each for each in known[begin : begin + IDS_PER_QUERY_MAX]}
        async with store.begin() as connection:
            num_corrected += await _correct(connection, part, kind, now)
    return num_corrected


async def corrections_of(
    connection: AsyncConnection, *conditions: sa.ColumnElement[bool]
) -> dict[str, Corrected]:
    """The sums of those corrections, by attempt."""
    c = corrections.c
    query = (
        sa.select(c.attempt_id, c.kind, c.usage, c.source, *(c[name] for name in MONEY))
        .where(*conditions)
        .order_by(c.created_at, c.id)
    )
    found: dict[str, Corrected] = {}
    for row in await connection.execute(query):
        each = found.setdefault(row.attempt_id, Corrected(dict.fromkeys(MONEY, 0)))
        for name in MONEY:
            each.money[name] += int(getattr(row, name))
        if row.usage:
            each.usage = msgspec.json.decode(row.usage, type=Usage)
        each.kind, each.source = row.kind, row.source
    return found


def booked_usage(row: sa.Row[Any]) -> Usage:
    """The usage that an attempt was settled with."""
    tokens = (int(getattr(row, column)) for column in TOKENS)
    return Usage(**dict(zip(BUCKETS, tokens, strict=True)))


async def _correct(
    connection: AsyncConnection, known: dict[str, KnownCost], kind: Kind, now: float
) -> int:
    c = attempts.c
    query = sa.select(
        c.attempt_id, c.provider, c.sent_at, c.hold_nanos, c.failure, c.price_source,
        *(c[name] for name in (*SPEND_NAMES, *MONEY, *TOKENS)),
    ).where(c.attempt_id.in_(known), c.state == "settled").order_by(c.attempt_id)  # fmt: skip
    # Locked before their corrections are read: two that correct the same attempt take turns.
    settled = list(await connection.execute(query.with_for_update()))
    before = await corrections_of(connection, corrections.c.attempt_id.in_(known))
    rows: list[dict[str, Any]] = []
    booked: list[dict[str, Any]] = []
    spend = spend_sums()
    for row in settled:
        true = known[row.attempt_id]
        then = before.get(row.attempt_id) or Corrected(dict.fromkeys(MONEY, 0))
        deltas = _deltas(row, then, true.cost_nanos)
        usage_then = then.usage or booked_usage(row)
        is_usage_new = true.usage not in (None, usage_then)
        if not any(deltas.values()) and not is_usage_new:
            continue
        correction_id = secrets.token_hex(12)
        usage = "" if true.usage is None else msgspec.json.encode(true.usage).decode()
        rows.append({
            "id": correction_id, "kind": kind, "attempt_id": row.attempt_id,
            "tenant_id": row.tenant_id, "provider": row.provider, "model": row.model,
            "day": day_of(row.sent_at), "usage": usage, "source": true.source, "created_at": now,
            **deltas,
        })  # fmt: skip
        booked += entry_rows(f"correction:{correction_id}", _amounts(row, deltas), now)
        add_correction(
            spend, row, deltas, cost_before_nanos=row.cost_nanos + then.money["cost_nanos"],
            usage_before=usage_then, usage=true.usage,
        )  # fmt: skip
    if rows:
        await connection.execute(sa.insert(corrections), rows)
    if booked:
        await connection.execute(sa.insert(entries), booked)
    await spend.write(connection)
    return len(rows)


def _deltas(row: sa.Row[Any], before: Corrected, cost: int) -> dict[str, int]:
    cost_then, billed_then, overrun_then, waste_then = (
        getattr(row, name) + before.money[name] for name in MONEY
    )
    is_waste = is_wasted(
        cost_nanos=row.cost_nanos,
        billed_nanos=row.billed_nanos,
        waste_nanos=row.waste_nanos,
        failure=row.failure,
    )
    billed = 0 if is_waste else min(cost, row.hold_nanos)
    overrun = 0 if is_waste else cost - billed
    waste = cost if is_waste else 0
    return {
        "cost_nanos": cost - cost_then,
        "billed_nanos": billed - billed_then,
        "overrun_nanos": overrun - overrun_then,
        "waste_nanos": waste - waste_then,
    }


def _amounts(row: sa.Row[Any], deltas: dict[str, int]) -> dict[str, int]:
    return {
        f"tenant:{row.tenant_id}": -deltas["billed_nanos"],
        "operator:overrun": -deltas["overrun_nanos"],
        "operator:waste": -deltas["waste_nanos"],
        f"provider:{row.provider}": deltas["cost_nanos"],
    }
