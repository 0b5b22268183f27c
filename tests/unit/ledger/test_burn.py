"""How far budgets are burnt down, and the straight line of when they will be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.ledger.burn import PACE_AFTER_S, burn_down, empty_at
from gateway.ledger.windows import SECONDS_PER_DAY
from gateway.store.ledger_tables import budget_windows, budgets
from gateway.store.tenancy import BudgetRow
from tests.support.databases import sqlite_store

pytestmark = pytest.mark.anyio
DAY = float(SECONDS_PER_DAY)


@pytest.mark.parametrize(
    ("spent", "elapsed_s", "end_in_s", "wanted_in_s"),
    [
        (25, 10_000.0, math.inf, 30_000.0),  # a quarter gone: three times as long to go
        (25, 10_000.0, 30_001.0, 30_000.0),
        (25, 10_000.0, 30_000.0, None),  # it begins anew just then
        (100, 10_000.0, math.inf, 0.0),
        (130, 10.0, math.inf, 0.0),
        (0, 10_000.0, math.inf, None),
        (25, PACE_AFTER_S - 1, math.inf, None),  # too early to tell a pace
    ],
)
def test_when_it_is_empty(
    spent: int, elapsed_s: float, end_in_s: float, wanted_in_s: float | None
) -> None:
    now = 1_000_000.0
    at = empty_at(100, spent, began_at=now - elapsed_s, now=now, end=now + end_in_s)

    assert at == (None if wanted_in_s is None else pytest.approx(now + wanted_in_s))


async def test_only_the_present_window_counts(tmp_path: Path) -> None:
    now = 20 * DAY + 43_200.0
    rows = [
        BudgetRow(
            id=period, tenant_id="t", scope_kind="key", scope_id="k", period=period, limit_nanos=100
        )
        for period in ("day", "total", "month")
    ]
    windows = [("day", 19, 90, 0), ("day", 20, 50, 20), ("total", 0, 140, 0)]
    async with sqlite_store(tmp_path) as store, store.begin() as connection:
        for row in rows:
            await connection.execute(
                budgets.insert().values(
                    id=row.id,
                    tenant_id="t",
                    scope_kind="key",
                    scope_id="k",
                    period=row.period,
                    limit_nanos=row.limit_nanos,
                    created_at=10 * DAY,
                    updated_at=10 * DAY,
                )
            )
        for budget_id, days, spent, leased in windows:
            await connection.execute(
                budget_windows.insert().values(
                    budget_id=budget_id,
                    window_start=int(days * DAY),
                    spent_nanos=spent,
                    leased_nanos=leased,
                    limit_seen_nanos=200,
                )
            )
        day, total, month = await burn_down(connection, "t", rows, now=now)
        others = await burn_down(connection, "another", rows, now=now)

    assert (day.spent_nanos, day.leased_nanos, day.left_nanos, day.share) == (50, 20, 50, 0.5)
    assert (day.began_at, day.resets_at) == (20 * DAY, 21 * DAY)
    assert day.empty_at is None  # at this pace it is empty just when it begins anew
    assert (total.spent_nanos, total.left_nanos, total.share) == (140, 0, 1.0)
    assert (total.began_at, total.resets_at, total.empty_at) == (10 * DAY, None, now)
    assert (month.spent_nanos, month.left_nanos, month.empty_at) == (0, 100, None)
    assert [burn.spent_nanos for burn in others] == [0, 0, 0]
