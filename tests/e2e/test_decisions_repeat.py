"""Every request row repeats its decision exactly, from SQL alone: facts, view, policy and seed."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.core import FleetSnapshot
from gateway.measure.recorder import in_brief
from gateway.policy.decide import decide
from gateway.policy.load import Policy, load_policy
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile, SimulatedPrice
from gateway.stats.seeded import Seeded
from gateway.store.engine import Store
from gateway.store.policies import find_policy
from gateway.store.requests import RequestRow, find_snapshot, list_requests, view_of
from tests.support.gateway_process import RunningGateway, start_gateway
from tests.support.gateway_world import (
    Client,
    chat,
    in_store,
    in_threads,
    issue_key,
    settings_of,
    status_of,
    wait_until,
)
from tests.support.simulator_process import BRISK, policy_over, simulator_processes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_REQUESTS = 1_100
CLIENTS = 12
LONG = "Every turn of this conversation begins with the same words. " * 80
PROFILES = (
    ProviderProfile(
        **{**BRISK, "name": "dear", "model": "sim", "tokens_per_s": 4_000.0, "ttft_sigma": 0.2},
        price=SimulatedPrice(input=3_000_000, cached_read=300_000, output=15_000_000),
    ),
    ProviderProfile(
        **{**BRISK, "name": "cheap", "model": "sim", "tokens_per_s": 900.0, "ttft_sigma": 0.2},
        price=SimulatedPrice(input=100_000, cached_read=50_000, output=400_000),
    ),
    ProviderProfile(
        **{**BRISK, "name": "flaky", "model": "sim", "ttft_sigma": 0.3},
        price=SimulatedPrice(input=500_000, cached_read=250_000, output=1_500_000),
        faults=(Fault(mode=FaultMode.ERROR, status=503, share=0.1),),
    ),
    ProviderProfile(
        **{**BRISK, "name": "other", "model": "sim", "tokens_per_s": 2_500.0},
        price=SimulatedPrice(input=900_000, cached_read=90_000, output=2_000_000),
    ),
)
ROUTES = """
routes:
  - {name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 30s}}
  - {name: tagged, match: {tags: [careful]}, prefer: {by: fastest, price_max: {output: 4}}}
  - {name: interactive, match: {stream: true}, prefer: {by: fastest}}
  - {name: rest, prefer: {by: balanced, usd_per_second: 0.0005}}
"""
# What the policy is edited to half way: other routes, another share of exploration.
EDITED = """
routes:
  - {name: all, prefer: {by: balanced, usd_per_second: 0.01}}
