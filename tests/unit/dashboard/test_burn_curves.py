"""A key's spend by day and its budgets burning down: what is drawn is what the books say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.core import dollars
from gateway.dashboard.queries_burn import DAYS_SHOWN, HEIGHT, WIDTH, burn_curve
from gateway.ledger.burn import Burn, empty_at
from gateway.ledger.windows import day_of, window_of
from gateway.store import tenancy
from gateway.store.ledger_tables import budget_windows, budgets
from gateway.store.rollups import spend_sums
from gateway.store.tenancy import BudgetRow
from gateway.wire.usage import BUCKETS
from tests.support.dashboard_world import DashboardWorld, dashboard

DAY = 86_400
NOW = 20 * DAY + 43_200.0
LIMIT = 1_000


def burn(
    spent: int, *, period: str = "month", began_at: float = 10.0 * DAY, end: float = 31.0 * DAY
) -> Burn:
    row = BudgetRow(
        id="b", tenant_id="t", scope_kind="key", scope_id="k", period=period, limit_nanos=LIMIT
    )
    return Burn(
        budget=row,
        spent_nanos=spent,
        leased_nanos=0,
        began_at=began_at,
        resets_at=None if math.isinf(end) else end,
        empty_at=empty_at(LIMIT, spent, began_at=began_at, now=NOW, end=end),
    )


def box(line: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in line.split())]


def test_it_ends_with_what_is_left_and_each_day_takes_what_it_cost() -> None:
    found = burn_curve(
        burn(600),
        [(12 * DAY, 100), (15 * DAY, 300), (20 * DAY, 200)],
        DAY,
        oldest=0.0,
        now=NOW,
    )

    assert found.points == [
        (10.0 * DAY, dollars(LIMIT)),
        (12.0 * DAY, dollars(LIMIT)),
        (15.0 * DAY, dollars(900)),
        (20.0 * DAY, dollars(600)),
        (NOW, dollars(400)),
    ]
    assert (found.begins_at, found.ends_at) == (10.0 * DAY, 31.0 * DAY)
    drawn = box(found.line)
    assert drawn[0] == (0.0, 0.0)
    assert drawn[-1] == (pytest.approx(10.5 / 21 * WIDTH, abs=0.1), 0.6 * HEIGHT)
    assert found.now_x == pytest.approx(drawn[-1][0], abs=0.1)
    # 600 in 10.5 days: the 400 that are left last 7 more.
    assert found.forecast == (pytest.approx(NOW + 7 * DAY), dollars(0))
    assert box(found.forecast_line)[-1] == (pytest.approx(17.5 / 21 * WIDTH, abs=0.1), HEIGHT)


def test_a_slow_pace_is_drawn_to_the_reset_and_none_before_an_hour() -> None:
    slow = burn_curve(burn(210), [(20 * DAY, 210)], DAY, oldest=0.0, now=NOW)
    young = burn_curve(burn(210, began_at=NOW - 60), [(20 * DAY, 900)], DAY, oldest=0.0, now=NOW)
    unused = burn_curve(burn(0), [], DAY, oldest=0.0, now=NOW)
    spent = burn_curve(burn(LIMIT + 50), [(20 * DAY, LIMIT + 50)], DAY, oldest=0.0, now=NOW)

    assert slow.forecast == (31.0 * DAY, dollars(LIMIT - 420))
    # What the day cost before the budget was there is none of its business.
    assert young.points == [(NOW - 60, dollars(LIMIT)), (NOW, dollars(LIMIT - 210))]
    assert (young.forecast, unused.forecast, spent.forecast) == (None, None, None)
    assert [left for _, left in unused.points] == [dollars(LIMIT)] * 2
    assert spent.points[-1] == (NOW, dollars(0))
    for each in (slow, young, unused, spent):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in box(each.line))


def test_a_total_looks_back_so_far_and_as_far_ahead_as_it_lasts() -> None:
    long = burn(500, period="total", began_at=0.0, end=math.inf)
    found = burn_curve(long, [(19 * DAY, 100)], DAY, oldest=18.0 * DAY, now=NOW)
    idle = burn(0, period="total", began_at=0.0, end=math.inf)
    nobody = burn_curve(idle, [], DAY, oldest=18.0 * DAY, now=NOW)

    assert found.points[0] == (18.0 * DAY, dollars(600))  # 400 were spent before
    assert found.ends_at == pytest.approx(2 * NOW)
    assert found.forecast == (found.ends_at, dollars(0))
    assert nobody.ends_at == pytest.approx(NOW + 0.25 * (NOW - 18 * DAY))


async def spent_by(
    world: DashboardWorld, key_id: str, *, day: int, nanos: int, team: str = "m"
) -> None:
    async with world.gateway.store.begin() as connection:
        tenant = await tenancy.find_tenant_named(connection, "default")
        assert tenant is not None
        sums = spend_sums()
        names = (tenant.id, team, key_id, "acme/x", "chat", "interactive", False)
        sums.add(
            world.now[0] - day * DAY, names, (1, 0, 0, nanos, nanos, 0, 0, *[0] * len(BUCKETS))
        )
        await sums.write(connection)


@pytest.mark.anyio
async def test_a_key_shows_its_own_spend_and_a_curve_for_each_budget(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        made = await browser.send("POST", "/admin/api/keys", {"name": "ada"})
        key_id = made.json()["id"]
        for period in ("day", "month", "total"):
            body = {
                "scope_kind": "key", "scope_id": key_id, "limit_usd": "5", "period": period,
            }  # fmt: skip
            await browser.send("PUT", "/admin/api/budgets", body)
        await spent_by(world, key_id, day=0, nanos=250_000_000)
        await spent_by(world, key_id, day=3, nanos=500_000_000)
        await spent_by(world, key_id, day=DAYS_SHOWN, nanos=7_000_000_000)
        await spent_by(world, "another", day=0, nanos=9_000_000_000)
        shown = (await browser.send("GET", f"/admin/api/keys/{key_id}")).json()
        page = await browser.get(f"/admin/keys/{key_id}")

    today = day_of(world.now[0])
    days = dict(shown["days"])
    assert len(days) == DAYS_SHOWN
    assert list(days)[-1] == today
    assert {day: usd for day, usd in days.items() if float(usd)} == {
        today: "0.25",
        day_of(world.now[0] - 3 * DAY): "0.50",
    }
    assert [each["budget_id"] for each in shown["curves"]] == [
        each["id"] for each in shown["budgets"]
    ]
    assert page.text.count('<figure class="burn') == 3
    heights = [float(each) for each in re.findall(r'width="8" height="([\d.]+)"', page.text)]
    assert sorted(heights)[-2:] == [29.0, 58.0]
    assert sum(heights) == 87.0
    assert f'href="/admin/requests?key={key_id}"' in page.text


@pytest.mark.anyio
async def test_budgets_of_tenant_and_team_burn_by_what_they_are_for(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        (team,) = (await browser.send("GET", "/admin/api/keys")).json()["teams"]
        for kind, scope_id, period in (
            ("tenant", "", "total"), ("team", team["id"], "total"), ("team", team["id"], "day"),
        ):  # fmt: skip
            body = {
                "scope_kind": kind, "scope_id": scope_id, "limit_usd": "5", "period": period,
            }  # fmt: skip
            assert (await browser.send("PUT", "/admin/api/budgets", body)).status_code == 204
        async with world.gateway.store.begin() as connection:
            long_ago = budgets.update().values(created_at=world.now[0] - 2 * DAY)
            await connection.execute(long_ago)
            made = (await connection.execute(sa.select(budgets))).mappings().all()
            for row in made:
                spent = 1_500_000_000 if row["scope_kind"] == "tenant" else 500_000_000
                begins = window_of(row["period"], world.now[0]).start
                window = {
                    "budget_id": row["id"], "window_start": begins, "spent_nanos": spent,
                    "limit_seen_nanos": row["limit_nanos"],
                }  # fmt: skip
                await connection.execute(budget_windows.insert().values(window))
        await spent_by(world, "one", day=0, nanos=500_000_000, team=team["id"])
        await spent_by(world, "two", day=0, nanos=1_000_000_000, team="another")
        found = (await browser.send("GET", "/admin/api/keys")).json()
        page = await browser.get("/admin/keys")

    drawn = {
        (budget["scope_kind"], budget["period"]): [left for _, left in curve["points"]]
        for budget, curve in zip(found["budgets"], found["curves"], strict=True)
    }
    # From two days ago to the day of the spending, and what is left now.
    assert drawn[("tenant", "total")] == ["5.00", "5.00", "3.50"]
    assert drawn[("team", "total")] == ["5.00", "5.00", "4.50"]
    assert drawn[("team", "day")][-1] == "4.50"
    assert drawn[("team", "day")][0] == "5.00"
    assert page.text.count('<span class="burn small">') == 3
