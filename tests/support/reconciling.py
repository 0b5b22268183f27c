"""Ledgers with settled attempts to reconcile, exports written for them, and what was booked."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gateway.core import PriceRow
from gateway.ledger.exports.reader import ExportReader
from gateway.ledger.reconcile import Reconciliation, reconcile
from gateway.store.batch_tables import corrections
from gateway.store.engine import Store
from gateway.store.tables import audit_events
from gateway.wire.usage import Usage
from tests.support.ledgers import (
    DOLLAR,
    Bench,
    add_budget,
    bench,
    cost_of,
    postgres_bench,
    request_of,
)

DAY_1, DAY_2 = "2023-11-14", "2023-11-15"  # the clock of a Bench begins on the first, at 22:13
PRICE = PriceRow(source="policy", input=1_000, output=2_000)  # 1 and 2 nano-dollars
HOLD = 1_000_000
SECONDS_TO_DAY_2 = 7_200


@asynccontextmanager
async def ledger_bench(database: str, home: Path) -> AsyncIterator[Bench]:
    """On SQLite or PostgreSQL, with a budget "b"."""
    if database == "sqlite":
        async with bench(home) as at:
            await add_budget(at.store, "b", DOLLAR)
            yield at
    else:
        async with postgres_bench(home) as (at, _):
            await add_budget(at.store, "b", DOLLAR)
            yield at


async def settle(at: Bench, *attempts: dict[str, Any]) -> None:
    """
    Each on its `day` (1 or 2) with its `cost`, `usage`, `is_estimated`, `hold`, in that order.

    More keys go into the hold's request, but for `settlement`, which goes into the settlement.
    """
    ledger = at.ledger()
    await ledger.start()
    on_day = 1
    for each in sorted(attempts, key=lambda one: one.get("day", 1)):
        values = dict(each)
        if values.pop("day", 1) > on_day:
            at.clock.turn(SECONDS_TO_DAY_2)
            on_day = 2
        end = cost_of(
            values.pop("cost"),
            usage=values.pop("usage", Usage(input=10, output=5)),
            is_estimated=values.pop("is_estimated", False),
            price=PRICE,
            **values.pop("settlement", {}),
        )
        hold = values.pop("hold", HOLD)
        ledger.settle(await ledger.reserve(request_of(values.pop("id"), hold, "b", **values)), end)
    await ledger.flush()
    await ledger.close()


def plain(*rows: Iterable[object], columns: str = "day,model,cost_usd,attempt_id") -> str:
    return "\n".join([columns, *(",".join(str(cell) for cell in row) for row in rows), ""])


def usd(nanos: int) -> str:
    return f"{nanos // 10**9}.{nanos % 10**9:09d}"


async def compare(store: Store, text: str, **more: Any) -> Reconciliation:
    """`reconcile` with an export of this text, of the provider "acme"."""
    reader = ExportReader(io.BytesIO(text.encode()), "export.csv")
    return await reconcile(store, reader, **({"provider": "acme"} | more))


async def booked(store: Store) -> dict[str, int]:
    """What the corrections of each attempt add up to, in nano-dollars of cost."""
    c = corrections.c
    query = sa.select(c.attempt_id, sa.func.sum(c.cost_nanos)).group_by(c.attempt_id)
    async with store.read() as connection:
        return {name: int(nanos) for name, nanos in await connection.execute(query)}


async def num_corrections(store: Store) -> int:
    async with store.read() as connection:
        count = sa.select(sa.func.count()).select_from(corrections)
        return int((await connection.execute(count)).scalar_one())


async def audit_actions(store: Store) -> list[str]:
    async with store.read() as connection:
        return list((await connection.execute(sa.select(audit_events.c.action))).scalars())
