"""A correction is a booking of its own: it balances, says who pays, and is said once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.ledger.corrections import KnownCost, correct_attempts
from gateway.ledger.records import CRASHED
from gateway.ledger.report import GROUPS, report
from gateway.ledger.verify import verify
from gateway.prices.rows import UNPRICED
from gateway.store.batch_tables import corrections
from gateway.store.engine import Store
from gateway.store.ledger_tables import entries
from gateway.wire.usage import Usage
from tests.support.ledgers import CENT, attempt_rows, cost_of, request_of
from tests.support.reconciling import ledger_bench, num_corrections, settle

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
ESTIMATE = {"id": "a", "cost": 100, "hold": 300, "is_estimated": True}


async def correct(store: Store, cost: int, usage: Usage | None = None, name: str = "a") -> int:
    known = KnownCost(attempt_id=name, cost_nanos=cost, usage=usage, source="test")
    return await correct_attempts(store, [known], kind="reconcile", now=5.0)


async def money(store: Store) -> tuple[str, ...]:
    (row,) = await report(store, by="model")
    return tuple(row[f"{name}_usd"] for name in ("cost", "billed", "overrun", "waste"))


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (250, ("0.00000025", "0.00000025", "0.00", "0.00")),
        (40, ("0.00000004", "0.00000004", "0.00", "0.00")),
        (0, ("0.00", "0.00", "0.00", "0.00")),
        (1_000, ("0.000001", "0.0000003", "0.0000007", "0.00")),
    ],
)
async def test_the_client_pays_the_true_cost_up_to_the_hold(
    tmp_path: Path, database: str, cost: int, expected: tuple[str, ...]
) -> None:
    async with ledger_bench(database, tmp_path) as at:
        await settle(at, ESTIMATE)
        rows = await attempt_rows(at.store)

        assert await correct(at.store, cost) == 1
        assert await correct(at.store, cost) == 0
        assert await money(at.store) == expected
        assert await verify(at.store, None) == []
        assert await attempt_rows(at.store) == rows


async def test_every_report_has_the_corrections(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, ESTIMATE, {"id": "b", "cost": 7})
        await correct(at.store, 250, Usage(input=70, reasoning=3))

        for by in GROUPS:
            (row,) = await report(at.store, by=by)
            assert (row["cost_usd"], row["attempts"]) == ("0.000000257", 2)
            assert (row["input_tokens"], row["output_tokens"], row["reasoning_tokens"]) == (
                80,
                5,
                3,
            )
        assert await report(at.store, by="model", tenant="nobody") == []
        now = await at.clock.database_now(None)  # type: ignore[arg-type]  # it needs none
        assert await report(at.store, by="day", since=now + 1) == []


async def test_a_cost_that_becomes_known_is_no_more_unpriced(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        ledger = at.ledger()
        await ledger.start()
        hold = await ledger.reserve(request_of("a", 0))
        ledger.settle(hold, cost_of(0, price=UNPRICED))
        await ledger.flush()
        await ledger.close()
        (before,) = await report(at.store, by="model")
        await correct(at.store, 250)
        (after,) = await report(at.store, by="model")

        assert (before["unpriced"], after["unpriced"]) == (1, 0)
        assert (after["billed_usd"], after["overrun_usd"]) == ("0.00", "0.00000025")


@pytest.mark.parametrize(
    ("settlement", "payer"),
    [
        ({"billable_to": "operator", "failure": "server_error"}, "waste_usd"),
        ({"failure": CRASHED}, "billed_usd"),
    ],
)
@pytest.mark.parametrize("cost_then", [0, 100])
async def test_who_paid_before_pays_the_difference(
    tmp_path: Path, settlement: dict[str, str], payer: str, cost_then: int
) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, ESTIMATE | {"cost": cost_then, "settlement": settlement})
        await correct(at.store, 250)

        (row,) = await report(at.store, by="model")
        assert row[payer] == row["cost_usd"] == "0.00000025"
        assert await verify(at.store, None) == []


async def test_usage_alone_is_noted_and_moves_no_money(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, ESTIMATE)
        assert await correct(at.store, 100, Usage(input=10, output=5)) == 0
        assert await correct(at.store, 100, Usage(input=11, output=5)) == 1
        assert await correct(at.store, 100, Usage(input=11, output=5)) == 0
        assert await correct(at.store, 100) == 0

        async with at.store.read() as connection:
            names = (await connection.execute(sa.select(entries.c.txn_id))).scalars()
            assert not [name for name in names if name.startswith("correction:")]


async def test_what_is_not_settled_is_left_alone(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        ledger = at.ledger()
        await ledger.start()
        await ledger.reserve(request_of("sent", CENT))
        ledger.release(await ledger.reserve(request_of("released", CENT)), "no work")
        await ledger.flush()
        for name in ("sent", "released", "nobody"):
            assert await correct(at.store, 100, name=name) == 0
        await ledger.close()
        assert await num_corrections(at.store) == 0


@pytest.mark.parametrize("database", DATABASES)
async def test_many_that_say_the_same_at_once_book_it_once(tmp_path: Path, database: str) -> None:
    async with ledger_bench(database, tmp_path) as at:
        await settle(at, ESTIMATE)
        counts = await asyncio.gather(*(correct(at.store, 250) for _ in range(8)))

        assert sorted(counts) == [0] * 7 + [1]
        assert await verify(at.store, None) == []


TAMPERING = {
    "account tenant:ten holds": "UPDATE corrections SET cost_nanos = 1, billed_nanos = 1",
    "entries of correction:": "UPDATE entries SET amount_nanos = amount_nanos + 1 "
    "WHERE txn_id LIKE 'correction:%' AND account LIKE 'tenant:%'",
    "its client pays $0.00000095; $0.0000003 was held": "UPDATE corrections SET cost_nanos = 850, "
    "billed_nanos = 850",
    "is corrected to $-0.0000009": "UPDATE corrections SET cost_nanos = -1000, "
    "billed_nanos = -1000",
    "which is not in the ledger": "UPDATE corrections SET attempt_id = 'gone'",
}


@pytest.mark.parametrize("symptom", TAMPERING)
async def test_verify_finds_corrections_that_are_tampered_with(
    tmp_path: Path, symptom: str
) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, ESTIMATE)
        await correct(at.store, 250)
        async with at.store.begin() as connection:
            await connection.execute(sa.text(TAMPERING[symptom]))

        problems = await verify(at.store, None)
        assert any(symptom in each for each in problems), problems


async def test_a_correction_that_does_not_say_who_pays_is_refused(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, ESTIMATE)
        await correct(at.store, 250)
        change = sa.update(corrections).values(cost_nanos=corrections.c.cost_nanos + 1)
        with pytest.raises(sa.exc.IntegrityError, match="has_payer"):
            async with at.store.begin() as connection:
                await connection.execute(change)
