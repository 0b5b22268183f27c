"""How far budgets are burnt down in their present window, and when they will be at this pace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.ledger.windows import window_of
from gateway.store.ledger_tables import budget_windows, budgets
from gateway.store.tenancy import BudgetRow

PACE_AFTER_S = 3_600.0  # of a window: before, what was spent says nothing of its pace


class Burn(msgspec.Struct, frozen=True, kw_only=True):
    """One budget in its present window. Nano-dollars; unix seconds."""

    budget: BudgetRow
    spent_nanos: int
    leased_nanos: int  # in the hands of serving processes, not spent yet
    began_at: float  # of the window, or of the budget where that is younger
    resets_at: float | None  # None = a total never does
    empty_at: float | None  # at the pace so far; None = not within this window, or nothing to go by

    @property
    def left_nanos(self) -> int:
        return max(0, self.budget.limit_nanos - self.spent_nanos)

    @property
    def share(self) -> float:
        """Spent of the limit, 0 to 1."""
        limit = self.budget.limit_nanos
        return min(1.0, self.spent_nanos / limit) if limit > 0 else 1.0


async def burn_down(
    connection: AsyncConnection, tenant_id: str, rows: Sequence[BudgetRow], *, now: float
) -> list[Burn]:
    """The budgets in their order. `now` is unix seconds by the database's clock."""
    starts = {row.id: window_of(row.period, now).start for row in rows}
    # One statement for all windows that can be the present one: at most three starts.
    query = (
        sa.select(
            budgets.c.id,
            budgets.c.created_at,
            budget_windows.c.window_start,
            budget_windows.c.spent_nanos,
            budget_windows.c.leased_nanos,
        )
        .join_from(budgets, budget_windows, budget_windows.c.budget_id == budgets.c.id)
        .where(
            budgets.c.tenant_id == tenant_id,
            budgets.c.ended_at.is_(None),
            budget_windows.c.window_start.in_(sorted(set(starts.values()))),
        )
    )
    found = {
        row.id: row
        for row in await connection.execute(query)
        if starts.get(row.id) == row.window_start
    }
    return [_burn(row, found.get(row.id), now) for row in rows]


def _burn(row: BudgetRow, found: Any, now: float) -> Burn:
    window = window_of(row.period, now)
    spent = int(found.spent_nanos) if found is not None else 0
    began_at = max(float(window.start), float(found.created_at) if found is not None else now)
    return Burn(
        budget=row,
        spent_nanos=spent,
        leased_nanos=int(found.leased_nanos) if found is not None else 0,
        began_at=began_at,
        resets_at=None if math.isinf(window.end) else window.end,
        empty_at=empty_at(row.limit_nanos, spent, began_at=began_at, now=now, end=window.end),
    )


def empty_at(
    limit_nanos: int, spent_nanos: int, *, began_at: float, now: float, end: float
) -> float | None:
    """When a budget is spent if it goes on as it did since `began_at`: a straight line."""
    if spent_nanos >= limit_nanos:
        return now
    elapsed_s = now - began_at
    if spent_nanos <= 0 or elapsed_s < PACE_AFTER_S:
        return None
    at = now + (limit_nanos - spent_nanos) * elapsed_s / spent_nanos
    return at if at < end else None
