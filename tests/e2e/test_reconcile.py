"""A gateway dies under load; reconciled with the provider's invoice, nothing is left over."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.simulator.meter import InvoiceLine
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.gateway_process import start_gateway
from tests.support.gateway_world import (
    Client,
    budget,
    chat,
    in_threads,
    issue_key,
    problems_of,
    rows_of,
    run_cli,
    wait_until,
)
from tests.support.invoices import write_invoice
from tests.support.simulator_process import SimulatorProcess, policy_over, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIENTS = 4
PROFILE = ProviderProfile(
    name="sole",
    model="sim",
    seed=3,
    price=SimulatedPrice(input=200_000, cached_read=20_000, output=600_000),
    ttft_base_s=0.01,
    tokens_per_s=600.0,
    prefill_tokens_per_s=1e6,
    answer_tokens_median=24,
    answer_sigma=0.3,
    bills_prompt_from="accepted",
)
PROMPT = "Weigh every word of this. " * 60


def load_until_dead(policy: str, home: Path, key: str, numbers: Iterator[int]) -> None:
    gateway = start_gateway(
        policy, home, environ={"LOOPROUTER_TEST_KILL_AT": "mid_stream:60"}, key=key
    )

    def one_client() -> None:
        client = Client(gateway.base_url, key)
        with suppress(OSError, HTTPException):
            while True:
                number = next(numbers)
                client.ask(chat(f"{number}: {PROMPT}", stream=number % 2 == 0))

    in_threads(CLIENTS, one_client)
    assert gateway.process.wait(20) == -signal.SIGKILL, gateway.log()[-2000:]
    survivor = start_gateway(policy, home, key=key)
    assert Client(survivor.base_url, key).ask(chat("Still there?")).status == 200
    assert survivor.stop() == 0


def invoice_of(provider: SimulatorProcess, home: Path, path: Path, *, has_ids: bool) -> Path:
    found = provider.invoice()["lines"]
    lines = msgspec.convert(found, list[InvoiceLine])
    (first,) = rows_of(home, "SELECT min(sent_at) AS at FROM attempts")
    shift_s = first["at"] - min(line.at_s for line in lines)  # its clock is not the day's
    return write_invoice(path, lines, has_ids=has_ids, shift_s=shift_s)


def reconcile(home: Path, path: Path, *more: str) -> dict[str, Any]:
    arguments = ("ledger", "reconcile", "--provider", PROFILE.name, "--export", str(path), *more)
    found: dict[str, Any] = run_cli(*arguments, home=home)
    return found


@pytest.mark.parametrize("has_ids", [True, False])
def test_what_a_crash_left_estimated_is_corrected_to_the_invoice(
    tmp_path: Path, has_ids: bool
) -> None:
    with simulator_processes((PROFILE,), tmp_path / "providers") as providers:
        provider = providers[PROFILE.name]
        key = issue_key(tmp_path, budgets=budget(1_000))
        load_until_dead(
            policy_over(providers, {"chat": tuple(providers)}), tmp_path, key, itertools.count()
        )
        wait_until(lambda: provider.stats()["in_flight"] == 0, "the provider to be idle")
        path = invoice_of(provider, tmp_path, tmp_path / "invoice.csv", has_ids=has_ids)
        invoiced = sum(line["cost_nanos"] for line in provider.invoice()["lines"])
    (estimated,) = rows_of(
        tmp_path, "SELECT count(*) AS num, sum(cost_nanos) AS cost FROM attempts WHERE is_estimated"
    )
    (before,) = rows_of(tmp_path, "SELECT sum(cost_nanos) AS cost FROM attempts")
    assert before["cost"] != invoiced

    found = reconcile(tmp_path, path)

    assert found["total"]["drift_usd"] == "0.00"
    assert 0 < found["corrected_attempts"] <= estimated["num"]
    (moved,) = rows_of(tmp_path, "SELECT sum(cost_nanos) AS cost FROM corrections")
    assert moved["cost"] == invoiced - before["cost"]
    assert problems_of(tmp_path) == []
    again = reconcile(tmp_path, path)
    assert (again["corrected_attempts"], again["total"]["drift_usd"]) == (0, "0.00")
    (spent,) = run_cli("ledger", "report", home=tmp_path)
    assert spent["cost_usd"] == found["total"]["theirs_usd"]
