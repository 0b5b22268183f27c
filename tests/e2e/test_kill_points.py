"""
kill −9 of a running gateway at five named points under load, and what the next start makes of it.

One gateway home lives through all five deaths: each restart books what the one before left.
"""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.gateway_process import RunningGateway, looprouter, start_gateway
from tests.support.gateway_world import (
    Client,
    budget,
    chat,
    in_threads,
    issue_key,
    problems_of,
    rows_of,
    wait_until,
)
from tests.support.simulator_process import SimulatorProcess, policy_over, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# point → at which pass the process dies; late enough that requests have been settled before.
DEATHS = {
    "before_hold": 240,
    "after_hold": 240,
    "after_sent": 240,
    "mid_stream": 100,
    "before_settle_commit": 40,  # of groups, which hold two requests or so
}
CLIENTS = 4
PROFILES = tuple(
    ProviderProfile(
        name=name,
        model="sim",
        seed=seed,
        price=SimulatedPrice(input=200_000, cached_read=200_000, output=600_000),
        ttft_base_s=0.01,
        tokens_per_s=600.0,
        prefill_tokens_per_s=1e6,
        answer_tokens_median=24,
        answer_sigma=0.3,
        bills_prompt_from="accepted",
    )
    for seed, name in enumerate(("left", "right"), 1)
)
PROMPT = "Weigh every word of this. " * 60


@dataclass
class World:
    home: Path
    key: str
    policy: str
    providers: dict[str, SimulatorProcess]
    answered: dict[str, str] = field(default_factory=dict)  # request id → provider's id
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def start(self, kill_at: str = "") -> RunningGateway:
        environ = {"LOOPROUTER_TEST_KILL_AT": kill_at} if kill_at else {}
        return start_gateway(self.policy, self.home, environ=environ, key=self.key)

    def attempts(self) -> list[dict[str, Any]]:
        return rows_of(self.home, "SELECT * FROM attempts")

    def invoice(self) -> list[dict[str, Any]]:
        return [line for each in self.providers.values() for line in each.invoice()["lines"]]

    def load_until_dead(self, gateway: RunningGateway) -> int:
        """CLIENTS that each ask again until the gateway is gone; how many were answered."""
        num_before = len(self.answered)
        in_threads(CLIENTS, lambda: self._one_client(Client(gateway.base_url, self.key)))
        return len(self.answered) - num_before

    def _one_client(self, client: Client) -> None:
        while True:
            number = next(self.numbers)
            try:
                answer = client.ask(chat(f"{number}: {PROMPT}", stream=number % 2 == 0))
            except (OSError, HTTPException):
                return
            assert answer.status == 200, answer.text
            headers = answer.headers
            self.answered[headers["x-looprouter-request-id"]] = headers["x-upstream-request-id"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("killed")
    with simulator_processes(PROFILES, home / "providers") as providers:
        policy = policy_over(providers, {"chat": tuple(providers)})
        key = issue_key(home, budgets=budget(1_000))
        yield World(home, key, policy, providers)


def test_no_kill_loses_an_attempt_or_settles_one_twice(world: World) -> None:
    for point, passes in DEATHS.items():
        gateway = world.start(f"{point}:{passes}")
        num_answered = world.load_until_dead(gateway)

        assert gateway.process.wait(20) == -signal.SIGKILL, gateway.log()[-2000:]
        assert num_answered > 50, point
    survivor = world.start()
    for provider in world.providers.values():
        wait_until(lambda p=provider: p.stats()["in_flight"] == 0, "the providers to be idle")  # type: ignore[misc]

    assert Client(survivor.base_url, world.key).ask(chat("Still there?")).status == 200
    assert survivor.stop() == 0
    assert problems_of(world.home) == []
    looprouter("ledger", "verify", home=world.home)
    check_attempts(world)
    check_money(world)


def check_attempts(world: World) -> None:
    rows = {row["attempt_id"]: row for row in world.attempts()}
    assert {row["state"] for row in rows.values()} <= {"settled", "released"}
    # Whatever a provider did work for is in the books, once.
    charged = Counter(line["client_request_id"] for line in world.invoice())
    assert set(charged) <= set(rows)
    assert max(charged.values()) == 1
    # Each client that got its whole answer has a settled attempt, at what the provider counted.
    by_request = {row["request_id"]: row for row in rows.values() if row["state"] == "settled"}
    lines = {line["id"]: line for line in world.invoice()}
    for request_id, upstream_id in world.answered.items():
        row, line = by_request[request_id], lines[upstream_id]
        if row["failure"] != "gateway_crashed":  # the answer was sent, its settlement not yet
            assert (row["cost_nanos"], row["is_estimated"]) == (line["cost_nanos"], 0)
    credits = Counter(
        row["txn_id"]
        for row in rows_of(world.home, "SELECT * FROM entries WHERE account LIKE 'provider:%'")
    )
    assert max(credits.values()) == 1
    assert set(credits) == {f"attempt:{name}" for name, row in rows.items() if row["cost_nanos"]}
    leased = rows_of(world.home, "SELECT sum(leased_nanos) AS nanos FROM budget_windows")
    assert leased == [{"nanos": 0}]


def check_money(world: World) -> None:
    """Billed against the providers' own invoices: within −0 / +1 %."""
    rows = world.attempts()
    crashed = [row for row in rows if row["failure"] == "gateway_crashed"]
    invoiced = sum(line["cost_nanos"] for line in world.invoice())
    billed = sum(row["billed_nanos"] for row in rows)
    assert 0 < len(crashed) <= CLIENTS * len(DEATHS)
    assert invoiced <= billed <= invoiced * 1.01