exploration: {share: 0.2}
"""


@dataclass
class Books:
    """The request log, and what its rows refer to."""

    rows: list[RequestRow] = field(default_factory=list)
    snapshots: dict[str, FleetSnapshot] = field(default_factory=dict)
    policies: dict[str, Policy] = field(default_factory=dict)

    @property
    def decided(self) -> list[RequestRow]:
        return [row for row in self.rows if row.candidates]


def asked(number: int, rng: random.Random) -> tuple[dict[str, Any], dict[str, str]]:
    """(body, headers) of one request: every kind of wish that a decision listens to."""
    body = chat(f"{number}", max_tokens=rng.choice((2, 4, 8)), stream=rng.random() < 0.5)
    headers: dict[str, str] = {}
    match number % 11:
        case 0:
            body["model"] = "chat:nitro"
        case 1:
            body["model"] = "chat:floor"
        case 2:
            headers["x-looprouter-lane"] = "batch"
        case 3:
            headers["x-looprouter-tags"] = "careful,nightly"
        case 4:
            body["provider"] = {"order": ["other", "cheap"], "allow_fallbacks": rng.random() < 0.5}
        case 5:
            body["provider"] = {"sort": rng.choice(("price", "throughput", "latency"))}
        case 6:
            body["provider"] = {
                "ignore": ["flaky"],
                "max_price": {"prompt": 1, "completion": 3},
                "preferred_min_throughput": {"p50": 1_000},
            }
        case 7:
            body |= {"model": "no-such-model", "models": ["chat", "pair"]}
        case 8:
            headers["x-session-id"] = f"session-{rng.randrange(6)}"
        case 9:
            body["messages"].insert(0, {"role": "system", "content": LONG + str(rng.randrange(3))})
        case _:
            pass
    return body, headers


def ask_many(gateway: RunningGateway, numbers: Iterator[int], until: int) -> Counter[int]:
    turn = threading.Lock()

    def one_client() -> Counter[int]:
        client, statuses = Client(gateway.base_url, gateway.key), Counter[int]()
        number = 0
        while number < until:
            with turn:
                number = next(numbers)
            statuses[client.ask(*asked(number, random.Random(number))).status] += 1
        client.close()
        return statuses

    return sum(in_threads(CLIENTS, one_client), Counter())


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """What a gateway wrote down of more than a thousand requests, its policy edited half way."""
    home = tmp_path_factory.mktemp("repeated")
    with simulator_processes(PROFILES, home / "providers") as providers:
        models = {"chat": tuple(providers), "pair": ("cheap", "other")}
        key = issue_key(home)
        running = start_gateway(policy_over(providers, models, more=ROUTES), home, key=key)
        numbers = itertools.count()
        try:
            statuses = ask_many(running, numbers, NUM_REQUESTS // 2)
            version = status_of(running.base_url)["policy_version"]
            (home / "policy.yaml").write_text(policy_over(providers, models, more=EDITED))
            wait_until(
                lambda: status_of(running.base_url)["policy_version"] != version, "the new policy"
            )
            statuses += ask_many(running, numbers, NUM_REQUESTS)
        finally:
            assert running.stop() == 0, running.log()[-3000:]
    assert set(statuses) <= {200, 502, 503}, statuses
    assert statuses[200] >= 0.97 * NUM_REQUESTS
    read: Books = in_store(settings_of(home), read_back)
    return read


async def read_back(store: Store) -> Books:
    books = Books()
    async with store.read() as connection:
        tenants = await connection.exec_driver_sql("SELECT DISTINCT tenant_id FROM requests")
        (tenant_id,) = tenants.scalars()
        before: tuple[float, str] | None = None
        while page := await list_requests(connection, tenant_id, limit=1_000, before=before):
            books.rows += page
            before = (page[-1].created_at, page[-1].id)
        for snapshot_id in {row.snapshot_id for row in books.decided}:
            found = await find_snapshot(connection, snapshot_id)
            assert found is not None
            books.snapshots[snapshot_id] = found
        for version in {row.policy_version for row in books.decided}:
            kept = await find_policy(connection, version)
            assert kept is not None
            books.policies[version] = load_policy(kept.text.encode(), environ={}, source="SQL")
    return books


def test_each_of_a_thousand_rows_repeats_its_decision(books: Books) -> None:
    assert len(books.rows) >= NUM_REQUESTS
    assert len(books.decided) >= 1_000
    assert len(books.policies) == 2
    seen: Counter[str] = Counter()
    for row in books.decided:
        assert row.facts is not None
        plan = decide(
            row.facts,
            view_of(row, books.snapshots[row.snapshot_id]),
            books.policies[row.policy_version],
            Seeded(row.seed),
            seed=row.seed,
        )
        assert in_brief(plan) == row.candidates, row.id
        assert (plan.model, plan.route, plan.preference) == (row.model, row.route, row.preference)
        assert (plan.policy_version, plan.snapshot_id) == (row.policy_version, row.snapshot_id)
        seen[plan.preference] += 1
        seen["explored"] += plan.explored
        seen["affinity"] += plan.why.startswith("affinity")
        seen[f"first:{plan.order[0]}"] += 1
    # The sample says something only if it is varied.
    assert {"fastest", "balanced", "cheapest", "price", "throughput", "latency"} <= set(seen)
    assert min(seen["explored"], seen["affinity"]) > 0
    assert len([name for name in seen if name.startswith("first:")]) == len(PROFILES)


def test_no_seed_is_used_twice(books: Books) -> None:
    seeds = [row.seed for row in books.decided]

    assert len(set(seeds)) == len(seeds)


def test_all_requests_of_a_second_share_one_snapshot(books: Books) -> None:
    stamps = sorted(snapshot.at_unix_s for snapshot in books.snapshots.values())
    num_early = sum(after - before < 0.9 for before, after in itertools.pairwise(stamps))

    assert num_early <= 1  # the new policy's first one comes at once
    assert len(stamps) <= 2 + stamps[-1] - stamps[0]
