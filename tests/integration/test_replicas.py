"""Two serving processes on one PostgreSQL and Redis: what one measures, the other believes."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.simulator.profile import ProviderProfile
from tests.support.gateway_process import RunningGateway, start_gateway
from tests.support.gateway_world import Client, chat, issue_key, status_of, wait_until
from tests.support.postgres_database import scratch_database
from tests.support.redis_server import OwnRedis, own_redis
from tests.support.simulator_process import (
    BRISK,
    SimulatorProcess,
    policy_over,
    simulator_processes,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]

NUM_ANSWERS = 6
PROFILES = tuple(
    ProviderProfile(**{**BRISK, "name": name, "model": "sim"}) for name in ("left", "right")
)


@dataclass
class Two:
    gateways: list[RunningGateway]
    providers: dict[str, SimulatorProcess]
    redis: OwnRedis

    def ask(self, front: int, model: str, num: int = 1) -> list[int]:
        gateway = self.gateways[front]
        client = Client(gateway.base_url, gateway.key)
        statuses = [client.ask(chat("Hello", model=model)).status for _ in range(num)]
        client.close()
        return statuses

    def status(self, front: int) -> dict[str, Any]:
        return status_of(self.gateways[front].base_url)

    def replicas(self, front: int) -> dict[str, Any]:
        found: dict[str, Any] = self.status(front)["replicas"]
        return found

    def measured(self, front: int, provider: str) -> dict[str, Any]:
        endpoints = {each["id"]: each for each in self.status(front)["endpoints"]}
        found: dict[str, Any] = endpoints[f"{provider}/sim"]
        return found

    def num_samples(self, front: int, provider: str) -> int:
        return int(self.measured(front, provider)["measured"]["n"])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("replicas")
    with ExitStack() as stack:
        redis = stack.enter_context(own_redis(folder))
        environ = {
            "LOOPROUTER_PEPPER": secrets.token_urlsafe(32),
            "LOOPROUTER_DATABASE_URL": stack.enter_context(scratch_database()),
            "LOOPROUTER_REDIS_URL": redis.url,
            "LOOPROUTER_REPLICAS": "2",
        }
        providers = stack.enter_context(simulator_processes(PROFILES, folder / "providers"))
        # The second has a policy of its own: other names, another order, the same addresses.
        models: list[dict[str, tuple[str, ...]]] = [
            {"chat": ("left", "right"), "one": ("left",), "other": ("right",)},
            {"talk": ("right", "left"), "left-alone": ("left",)},
        ]
        key = issue_key(folder / "front-0", environ)
        gateways = []
        for number, of in enumerate(models):
            home: Path = folder / f"front-{number}"
            gateway = start_gateway(policy_over(providers, of), home, environ=environ, key=key)
            stack.callback(gateway.stop)
            gateways.append(gateway)
        yield Two(gateways, providers, redis)
        for gateway in gateways:
            assert gateway.stop() == 0, gateway.log()[-3000:]
            for unwanted in ("Traceback", "unexpected error", "by our own bug", "task ended"):
                assert unwanted not in gateway.log(), gateway.log()[-6000:]


def test_what_one_measured_the_other_believes(two: Two) -> None:
    for front in (0, 1):
        wait_until(lambda f=front: two.replicas(f)["heard_of"] == 1, "the other")  # type: ignore[misc]
    assert two.replicas(1)["others"][0]["name"] == two.replicas(0)["name"]
    before = [two.num_samples(1, name) for name in ("left", "right")]
    own, asked = two.num_samples(0, "left"), two.status(1)["requests_total"]

    assert set(two.ask(0, "one", NUM_ANSWERS)) == {200}
    took_s = wait_until(
        lambda: two.num_samples(1, "left") == before[0] + NUM_ANSWERS, "the news of left"
    )

    assert took_s < 5.0  # 1.2 s are promised; this machine may be busy
    assert two.num_samples(1, "right") == before[1]
    assert two.status(1)["requests_total"] == asked
    assert two.num_samples(0, "left") == own + NUM_ANSWERS  # none of it came back
    told = httpx.get(f"{two.gateways[1].base_url}/metrics").text
    figures = dict(
        line.rsplit(" ", 1) for line in told.splitlines() if line.startswith("gateway_replica")
    )
    assert float(figures["gateway_replicas_heard"]) == 1
    assert float(figures["gateway_replica_messages_heard_total"]) >= 2
    assert float(figures["gateway_replica_heard_age_seconds"]) < 5.0


def test_a_dead_provider_is_shut_where_nobody_has_tried_it(two: Two) -> None:
    two.providers["right"].control(faults=[{"mode": "error", "status": 500}])
    try:
        asked = two.status(1)["requests_total"]
        two.ask(0, "other", 4)
        wait_until(lambda: two.measured(1, "right")["breaker"] == "open", "the other's breaker")
        assert two.status(1)["requests_total"] == asked
    finally:
        two.providers["right"].control(faults=[])


def test_without_redis_both_serve_on_and_find_each_other_again(two: Two) -> None:
    two.redis.kill()
    for front in (0, 1):
        wait_until(
            lambda f=front: not (two.replicas(f)["is_hearing"] or two.replicas(f)["is_telling"]),  # type: ignore[misc]
            "the loss",
        )
    assert set(two.ask(0, "one", 3)) == {200}
    assert set(two.ask(1, "left-alone", 3)) == {200}
    two.redis.start()
    for front in (0, 1):
        wait_until(
            lambda f=front: two.replicas(f)["is_hearing"] and two.replicas(f)["is_telling"],  # type: ignore[misc]
            "Redis",
        )
    before = two.num_samples(0, "left")
    two.ask(1, "left-alone", 3)
    wait_until(lambda: two.num_samples(0, "left") == before + 3, "the news of left")
    lost = two.gateways[0].log().count("replicas are not told, going on alone")
    assert lost == 1  # however long it lasted


def test_a_silent_replica_is_forgotten_and_heard_again(two: Two) -> None:
    process = two.gateways[0].process
    wait_until(lambda: two.replicas(1)["heard_of"] == 1, "the other")
    process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: two.replicas(1)["heard_of"] == 0, "the other to be forgotten")
    finally:
        process.send_signal(signal.SIGCONT)
    wait_until(lambda: two.replicas(1)["heard_of"] == 1, "the other again")
