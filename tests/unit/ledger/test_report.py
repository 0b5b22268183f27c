"""Reports group and add up exactly; verify finds each kind of tampering."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.core import Caller, PriceRow
from gateway.ledger.records import Settlement
from gateway.ledger.report import GROUPS, report
from gateway.ledger.verify import verify
from gateway.prices.rows import UNPRICED
from gateway.store.engine import Store
from gateway.wire.usage import Usage
from tests.support.ledgers import CENT, DOLLAR, Bench, add_budget, bench, cost_of, die, request_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def some_spending(at: Bench) -> None:
    await add_budget(at.store, "b", DOLLAR)
    ledger = at.ledger()
    await ledger.start()
    for i, (model, key, cost) in enumerate(
        [("chat", "k1", 3), ("chat", "k2", 1_000), ("code", "k1", 20), ("code", "k1", 1)]
    ):
        caller = Caller(tenant_id=f"ten-{key}", team_id="m", key_id=key, budget_ids=("b",))
        request = request_of(f"a{i}", 10 * CENT, model=model, caller=caller)
        ledger.settle(await ledger.reserve(request), cost_of(cost, usage=Usage(input=i, output=1)))
        at.clock.turn(86_400 / 2)
    await ledger.reserve(request_of("open", CENT, model="code"))
    await ledger.flush()
    await ledger.close()


async def test_a_report_by_model_adds_up_dollars_and_tokens(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await some_spending(at)

        rows = await report(at.store, by="model")
        assert [(row["model"], row["cost_usd"], row["attempts"]) for row in rows] == [
            ("chat", "0.000001003", 2),
            ("code", "0.000000021", 3),
        ]
        assert (rows[1]["input_tokens"], rows[1]["output_tokens"], rows[1]["in_flight"]) == (
            5,
            2,
            1,
        )


async def test_what_nobody_knows_the_price_of_is_counted_and_not_called_free(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as at:
        ledger = at.ledger()
        await ledger.start()
        for name, price in (("a1", UNPRICED), ("a2", PriceRow(source="policy", free=("input",)))):
            hold = await ledger.reserve(request_of(name, 0, model=name))
            ledger.settle(hold, Settlement(usage=Usage(input=5), cost_nanos=0, price=price))
        await ledger.flush()
        rows = await report(at.store, by="model")
        await ledger.close()

    assert {row["model"]: row["unpriced"] for row in rows} == {"a1": 1, "a2": 0}


async def test_a_report_can_be_of_one_tenant_since_an_instant_by_day(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        began = at.clock.now_s
        await some_spending(at)
        since = await at.clock.database_now(None) - (at.clock.now_s - began) + 1  # type: ignore[arg-type]

        by_key = await report(at.store, by="key", tenant="ten-k1", since=since)
        assert [(row["key"], row["key_name"], row["cost_usd"]) for row in by_key] == [
            ("k1", "", "0.000000021")
        ]
        # The clock begins on 2023-11-14 at 22:13 and moves half a day an attempt.
        by_day = await report(at.store, by="day")
        assert [(row["day"], row["attempts"]) for row in by_day] == [
            ("2023-11-14", 1),
            ("2023-11-15", 2),
            ("2023-11-16", 2),
        ]


async def test_every_grouping_has_the_same_total(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await some_spending(at)

        for by in GROUPS:
            rows = await report(at.store, by=by)
            assert sum(row["attempts"] for row in rows) == 5
            assert all(isinstance(row["cost_usd"], str) for row in rows)
        with pytest.raises(ValueError, match="use model, key, endpoint, day"):
            await report(at.store, by="colour")  # type: ignore[arg-type]


TAMPERING = {
    "entries of attempt:a1 sum to": "UPDATE entries SET amount_nanos = amount_nanos + 1 "
    "WHERE txn_id = 'attempt:a1' AND account LIKE 'provider:%'",
    "account tenant:ten-k1 holds": "UPDATE attempts SET cost_nanos = 4, billed_nanos = 4 "
    "WHERE attempt_id = 'a0'",
    "all entries sum to": "DELETE FROM entries WHERE account = 'tenant:ten-k1'",
    "its attempts were billed": "UPDATE leases SET spent_nanos = spent_nanos + 1, "
    "granted_nanos = granted_nanos + 1",
    "its leases say": "UPDATE budget_windows SET spent_nanos = spent_nanos + 1",
    "limit $0.00": "UPDATE budget_windows SET limit_seen_nanos = spent_nanos",
    "was never settled": "UPDATE holders SET ended_at = 1.0",
    "never settled": "DELETE FROM holders",
}


async def tamper(store: Store, statement: str) -> None:
    async with store.begin() as connection:
        await connection.execute(sa.text(statement))
        if "limit_seen" in statement:
            await connection.execute(sa.text("UPDATE budgets SET limit_nanos = 0"))
            await connection.execute(sa.text("PRAGMA ignore_check_constraints = ON"))
            await connection.execute(
                sa.text("UPDATE budget_windows SET limit_seen_nanos = spent_nanos - 1")
            )


@pytest.mark.parametrize("symptom", TAMPERING)
async def test_verify_finds_tampering(tmp_path: Path, symptom: str) -> None:
    async with bench(tmp_path) as at:
        await some_spending(at)
        await tamper(at.store, TAMPERING[symptom])

        problems = await verify(at.store, None)
        assert any(symptom in each for each in problems), problems


async def test_verify_finds_a_journal_that_was_not_booked(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        ledger = at.ledger()
        await ledger.start()
        await ledger.reserve(request_of("a1", CENT))
        die(ledger)

        (problem,) = await verify(at.store, tmp_path / "journal")
        assert "has 1 records that are not in SQL; start the server" in problem
