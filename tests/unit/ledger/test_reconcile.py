"""Estimates are corrected to what the provider charged, exact ones never; the rest is drift."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.ledger.exports.reader import open_export
from gateway.ledger.exports.rows import ExportError
from gateway.ledger.reconcile import reconcile
from gateway.ledger.report import report
from gateway.ledger.verify import verify
from gateway.simulator.meter import InvoiceLine
from gateway.wire.usage import Usage
from tests.support.invoices import write_invoice
from tests.support.ledgers import attempt_rows, request_of
from tests.support.reconciling import (
    DAY_1,
    DAY_2,
    audit_actions,
    booked,
    compare,
    ledger_bench,
    num_corrections,
    plain,
    settle,
    usd,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
TOKENS = "day,model,input_tokens,output_tokens,cost_usd,attempt_id"


@pytest.mark.parametrize("database", DATABASES)
async def test_a_day_adds_up_by_the_bills_of_attempts_and_by_shares(
    tmp_path: Path, database: str
) -> None:
    async with ledger_bench(database, tmp_path) as at:
        await settle(
            at,
            {"id": "exact", "cost": 5_000},
            {"id": "billed", "cost": 900, "is_estimated": True},
            {"id": "share-1", "cost": 100, "is_estimated": True},
            {"id": "share-2", "cost": 200, "is_estimated": True},
            {"id": "tomorrow", "cost": 70, "is_estimated": True, "day": 2},
        )
        export = plain(
            (DAY_1, "model-1", usd(1_234), "billed"),
            (DAY_1, "model-1", usd(5_600), ""),
            (DAY_2, "model-1", usd(70), ""),
        )
        found = await compare(at.store, export)

        assert await booked(at.store) == {"billed": 334, "share-1": 100, "share-2": 200}
        assert [(day.day, day.corrected_nanos, day.drift_nanos) for day in found.days] == [
            (DAY_1, 634, 0),
            (DAY_2, 0, 0),
        ]
        assert (found.alerts, found.num_corrected, found.num_by_id) == ((), 3, 1)
        assert await verify(at.store, tmp_path / "journal") == []
        by_day = await report(at.store, by="day")
        assert [row["cost_usd"] for row in by_day] == ["0.000006834", "0.00000007"]
        assert await audit_actions(at.store) == ["ledger.reconcile"]


async def test_what_was_settled_exactly_is_drift_and_never_touched(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 1_000}, {"id": "b", "cost": 1_000})
        rows = await attempt_rows(at.store)
        found = await compare(
            at.store,
            plain((DAY_1, "model-1", usd(1_500), "a"), (DAY_1, "model-1", usd(1_000), "b")),
        )

        assert found.total.drift_nanos == 500
        assert [alert.kind for alert in found.alerts] == ["reconcile_drift"] * 2
        assert "acme model-1 on 2023-11-14: $0.0000025 by their export" in found.alerts[0].message
        assert await num_corrections(at.store) == 0
        assert await attempt_rows(at.store) == rows
        assert await audit_actions(at.store) == ["ledger.drift"]


async def test_no_more_than_was_held_is_shared_out_and_the_rest_is_told(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100, "hold": 300, "is_estimated": True})
        found = await compare(at.store, plain((DAY_1, "model-1", usd(1_000), "")))

        assert await booked(at.store) == {"a": 200}
        assert (found.total.drift_nanos, found.total.is_alarm) == (700, True)


async def test_a_bill_of_its_own_above_the_hold_is_the_operators(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100, "hold": 300, "is_estimated": True})
        await compare(at.store, plain((DAY_1, "model-1", usd(1_000), "a")))

        (row,) = await report(at.store, by="key")
        assert (row["cost_usd"], row["billed_usd"], row["overrun_usd"]) == (
            "0.000001",
            "0.0000003",
            "0.0000007",
        )
        assert await verify(at.store, None) == []


async def test_the_same_file_is_booked_once_and_another_of_the_same_day_adds_nothing(
    tmp_path: Path,
) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100, "is_estimated": True})
        export = plain((DAY_1, "model-1", usd(1_000), ""))
        first = await compare(at.store, export)
        num = await num_corrections(at.store)
        again = await compare(at.store, export)
        other = await compare(at.store, export + "\n")

        assert (first.imported_at, first.num_corrected) == (None, 1)
        assert again.imported_at is not None
        assert (again.num_corrected, again.total.drift_nanos, again.alerts) == (0, 0, ())
        assert (other.imported_at, other.num_corrected) == (None, 0)
        assert await num_corrections(at.store) == num == 1
        assert await audit_actions(at.store) == ["ledger.reconcile"] * 2


async def test_a_dry_run_books_nothing_and_says_what_it_would(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100, "is_estimated": True})
        export = plain((DAY_1, "model-1", usd(1_000), ""), (DAY_1, "model-2", usd(50), ""))
        dry = await compare(at.store, export, is_dry_run=True)

        assert (dry.num_corrected, dry.total.corrected_nanos, len(dry.alerts)) == (1, 900, 2)
        assert await num_corrections(at.store) == 0
        assert await audit_actions(at.store) == []
        assert (await compare(at.store, export)).num_corrected == 1


async def test_a_later_statement_of_a_day_moves_the_shares_again(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(
            at,
            {"id": "a", "cost": 100, "is_estimated": True},
            {"id": "b", "cost": 300, "is_estimated": True},
        )
        await compare(at.store, plain((DAY_1, "model-1", usd(800), "")))
        await compare(at.store, plain((DAY_1, "model-1", usd(900), "a"), (DAY_1, "model-1", 0, "")))
        assert await booked(at.store) == {"a": 800, "b": -300}

        # Now a is known by its own bill: a sum of the day is for the others.
        found = await compare(at.store, plain((DAY_1, "model-1", usd(1_000), "")))
        assert await booked(at.store) == {"a": 800, "b": -200}
        assert found.total.drift_nanos == 0
        assert await verify(at.store, None) == []


@pytest.mark.parametrize("database", DATABASES)
async def test_tokens_follow_and_are_in_reports(tmp_path: Path, database: str) -> None:
    async with ledger_bench(database, tmp_path) as at:
        await settle(
            at,
            {"id": "exact", "cost": 20, "usage": Usage(input=10, output=5)},
            {"id": "a", "cost": 50, "usage": Usage(input=30, output=10), "is_estimated": True},
        )
        found = await compare(
            at.store, plain((DAY_1, "model-1", 50, 8, usd(66), ""), columns=TOKENS)
        )

        assert found.days[0].drift_tokens == {"input": 0, "output": 0}
        (row,) = await report(at.store, by="model")
        assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == (
            50,
            8,
            "0.000000066",
        )
        # The same by tokens alone, of which the dollars come by the attempt's own prices.
        usage = (
            "start_time,num_model_requests,model,input_tokens,output_tokens,input_cached_tokens\n"
            "1699920000,2.0,model-1,60.0,9.0,0.0\n"
        )
        found = await compare(at.store, usage)
        assert (found.total.theirs_nanos, found.alerts) == (None, ())
        assert await booked(at.store) == {"a": (50 + 2 * 4) - 50}


async def test_a_request_id_finds_its_only_attempt(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(
            at,
            {"id": "a", "cost": 100, "is_estimated": True},
            {"id": "b", "cost": 100, "is_estimated": True, "request_id": "twice"},
            {"id": "c", "cost": 100, "is_estimated": True, "request_id": "twice"},
        )
        rows = plain(
            (DAY_1, "model-1", usd(70), "req-a"),
            (DAY_1, "model-1", usd(40), "twice"),
            columns="day,model,cost_usd,request_id",
        )
        found = await compare(at.store, rows)

        assert found.num_by_id == 1
        assert await booked(at.store) == {"a": -30, "b": -80, "c": -80}


async def test_two_ids_of_one_attempt_are_one_bill(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100}, {"id": "b", "cost": 100})
        rows = plain(
            (DAY_1, "model-1", usd(60), "a", ""),
            (DAY_1, "model-1", usd(40), "", "req-a"),
            (DAY_1, "model-1", usd(100), "", ""),
            columns="day,model,cost_usd,attempt_id,request_id",
        )
        found = await compare(at.store, rows)

        assert (found.total.theirs_nanos, found.total.ours_nanos) == (200, 200)
        assert found.total.num_attempts == 2


async def test_dated_names_match_and_others_can_be_told(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100, "endpoint_id": "acme/Gpt-9.1#flex"})
        dated = plain((DAY_1, "gpt-9-1-2025-08-07", usd(100), ""))
        assert (await compare(at.store, dated)).alerts == ()

        other = plain((DAY_1, "nine", usd(100), ""))
        assert len((await compare(at.store, other, is_dry_run=True)).alerts) == 2
        found = await compare(at.store, other, models={"nine": "gpt-9.1"})
        assert [day.model for day in found.days] == ["Gpt-9.1"]
        assert found.alerts == ()


async def test_estimates_wait_while_a_name_of_theirs_is_not_known(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(
            at,
            {"id": "a", "cost": 100, "is_estimated": True},
            {"id": "b", "cost": 100, "is_estimated": True, "day": 2},
        )
        export = plain((DAY_1, "nine", usd(80), ""), (DAY_2, "model-1", usd(90), ""))
        first = await compare(at.store, export)
        assert await booked(at.store) == {"b": -10}
        assert len(first.alerts) == 3

        # Under a name that is known the same file is another statement.
        found = await compare(at.store, export, models={"nine": "model-1"})
        assert await booked(at.store) == {"a": -20, "b": -10}
        assert (found.imported_at, found.alerts) == (None, ())


async def test_what_a_provider_never_billed_costs_nothing(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(
            at,
            {"id": "a", "cost": 100, "is_estimated": True},
            {"id": "b", "cost": 300, "endpoint_id": "acme/other"},
        )
        found = await compare(at.store, plain((DAY_1, "other", usd(300), "")))

        assert await booked(at.store) == {"a": -100}
        assert found.alerts == ()


async def test_a_sum_without_models_is_of_the_whole_day(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(
            at,
            {"id": "a", "cost": 100, "is_estimated": True},
            {"id": "b", "cost": 300, "endpoint_id": "acme/other"},
        )
        found = await compare(at.store, plain((DAY_1, "", usd(450), "")))

        assert [(day.model, day.drift_nanos) for day in found.days] == [("(all models)", 0)]
        assert await booked(at.store) == {"a": 50}


async def test_what_only_one_side_has_is_drift(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100}, {"id": "b", "cost": 100, "provider": "else"})
        found = await compare(at.store, plain((DAY_1, "unheard-of", usd(30), "b")))

        assert {day.model: day.drift_nanos for day in found.days} == {
            "model-1": -100,
            "unheard-of": 30,
        }
        assert found.total.drift_nanos == -70


async def test_a_provider_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100})
        with pytest.raises(ExportError, match="no attempts of a provider 'acne'; it has: acme"):
            await compare(at.store, plain((DAY_1, "m", 1, "")), provider="acne")


async def test_too_many_estimates_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.reconcile_ours.ESTIMATED_MAX", 1)
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(
            at,
            {"id": "a", "cost": 100, "is_estimated": True},
            {"id": "b", "cost": 100, "is_estimated": True},
        )
        with pytest.raises(ExportError, match="more than 1 attempts of acme are estimated"):
            await compare(at.store, plain((DAY_1, "m", 1, "")))
        assert await num_corrections(at.store) == 0


async def test_more_days_than_are_summed_at_once_are_refused(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100})
        with pytest.raises(ExportError, match="3653 days from 2016-01-01 to 2025-12-31; reconcile"):
            await compare(at.store, plain(("2016-01-01", "m", 1, ""), ("2025-12-31", "m", 1, "")))


async def test_attempts_in_flight_are_counted_and_not_compared(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100})
        ledger = at.ledger("two")
        await ledger.start()
        await ledger.reserve(request_of("open", 100))
        await ledger.flush()
        found = await compare(at.store, plain((DAY_1, "model-1", usd(100), "")))
        await ledger.close()

        assert (found.num_in_flight, found.total.num_attempts, found.alerts) == (1, 1, ())


async def test_an_export_that_breaks_in_the_middle_books_nothing(tmp_path: Path) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        await settle(at, {"id": "a", "cost": 100, "is_estimated": True})
        with pytest.raises(ExportError, match="line 3"):
            await compare(at.store, plain((DAY_1, "model-1", 1, "a"), (DAY_1, "model-1", "x", "")))
        assert await num_corrections(at.store) == 0
        assert await audit_actions(at.store) == []


@pytest.mark.parametrize("has_ids", [True, False])
async def test_a_simulated_invoice_reconciles_to_nothing(tmp_path: Path, has_ids: bool) -> None:
    async with ledger_bench("sqlite", tmp_path) as at:
        unix_s = await at.clock.database_now(None)  # type: ignore[arg-type]  # it needs none
        await settle(
            at,
            {"id": "a", "cost": 100, "usage": Usage(input=60, output=20)},
            {"id": "b", "cost": 900, "is_estimated": True, "usage": Usage(input=9, output=400)},
            {"id": "c", "cost": 50, "is_estimated": True, "request_id": "nat_1:3"},
        )
        ids = {"a": 100, "b": 420, "nat_1:3": 80}
        lines = [
            InvoiceLine(
                id=f"gen-{idx}",
                client_request_id=name,
                surface="chat",
                model="model-1",
                at_s=5.0,
                ended="complete",
                input=nanos - 40,
                cached_read=0,
                cache_write_5m=0,
                cache_write_1h=0,
                output=20,
                reasoning=0,
                cost_nanos=nanos,
            )
            for idx, (name, nanos) in enumerate(ids.items())
        ]
        path = write_invoice(tmp_path / "invoice.csv", lines, has_ids=has_ids, shift_s=unix_s)
        found = await reconcile(at.store, open_export(path), provider="acme")

        assert found.total.drift_nanos == 0
        assert set(found.total.drift_tokens.values()) == {0}
        moved = await booked(at.store)
        assert sum(moved.values()) == 600 - 1_050
        if has_ids:
            assert moved == {"b": 420 - 900, "c": 80 - 50}
        assert await verify(at.store, None) == []
