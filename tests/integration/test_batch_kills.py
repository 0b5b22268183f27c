"""A batch over three lanes whose gateway is killed again and again: no line lost, none paid twice.

LOOPROUTER_TEST_BATCH_LINES=5000 is the full size, with a kill every 30 s.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.simulator.meter import InvoiceLine
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.batch_books import (
    assert_each_once,
    compared,
    lines_of,
    question_lines,
)
from tests.support.batch_world import ENDED, joined_lines
from tests.support.gateway_process import RunningGateway, start_gateway
from tests.support.gateway_world import issue_key, problems_of, rows_of, run_cli
from tests.support.invoices import write_invoice
from tests.support.simulator_process import SimulatorProcess, policy_over, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_200)]

NUM_LINES = int(os.environ.get("LOOPROUTER_TEST_BATCH_LINES", "1000"))
KILL_EVERY_S = 30.0 if NUM_LINES >= 5_000 else 8.0
WHOLE_S_MAX = 600.0
# By what share the estimates of killed attempts may be too high, and more where kills are nearer.
ABOVE_MAX = 0.01 if NUM_LINES >= 5_000 else 0.03
STEADY: dict[str, Any] = {
    "ttft_base_s": 0.3,
    "ttft_sigma": 0.1,
    "rate_sigma": 0.05,
    "event_sigma": 0.1,
    "tokens_per_s": 60.0,
    "answer_tokens_median": 60,  # what max_tokens 16 cuts
}
PROFILES = (
    ProviderProfile(
        name="left", model="sim", price=SimulatedPrice(input=137_000, output=593_000), **STEADY
    ),
    ProviderProfile(
        name="right", model="sim", price=SimulatedPrice(input=211_000, output=487_000), **STEADY
    ),
    ProviderProfile(
        name="has-batch",
        model="sim",
        price=SimulatedPrice(input=333_333, output=777_777),
        batch=BatchProfile(turnaround_median_s=20.0, turnaround_sigma=0.3),
        **STEADY,
    ),
)
MODELS = {"by-left": ("left",), "by-right": ("right",), "by-batch": ("has-batch",)}


def with_batch_api(policy: str) -> str:
    return "".join(
        line.replace("simulated: true", "simulated: true, quirks: [native_batch]")
        if line.startswith("  has-batch: ")
        else line
        for line in policy.splitlines(keepends=True)
    )


def killed_and_back(gateway: RunningGateway, policy: str) -> RunningGateway:
    gateway.process.send_signal(signal.SIGKILL)
    gateway.process.wait(10)
    return start_gateway(policy, gateway.home, key=gateway.key, port=gateway.port)


def test_every_line_comes_once_and_is_paid_as_invoiced_through_kills(tmp_path: Path) -> None:
    home = tmp_path / "state"
    with simulator_processes(PROFILES, tmp_path / "providers") as providers:
        policy = with_batch_api(policy_over(providers, MODELS))
        home.mkdir()
        gateway = start_gateway(policy, home, key=issue_key(home))
        try:
            with httpx.Client(base_url=gateway.v1, headers=gateway.headers, timeout=60.0) as client:
                began_s = time.monotonic()
                batch_id = make_batch(client)
                num_kills = 0
                while True:
                    batch = watch(client, batch_id, KILL_EVERY_S)
                    if batch["status"] in ENDED:
                        break
                    gateway = killed_and_back(gateway, policy)
                    num_kills += 1
                    assert time.monotonic() - began_s < WHOLE_S_MAX, batch["looprouter"]["lines"]
                took_s = time.monotonic() - began_s
                assert batch["status"] == "completed"
                assert batch["looprouter"]["lines"] == {"succeeded": NUM_LINES}
                assert_each_once(lines_of(client, batch), NUM_LINES)
            assert gateway.stop() == 0, gateway.log()[-4_000:]
        finally:
            gateway.stop()
        # A start books what a killed gateway left; the last one ended in order.
        assert problems_of(home) == []
        books = compared(
            rows_of(home, "SELECT * FROM attempts"),
            rows_of(home, "SELECT * FROM corrections"),
            [line for each in providers.values() for line in each.invoice()["lines"]],
        )
        print(
            f"\n{NUM_LINES} lines, {num_kills} kills, {took_s:.1f} s; {books.num_exact} exact and "
            f"{books.num_estimated} estimated attempts; books {books.above:+.3%} of the invoices"
        )
        assert num_kills > 0
        assert books.num_exact >= NUM_LINES - books.num_estimated
        assert 0.0 <= books.above <= ABOVE_MAX
        assert {name: drift_usd(home, each) for name, each in providers.items()} == dict.fromkeys(
            providers, "0.00"
        )
        assert problems_of(home) == []


def drift_usd(home: Path, provider: SimulatorProcess) -> str:
    """What is left between the books and a provider's invoice once they are reconciled."""
    name = provider.profile.name
    lines = msgspec.convert(provider.invoice()["lines"], list[InvoiceLine])
    (first,) = rows_of(home, f"SELECT min(sent_at) AS at FROM attempts WHERE provider = '{name}'")
    shift_s = first["at"] - min(line.at_s for line in lines)  # its clock is not the day's
    path = write_invoice(home / f"{name}.csv", lines, shift_s=shift_s)
    found = run_cli("ledger", "reconcile", "--provider", name, "--export", str(path), home=home)
    return str(found["total"]["drift_usd"])


def make_batch(client: httpx.Client) -> str:
    data = joined_lines(question_lines(NUM_LINES, tuple(MODELS)))
    answer = client.post("/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"})
    assert answer.status_code == 200, answer.text
    wanted = {"input_file_id": answer.json()["id"], "completion_window": "24h"}
    made = client.post("/batches", json=wanted)
    assert made.status_code == 200, made.text
    lanes = {each["lane"] for each in made.json()["looprouter"]["plan"]["lanes"]}
    assert lanes == {"left/sim#standard", "right/sim#standard", "has-batch/sim#native"}
    return str(made.json()["id"])


def watch(client: httpx.Client, batch_id: str, for_s: float) -> dict[str, Any]:
    """The batch once it has ended, or after so long."""
    began_s = time.monotonic()
    while True:
        answer = client.get(f"/batches/{batch_id}")
        assert answer.status_code == 200, answer.text
        batch: dict[str, Any] = answer.json()
        if batch["status"] in ENDED or time.monotonic() - began_s >= for_s:
            return batch
        time.sleep(0.25)
