"""One request opened: its attempts on a time line, ledger entries, corrections, candidates."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.api.reasons import candidates_of_row
from gateway.core import Candidate, dollars
from gateway.dashboard.queries_requests import any_request
from gateway.ledger.report import attempts_of
from gateway.measure.recorder import row_json
from gateway.pipeline import Gateway
from gateway.store.batch_tables import corrections
from gateway.store.ledger_tables import entries
from gateway.store.requests import RequestRow

ENTRIES_MAX = 1_000


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of the waterfall, in seconds from the request; `end_s` null = still under way."""

    attempt: dict[str, Any]
    start_s: float
    end_s: float | None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a booking, in dollars; the entries of a transaction sum to zero."""

    transaction: str
    account: str
    amount: str
    booked_at: float


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a request. Never its text."""

    request: dict[str, Any]
    bars: list[Bar]
    span_s: float  # of the time line
    candidates: tuple[Candidate, ...]
    entries: list[Entry]


async def opened(gateway: Gateway, request_id: str) -> Opened | None:
    """None when there is no such request, or no longer."""
    row = gateway.recorder.recent(request_id)
    if row is None:
        async with gateway.store.read() as connection:
            row = await any_request(connection, request_id)
    if row is None:
        return None
    attempts = await attempts_of(gateway.store, row.tenant_id, row.id)
    async with gateway.store.read() as connection:
        booked = await _entries(connection, [each["id"] for each in attempts])
    bars = [_bar(row, each) for each in attempts]
    ends = [bar.end_s for bar in bars if bar.end_s is not None]
    return Opened(
        request=row_json(row),
        bars=bars,
        span_s=max([(row.duration_ms or 0.0) / 1000, *ends, 0.001]),
        candidates=await candidates_of_row(gateway, row),
        entries=booked,
    )


def _bar(row: RequestRow, attempt: dict[str, Any]) -> Bar:
    # The ledger writes by the database's clock, the log by ours; they may differ by a little.
    start_s = max(0.0, attempt["sent_at"] - row.created_at)
    settled_at = attempt["settled_at"]
    end_s = None if settled_at is None else max(start_s, settled_at - row.created_at)
    return Bar(attempt=attempt, start_s=start_s, end_s=end_s)


async def _entries(connection: AsyncConnection, attempt_ids: list[str]) -> list[Entry]:
    k, e = corrections.c, entries.c
    moved = sa.select(k.id).where(k.attempt_id.in_(attempt_ids))
    wanted = [f"attempt:{each}" for each in attempt_ids]
    wanted += [f"correction:{each}" for each in (await connection.execute(moved)).scalars()]
    query = sa.select(entries).where(e.txn_id.in_(wanted[:ENTRIES_MAX]))
    query = query.order_by(e.booked_at, e.txn_id, e.account).limit(ENTRIES_MAX)
    return [
        Entry(
            transaction=row.txn_id,
            account=row.account,
            amount=dollars(row.amount_nanos),
            booked_at=row.booked_at,
        )
        for row in await connection.execute(query)
    ]
