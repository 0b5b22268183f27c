"""F10: when every upstream fails half of the time, retries stay a fifth of the requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.relay.retry_budget import FLOOR, SHARE, WINDOW_S
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.open_loop import Kind, Sent, closed_loop
from tests.support.simulator_process import (
    BRISK,
    SimulatorProcess,
    policy_over,
    simulator_processes,
)

pytestmark = pytest.mark.e2e

# So many that no breaker opens: it would end the storm before the budget has to.
NAMES = tuple(f"shaky{idx}" for idx in range(24))
REQUESTS = 150
CLIENTS = 8
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
STORMY = "retry: {max: 2, budget: 1.0, floor: 1000}\n"


@dataclass(frozen=True, slots=True)
class World:
    gateway: RunningGateway
    providers: Mapping[str, SimulatorProcess]

    def num_attempts(self) -> int:
        return sum(int(each.stats()["requests_seen"]) for each in self.providers.values())

    def ask(self, key: str, num: int) -> list[Sent]:
        kind = Kind("plain", 0.0, BODY, {"authorization": f"Bearer {key}"})
        url = f"{self.gateway.v1}/chat/completions"
        # `until` is asked before each request, so what is under way may go a little beyond.
        return asyncio.run(
            closed_loop(url, kind, CLIENTS, until=lambda done, _: done >= num - CLIENTS + 1)
        )


@contextmanager
def failing(share: float, home: Path, policy: str = "") -> Iterator[World]:
    fault = Fault(mode=FaultMode.ERROR, share=share, status=500)
    profiles = [
        ProviderProfile(name=name, model="m", seed=idx + 1, faults=(fault,), **BRISK)
        for idx, name in enumerate(NAMES)
    ]
    with (
        simulator_processes(profiles, home / "simulator") as providers,
        running_gateway(policy_over(providers, {"chat": NAMES}, more=policy), home) as gateway,
    ):
        yield World(gateway, providers)


def allowed(num_requests: int, took_s: float) -> float:
    """1.2 attempts a request and the floor; the floor is there anew in every window."""
    return num_requests * (1.0 + SHARE) + FLOOR * (1 + took_s // WINDOW_S)


def test_f10_attempts_stay_within_the_retry_budget_of_all_and_of_each_tenant(
    tmp_path: Path,
) -> None:
    with failing(0.5, tmp_path) as world:
        other = world.gateway.create_key("--tenant", "calm", "--team", "calm")
        began_s = time.monotonic()
        sent = world.ask(world.gateway.key, REQUESTS)
        num_attempts = world.num_attempts()
        took_s = time.monotonic() - began_s
        more = world.ask(other, CLIENTS)
        num_more = world.num_attempts() - num_attempts

    assert len(sent) < num_attempts <= allowed(len(sent), took_s)
    assert num_more <= allowed(len(more), 0.0)
    assert {one.status for one in sent} == {200, 502}
    for one in sent:
        # The SDKs' own retries would be the next storm.
        assert one.headers is not None
        assert one.status == 200 or one.headers["x-should-retry"] == "false"


def test_f10_total_outage_is_met_with_no_more(tmp_path: Path) -> None:
    with failing(1.0, tmp_path) as world:
        began_s = time.monotonic()
        sent = world.ask(world.gateway.key, REQUESTS)
        num_attempts = world.num_attempts()

    assert num_attempts <= allowed(len(sent), time.monotonic() - began_s)
    assert {one.status for one in sent} <= {502, 503}


def test_f10_without_a_budget_the_same_outage_is_a_storm(tmp_path: Path) -> None:
    """What the tests above would show if the budget did not hold."""
    with failing(0.5, tmp_path, STORMY) as world:
        began_s = time.monotonic()
        sent = world.ask(world.gateway.key, REQUESTS)

        assert world.num_attempts() > allowed(len(sent), time.monotonic() - began_s)
