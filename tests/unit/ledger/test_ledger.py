"""Reserve, settle, release on a real SQLite file, with a clock that the test turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.errors import BudgetExhausted, LedgerUnavailable
from gateway.ledger.records import Settled
from gateway.ledger.verify import verify
from gateway.store.ledger_tables import budgets, entries
from tests.support.ledgers import (
    CENT,
    DOLLAR,
    add_budget,
    attempt_rows,
    bench,
    cost_of,
    lease_states,
    only_window,
    request_of,
    set_limit,
    windows,
)

pytestmark = pytest.mark.anyio


async def test_a_settled_attempt_is_billed_and_the_rest_of_its_hold_is_free_again(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        hold = await ledger.reserve(request_of("a1", DOLLAR, "b"))
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a2", CENT, "b"))

        settled = ledger.settle(hold, cost_of(30 * CENT))
        assert Settled(cost_nanos=30 * CENT, billed_nanos=30 * CENT, overrun_nanos=0) == settled
        await ledger.reserve(request_of("a3", 70 * CENT, "b"))
        await ledger.flush()
        row = (await attempt_rows(at.store))["a1"]
        assert (
            row.state, row.billed_nanos, row.price_source, row.input_tokens, row.output_tokens,
        ) == ("settled", 30 * CENT, "policy", 10, 5)  # fmt: skip
        assert (await only_window(at.store, "b")).spent == 30 * CENT
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_a_caller_without_budgets_needs_no_database(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        ledger = at.ledger()
        await ledger.start()
        await at.store.close()
        # From here on every statement opens a new connection; there is no file to open.
        (tmp_path / "looprouter.db").rename(tmp_path / "away.db")
        (tmp_path / "looprouter.db").mkdir()

        hold = await ledger.reserve(request_of("a1", DOLLAR))
        assert ledger.settle(hold, cost_of(CENT)).billed_nanos == CENT
        with pytest.raises(LedgerUnavailable):
            await ledger.flush()
        with pytest.raises(LedgerUnavailable, match="database does not answer"):
            await ledger.reserve(request_of("a2", DOLLAR, "b"))
        (tmp_path / "looprouter.db").rmdir()
        (tmp_path / "away.db").rename(tmp_path / "looprouter.db")
        await ledger.flush()
        assert (await attempt_rows(at.store))["a1"].state == "settled"
        await ledger.close()


async def test_tenant_team_and_key_budgets_are_taken_all_or_none(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "t", 10 * DOLLAR, kind="tenant", period="month")
        await add_budget(at.store, "m", DOLLAR, kind="team", period="day")
        await add_budget(at.store, "k", 5 * DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        first = await ledger.reserve(request_of("a1", 60 * CENT, "t", "m", "k"))
        with pytest.raises(BudgetExhausted) as refused:
            await ledger.reserve(request_of("a2", 60 * CENT, "t", "m", "k"))

        assert isinstance(refused.value.detail, dict)
        assert tuple(refused.value.detail[name] for name in ("scope", "period", "held_usd")) == (
            "team",
            "day",
            "0.60",
        )
        ledger.settle(first, cost_of(50 * CENT))
        await ledger.flush()
        spent = {each: window.spent for (each, _), window in (await windows(at.store)).items()}
        assert spent == {"t": 50 * CENT, "m": 50 * CENT, "k": 50 * CENT}
        assert sum(lease.held_nanos for lease in ledger._holdings.leases) == 0
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_concurrent_reserves_share_one_refill(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", 10 * DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        asked: list[str] = []

        @sa.event.listens_for(at.store.engine.sync_engine, "before_cursor_execute")
        def count(*args: object) -> None:
            if str(args[2]).startswith("SELECT budgets"):
                asked.append(str(args[2]))

        holds = await asyncio.gather(
            *(ledger.reserve(request_of(f"a{i}", 2 * CENT, "b")) for i in range(100))
        )
        assert len({hold.attempt_id for hold in holds}) == 100
        assert 1 <= len(asked) <= 2
        for hold in holds:
            ledger.release(hold, "connect")
        await ledger.close()


async def test_a_slice_is_topped_up_before_it_runs_out(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", 20 * DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        await ledger.reserve(request_of("a1", 30 * CENT, "b"))
        (lease,) = ledger._holdings.leases
        assert lease.granted_nanos == DOLLAR

        await ledger.reserve(request_of("a2", 30 * CENT, "b"))
        while lease.granted_nanos == DOLLAR:
            await asyncio.sleep(0)
        assert lease.granted_nanos == DOLLAR + 95 * CENT
        await ledger.close()


async def test_duplicate_and_late_settles_and_releases_change_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        first = await ledger.reserve(request_of("a1", 10 * CENT, "b"))
        second = await ledger.reserve(request_of("a2", 10 * CENT, "b"))

        ledger.settle(first, cost_of(CENT))
        assert ledger.settle(first, cost_of(9 * CENT)).billed_nanos == CENT
        assert ledger.release(first, "late").billed_nanos == CENT
        assert ledger.release(second, "refused").billed_nanos == 0
        assert ledger.settle(second, cost_of(9 * CENT)).billed_nanos == 0
        await ledger.flush()
        assert (await only_window(at.store, "b")).spent == CENT
        rows = await attempt_rows(at.store)
        assert (
            rows["a1"].state, rows["a2"].state, rows["a2"].failure,
        ) == ("settled", "released", "refused")  # fmt: skip
        third = await ledger.reserve(request_of("a3", CENT, "b"))
        with pytest.raises(ValueError, match="used once"):
            await ledger.reserve(request_of("a3", CENT, "b"))
        ledger.release(third, "done")
        await ledger.close()


async def test_cost_above_the_hold_is_the_operators_with_an_alert(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        hold = await ledger.reserve(request_of("a1", 10 * CENT, "b"))

        settled = ledger.settle(hold, cost_of(14 * CENT))
        assert (settled.billed_nanos, settled.overrun_nanos) == (10 * CENT, 4 * CENT)
        await ledger.flush()
        assert at.alert_kinds == ["overrun"]
        async with at.store.read() as connection:
            rows = await connection.execute(sa.select(entries.c.account, entries.c.amount_nanos))
            assert {row.account: row.amount_nanos for row in rows} == {
                "tenant:ten": -10 * CENT,
                "operator:overrun": -4 * CENT,
                "provider:acme": 14 * CENT,
            }
        await ledger.close()


async def test_waste_is_the_operators_and_bills_the_client_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        ledger = at.ledger()
        await ledger.start()
        hold = await ledger.reserve(request_of("a1", 10 * CENT, "b"))

        settled = ledger.settle(hold, cost_of(4 * CENT, billable_to="operator", failure="timeout"))
        assert (
            settled.billed_nanos, settled.overrun_nanos, settled.waste_nanos,
        ) == (0, 0, 4 * CENT)  # fmt: skip
        await ledger.flush()
        assert (await only_window(at.store, "b")).spent == 0
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_a_new_window_begins_by_database_time(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR, period="day")
        ledger = at.ledger()
        await ledger.start()
        yesterday = await ledger.reserve(request_of("a1", DOLLAR, "b"))
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a2", CENT, "b"))
        at.clock.turn(86_400)

        today = await ledger.reserve(request_of("a3", DOLLAR, "b"))
        ledger.settle(yesterday, cost_of(80 * CENT))
        ledger.settle(today, cost_of(30 * CENT))
        await ledger.flush()
        spent = [window.spent for _, window in sorted((await windows(at.store)).items())]
        assert spent == [80 * CENT, 30 * CENT]
        await ledger.tend()
        assert len(list(ledger._holdings.leases)) == 1
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_a_raised_budget_serves_again_and_a_lowered_one_stops_at_once(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", 10 * CENT)
        ledger = at.ledger()
        await ledger.start()
        hold = await ledger.reserve(request_of("a1", 10 * CENT, "b"))
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a2", 5 * CENT, "b"))
        await set_limit(at.store, "b", DOLLAR)
        await ledger.reload_budgets()
        ledger.release(await ledger.reserve(request_of("a3", 50 * CENT, "b")), "done")

        await set_limit(at.store, "b", 12 * CENT)
        await ledger.reload_budgets()
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a4", 5 * CENT, "b"))
        ledger.release(await ledger.reserve(request_of("a5", 2 * CENT, "b")), "done")
        ledger.settle(hold, cost_of(10 * CENT))
        await ledger.flush()
        assert await verify(at.store, tmp_path / "journal") == []
        await ledger.close()


async def test_a_budget_that_ended_binds_nobody_any_more(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", CENT)
        ledger = at.ledger()
        await ledger.start()
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a1", DOLLAR, "b"))
        async with at.store.begin() as connection:
            await connection.execute(sa.update(budgets).values(ended_at=1.0))
        await ledger.reload_budgets()

        ledger.release(await ledger.reserve(request_of("a2", DOLLAR, "b", "never")), "done")
        async with at.store.begin() as connection:
            await connection.execute(sa.update(budgets).values(ended_at=None))
        await ledger.reload_budgets()
        with pytest.raises(BudgetExhausted):
            await ledger.reserve(request_of("a3", DOLLAR, "b"))
        await ledger.close()


async def test_idle_money_goes_back_to_the_budget(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await add_budget(at.store, "b", DOLLAR)
        one, two = at.ledger("one"), at.ledger("two")
        await one.start()
        await two.start()
        hold = await one.reserve(request_of("a1", DOLLAR, "b"))
        one.settle(hold, cost_of(40 * CENT))
        await one.flush()
        with pytest.raises(BudgetExhausted) as refused:
            await two.reserve(request_of("a2", 50 * CENT, "b"))
        assert isinstance(refused.value.detail, dict)
        assert refused.value.detail["held_usd"] == "0.60"

        at.clock.turn(61)
        await one.tend()
        assert list(one._holdings.leases) == []
        two.release(await two.reserve(request_of("a3", 50 * CENT, "b")), "done")
        await two.flush()
        await one.close()
        await two.close()
        assert await lease_states(at.store) == ["closed", "closed"]
        assert (await only_window(at.store, "b")).spent == 40 * CENT
        assert await verify(at.store, tmp_path / "journal") == []
