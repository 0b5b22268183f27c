"""`looprouter ledger reconcile`: a table for people, JSON for scripts, exit 1 on drift."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.cli.support import open_current_store
from gateway.core import Caller
from gateway.keys.service import create_key
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import NewKey
from gateway.settings import Settings
from tests.support.ledgers import DOLLAR, Bench, TurnedClock, add_budget
from tests.support.reconciling import DAY_1, num_corrections, plain, settle, usd

pytestmark = pytest.mark.slow

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`looprouter ledger reconcile ARGS…` of a ledger with two attempts: code, out, error."""
    monkeypatch.setenv("LOOPROUTER_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        async with open_current_store(Settings.from_environment()) as store:
            at = Bench(store, tmp_path, TurnedClock(), [])
            await add_budget(store, "b", DOLLAR)
            await settle(
                at,
                {"id": "exact", "cost": 1_000},
                {"id": "estimate", "cost": 100, "is_estimated": True},
            )

    asyncio.run(fill())
    (tmp_path / "good.csv").write_text(plain((DAY_1, "model-1", usd(1_500), "")))
    (tmp_path / "drifting.csv").write_text(
        plain((DAY_1, "model-1", usd(1_500), ""), (DAY_1, "model-2", usd(20), ""))
    )
    (tmp_path / "wrong.csv").write_text("colour,size\n1,2\n")

    def looprouter(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["looprouter", "ledger", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return looprouter


def corrections_in(home: Path) -> int:
    async def count() -> int:
        async with open_current_store(Settings.from_environment()) as store:
            return await num_corrections(store)

    return asyncio.run(count())


def test_a_table_and_what_was_booked(run: Run, tmp_path: Path) -> None:
    code, out, error = run("reconcile", "--provider", "acme", "--export", "good.csv")

    assert (code, error) == (0, "")
    assert out.splitlines() == [
        "DAY         MODEL    ATTEMPTS    THEIRS $   OURS $     CORRECTED $  DRIFT $  DRIFT  "
        "TOKENS THEIRS-OURS",
        "2023-11-14  model-1  2 (1 est.)  0.0000015  0.0000015  0.0000004    0.00     0 %    –",
        "all         total    2 (1 est.)  0.0000015  0.0000015  0.0000004    0.00     0 %    –",
        "Corrected 1 estimated attempt by $0.0000004.",
    ]
    assert corrections_in(tmp_path) == 1

    _, out, _ = run("reconcile", "--provider", "acme", "--export", "good.csv")
    assert "Nothing was booked: this file was reconciled before, at 20" in out
    assert corrections_in(tmp_path) == 1
    assert run("verify")[0] == 0


def test_drift_is_an_alarm_and_a_dry_run_books_nothing(run: Run, tmp_path: Path) -> None:
    code, out, error = run(
        "reconcile", "--provider", "acme", "--export", "drifting.csv", "--dry-run"
    )

    assert code == 1
    assert "dry run); it would correct 1 estimated attempt by $0.0000004" in out
    assert "+100.00% ✗" in out
    assert error.splitlines() == [
        "alert kind=reconcile_drift acme model-2 on 2023-11-14: $0.00000002 by their export, $0.00 "
        "by the ledger, $0.00000002 unexplained",
        "alert kind=reconcile_drift acme total: $0.00000152 by their export, $0.0000015 by the "
        "ledger, $0.00000002 unexplained",
    ]
    assert corrections_in(tmp_path) == 0


def test_json_has_every_figure(run: Run) -> None:
    code, out, _ = run("reconcile", "--provider", "acme", "--export", "drifting.csv", "--json")

    found = json.loads(out)
    assert code == 1
    assert (found["format"], found["rows"], found["corrected_attempts"]) == ("plain", 2, 1)
    assert [(day["model"], day["drift_usd"], day["is_alarm"]) for day in found["days"]] == [
        ("model-1", "0.00", False),
        ("model-2", "0.00000002", True),
    ]
    assert [alert["kind"] for alert in found["alerts"]] == ["reconcile_drift"] * 2


def test_models_can_be_named(run: Run) -> None:
    arguments = ("reconcile", "--provider", "acme", "--export", "drifting.csv", "--dry-run")
    assert run(*arguments, "--model", "model-2=model-1")[0] == 0
    code, _, error = run(*arguments, "--model", "model-2")
    assert code == 2
    assert "'model-2' is not THEIRS=OURS" in error


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--provider", "acme", "--export", "wrong.csv"), 3, "has the header of no export known"),
        (("--provider", "acne", "--export", "good.csv"), 3, "no attempts of a provider 'acne'"),
        (("--provider", "acme", "--export", "nosuch.csv"), 2, "does not exist"),
    ],
)
def test_what_cannot_be_read_is_told(
    run: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, _, error = run("reconcile", *arguments)

    assert found == code
    assert message in error


def test_a_report_by_key_has_the_keys_names(run: Run, tmp_path: Path) -> None:
    async def spend() -> str:
        settings = Settings.from_environment()
        async with open_current_store(settings) as store:
            tenant_id = await ensure_tenant(store, "default", "default", now=1.0)
            made = await create_key(
                store, settings.pepper(), tenant_id, NewKey(name="nightly"), now=1.0
            )
            caller = Caller(tenant_id=tenant_id, team_id="t", key_id=made.row.id)
            at = Bench(store, tmp_path, TurnedClock(), [])
            await settle(at, {"id": "named", "cost": 7, "caller": caller})
            return made.row.id

    key_id = asyncio.run(spend())
    code, out, _ = run("report", "--by", "key")
    rows = [line.split() for line in out.splitlines()]

    assert code == 0
    assert rows[0][:3] == ["KEY", "NAME", "ATTEMPTS"]
    assert [key_id, "nightly", "1"] in [row[:3] for row in rows]
    assert "–" in [row[1] for row in rows]  # of a key that is in no table
    assert run("report", "--by", "model")[1].split()[:2] == ["MODEL", "ATTEMPTS"]
