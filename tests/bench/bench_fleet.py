"""Microseconds of the fleet's calls on the request path: `python tests/bench/bench_fleet.py`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.fleet_world import Clock, facts, failed, make_fleet, streamed, whole

NUM_ENDPOINTS = 8
NUM_CALLS = 20_000


def microseconds(call: Callable[[], object], num_calls: int = NUM_CALLS) -> float:
    """Best mean of five runs, in processor time, so that a busy machine tells the same."""
    best_s = float("inf")
    for _ in range(5):
        began_s = time.process_time()
        for _ in range(num_calls // 5):
            call()
        best_s = min(best_s, time.process_time() - began_s)
    return best_s / (num_calls // 5) * 1e6


def main() -> None:
    clock = Clock()
    ids = [f"p{idx}/m" for idx in range(NUM_ENDPOINTS)]
    fleet = make_fleet(*ids, clock=clock)
    rng = random.Random(7)
    keys = [f"{rng.getrandbits(256):064x}" for _ in range(64)]
    for idx in range(400):
        clock.advance(0.2)
        endpoint_id = ids[idx % NUM_ENDPOINTS]
        fleet.started(endpoint_id)
        fleet.observe(streamed(clock(), endpoint_id=endpoint_id, rate=rng.uniform(40, 200)))
    plain, fresh, known = facts(), facts(affinity_key=keys[0]), facts(affinity_key=keys[1])
    fleet.started(ids[0])
    fleet.observe(streamed(clock(), endpoint_id=ids[0], affinity_key=keys[1]))
    outcomes = {
        "stream of 200 tokens": streamed(clock(), endpoint_id=ids[1]),
        "stream of 2,000 tokens": streamed(clock(), endpoint_id=ids[1], tokens=2_000),
        "whole answer": whole(clock(), seconds=2.0, tokens=200, endpoint_id=ids[2]),
        "429": failed(clock(), "rate_limited", endpoint_id=ids[3]),
    }

    rows = [
        ("view, 8 endpoints", microseconds(lambda: fleet.view(plain, ids))),
        ("view, new prefix (rendezvous)", microseconds(lambda: fleet.view(fresh, ids))),
        ("view, known prefix", microseconds(lambda: fleet.view(known, ids))),
        (
            "started + abandoned",
            microseconds(lambda: (fleet.started(ids[0]), fleet.abandoned(ids[0]))),
        ),
        ("ttft_timeout_s", microseconds(lambda: fleet.ttft_timeout_s(ids[0], plain))),
    ]
    for name, outcome in outcomes.items():
        rows.append((f"observe, {name}", microseconds(lambda o=outcome: fleet.observe(o), 5_000)))

    def rebuild() -> None:
        clock.advance(1.0)
        fleet.snapshot()

    rows.append(("snapshot rebuilt (once a second)", microseconds(rebuild, 500)))
    for name, cost_us in rows:
        print(f"{name:36s} {cost_us:9.2f} µs")


if __name__ == "__main__":
    main()
