"""Times one decision over 8 endpoints: `python tests/bench/bench_decide.py` prints microseconds."""

from __future__ import annotations

import random
import statistics
import time

import msgspec

from gateway.core import (
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    ProviderPreferences,
    RequestFacts,
)
from gateway.policy.decide import decide
from gateway.policy.load import load_policy
from gateway.wire.pieces import Surface

NUM_ENDPOINTS = 8
ROUNDS = 20_000


def policy_text() -> bytes:
    lines = ["version: 1", "providers:"]
    lines += [f"  p{i}: {{base_url: 'https://p{i}.example/v1'}}" for i in range(NUM_ENDPOINTS)]
    lines += ["models:", "  chat:"]
    lines += [
        f"    - {{provider: p{i}, model: m, price: {{input: {i + 1}, output: {2 * i + 1}}}}}"
        for i in range(NUM_ENDPOINTS)
    ]
    lines.append("routes: [{name: all, prefer: {by: balanced}}]")
    return "\n".join(lines).encode()


def view_of(policy) -> FleetView:  # type: ignore[no-untyped-def]
    rng = random.Random(7)
    stats = {
        eid: EndpointStats(
            endpoint_id=eid,
            ttft_base_s=0.4,
            prefill_tokens_per_s=7_000.0,
            ttft_mu=rng.uniform(-1.5, 0.0),
            ttft_sigma=0.4,
            ttft_n=20.0,
            rate_mu=rng.uniform(3.5, 5.0),
            rate_sigma=0.3,
            rate_n=20.0,
            success_p=0.99,
            success_n=30.0,
            failure_lost_s=3.0,
        )
        for eid in policy.endpoints
    }
    live = {eid: EndpointLive(endpoint_id=eid, in_flight=3) for eid in policy.endpoints}
    prices = {eid: endpoint.prices for eid, endpoint in policy.endpoints.items()}
    snapshot = FleetSnapshot(id="s", at_unix_s=0.0, stats=stats, prices=prices)
    return FleetView(snapshot=snapshot, live=live, exploration_credits=5.0)


def timed_us(facts: RequestFacts, view: FleetView, policy) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    rng = random.Random(1)
    times = []
    for seed in range(ROUNDS):
        begin = time.perf_counter_ns()
        decide(facts, view, policy, rng, seed=seed)
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1_000, statistics.quantiles(times, n=100)[9] / 1_000


def main() -> None:
    policy = load_policy(policy_text(), environ=None)
    view = view_of(policy)
    plain = RequestFacts(
        request_id="r", surface=Surface.CHAT, models=("chat",), stream=True, prompt_tokens=1_000
    )
    sticky = msgspec.structs.replace(plain, affinity_key="ab" * 16)
    picky = msgspec.structs.replace(
        plain,
        preferences=ProviderPreferences(sort="price", max_price=(("prompt", 6.0),), ignore=("p0",)),
    )
    for name, facts in (("draws", plain), ("affinity", sticky), ("sorted", picky)):
        p50, p10 = timed_us(facts, view, policy)
        print(f"{name:10s} p50 {p50:6.1f} µs, p10 {p10:6.1f} µs for {NUM_ENDPOINTS} endpoints")


if __name__ == "__main__":
    main()
