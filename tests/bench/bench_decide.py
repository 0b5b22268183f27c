"""Times one decision over 8 endpoints: `python tests/bench/bench_decide.py` prints microseconds.

First `decide` alone on one view, then what the gateway does for each request of a fleet at work:
candidates, view, seed and plan, with other requests beginning and ending in between. `all in all`
is the mean, in which the snapshots of every second and what is worked out for them have their part.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path

import msgspec

from gateway.core import (
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    ProviderPreferences,
    RequestFacts,
)
from gateway.fleet.fleet import Fleet
from gateway.pipeline import candidate_ids
from gateway.policy.decide import decide
from gateway.policy.load import load_policy
from gateway.stats.seeded import Seeded
from gateway.wire.pieces import Surface

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.fleet_world import Clock, make_fleet, streamed

NUM_ENDPOINTS = 8
ROUNDS = 20_000
ROUNDS_AT_WORK = 2_000
REQUESTS_PER_S = 200.0


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
            sample_age_s=1.0,
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


def fleet_at_work(policy) -> tuple[Fleet, Clock]:  # type: ignore[no-untyped-def]
    """Every endpoint measured, a few requests in flight at each, credits to explore with."""
    clock = Clock()
    fleet = make_fleet(*policy.endpoints, clock=clock)
    rng = random.Random(7)
    for number in range(400):
        endpoint_id = f"p{number % NUM_ENDPOINTS}/m"
        clock.advance(0.2)
        fleet.started(endpoint_id)
        rate = rng.uniform(40, 200)
        fleet.observe(streamed(clock(), endpoint_id=endpoint_id, rate=rate, model="chat"))
        fleet.accrue_credit()
    for endpoint_id in policy.endpoints:
        for _ in range(3):
            fleet.started(endpoint_id)
    return fleet, clock


def decisions_us(policy, asked, *, does_learn: bool) -> tuple[float, float, float]:  # type: ignore[no-untyped-def]
    """
    (least and middle of five medians, least of five means), in µs.

    `does_learn`: an outcome is learned from between two decisions. Its time is not counted, but it
    leaves the processor's caches and branch tables to the next decision, as a gateway's work does.
    """
    medians, means = [], []
    for _ in range(5):
        fleet, clock = fleet_at_work(policy)
        seeds = random.Random(2)
        times = []
        for number in range(ROUNDS_AT_WORK):
            facts = asked[number % len(asked)]
            clock.advance(1.0 / REQUESTS_PER_S)
            begin = time.perf_counter_ns()
            seed = seeds.getrandbits(53)
            view = fleet.view(facts, candidate_ids(policy, facts))
            plan = decide(facts, view, policy, Seeded(seed), seed=seed)
            times.append(time.perf_counter_ns() - begin)
            let_go = fleet.promise(plan.order[0])
            fleet.started(plan.order[0])
            let_go()
            fleet.accrue_credit(facts)
            if not does_learn:
                fleet.abandoned(plan.order[0])
                continue
            key = facts.affinity_key
            fleet.observe(
                streamed(clock(), endpoint_id=plan.order[0], affinity_key=key, model="chat")
            )
        medians.append(statistics.median(times) / 1_000)
        means.append(statistics.fmean(times) / 1_000)
    return min(medians), statistics.median(medians), min(means)


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
        print(
            f"decide, {name:10s} p50 {p50:6.1f} µs, p10 {p10:6.1f} µs for {NUM_ENDPOINTS} endpoints"
        )
    rng = random.Random(5)
    fresh = [msgspec.structs.replace(plain, affinity_key=f"{rng.getrandbits(128):032x}")
             for _ in range(ROUNDS_AT_WORK)]  # fmt: skip
    for name, asked in (
        ("no long prompt", [plain]),
        ("a prompt seen before", fresh[:50]),
        ("a prompt never seen", fresh),
    ):
        for does_learn in (False, True):
            best, median, mean = decisions_us(policy, asked, does_learn=does_learn)
            between = "learning between" if does_learn else ""
            print(
                f"view and decide, {name:21s} {between:16s} p50 {best:5.1f} µs at best of five, "
                f"{median:5.1f} in the middle; all in all {mean:5.1f}"
            )


if __name__ == "__main__":
    main()
