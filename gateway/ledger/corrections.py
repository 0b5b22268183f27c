"""What became known after an attempt was booked: new entries, never an edit of the old ones.

The client pays the true cost up to the hold, as it would have if it had been known at once; what is
above is the operator's. Budgets are not moved: they count what was leased when the request ran.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.ledger.booking import IDS_PER_QUERY_MAX, entry_rows
from gateway.ledger.windows import day_of
from gateway.store.batch_tables import corrections
from gateway.store.engine import Store
from gateway.store.ledger_tables import attempts, entries
from gateway.wire.usage import Usage

Kind = Literal["native_result", "reconcile"]
MONEY = ("cost_nanos", "billed_nanos", "overrun_nanos", "waste_nanos")


class KnownCost(msgspec.Struct, frozen=True, kw_only=True):
    """The true cost of one attempt that was settled, and where it is known from."""

    attempt_id: str
    cost_nanos: int
    usage: Usage | None = None
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


async def _correct(
    connection: AsyncConnection, known: dict[str, KnownCost], kind: Kind, now: float
) -> int:
    c, before = attempts.c, await _booked_before(connection, list(known))
    query = sa.select(
        c.attempt_id, c.tenant_id, c.provider, c.model, c.sent_at, c.hold_nanos,
        *(c[name] for name in MONEY),
    ).where(c.attempt_id.in_(known), c.state == "settled")  # fmt: skip
    rows: list[dict[str, Any]] = []
    booked: list[dict[str, Any]] = []
    for row in await connection.execute(query):
        true = known[row.attempt_id]
        deltas = _deltas(row, before.get(row.attempt_id, (0, 0, 0, 0)), true.cost_nanos)
        if not any(deltas.values()):
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
    if rows:
        await connection.execute(sa.insert(corrections), rows)
    if booked:
        await connection.execute(sa.insert(entries), booked)
    return len(rows)


async def _booked_before(
    connection: AsyncConnection, attempt_ids: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    c = corrections.c
    query = (
        sa.select(c.attempt_id, *(sa.func.sum(c[name]).label(name) for name in MONEY))
        .where(c.attempt_id.in_(attempt_ids))
        .group_by(c.attempt_id)
    )
    return {
        row.attempt_id: tuple(int(getattr(row, name)) for name in MONEY)
        for row in await connection.execute(query)
    }


def _deltas(row: sa.Row[Any], before: tuple[int, ...], cost: int) -> dict[str, int]:
    cost_then, billed_then, overrun_then, waste_then = (
        getattr(row, name) + moved for name, moved in zip(MONEY, before, strict=True)
    )
    # An attempt that failed was never the client's to pay, whatever it cost.
    is_waste = row.waste_nanos > 0 and row.billed_nanos == 0
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
