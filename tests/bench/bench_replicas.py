"""Microseconds of one message between replicas: `python tests/bench/bench_replicas.py`.

News of 8 endpoints with 16 streams of 200 tokens each: taken, sealed, opened and learned from.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prometheus_client import CollectorRegistry

from gateway.app.replicas import NewsCarrier, Sealer
from gateway.fleet.sharing import SAMPLES_MAX, FleetNews
from gateway.measure.replicas import ReplicaMeter
from tests.support.fleet_world import Clock, make_fleet, streamed

NUM_ENDPOINTS = 8
ROUNDS = 200
PEPPER = b"p" * 32


class Kept:
    """In the place of Redis."""

    last = b""

    async def publish(self, channel: str, message: bytes) -> None:
        self.last = message


async def measure() -> dict[str, float]:
    clock, kept = Clock(), Kept()
    ids = [f"p{idx}/m" for idx in range(NUM_ENDPOINTS)]
    fleets = [make_fleet(*ids, clock=clock) for _ in range(2)]
    here, there = (
        NewsCarrier(
            fleet,
            kept,  # type: ignore[arg-type]  # publishes as Redis does
            pepper=PEPPER,
            meter=ReplicaMeter(name, CollectorRegistry(), clock=clock),
        )
        for name, fleet in zip("ab", fleets, strict=True)
    )
    told_s, quiet_s, opened_s, heard_s = [], [], [], []
    for _ in range(ROUNDS):
        clock.advance(1.0)
        for each in ids:
            for _ in range(SAMPLES_MAX):
                fleets[0].started(each)
                fleets[0].observe(streamed(clock(), endpoint_id=each))
        began_s = time.process_time()
        await here.tell()
        told_s.append(time.process_time() - began_s)
        busy = kept.last
        began_s = time.process_time()
        assert isinstance(Sealer(PEPPER).open(busy), FleetNews)
        opened_s.append(time.process_time() - began_s)
        began_s = time.process_time()
        await there.hear(busy)
        heard_s.append(time.process_time() - began_s)
        began_s = time.process_time()
        await here.tell()
        await there.hear(kept.last)
        quiet_s.append(time.process_time() - began_s)
    assert there.meter.num_heard == 2 * ROUNDS
    return {
        "publish": statistics.median(told_s),
        "open and decode (part of hear)": statistics.median(opened_s),
        "hear": statistics.median(heard_s),
        "publish and hear, nothing happened": statistics.median(quiet_s),
        "bytes": len(busy) / 1e6,
        "bytes, nothing happened": len(kept.last) / 1e6,
    }


def main() -> None:
    for name, found in asyncio.run(measure()).items():
        print(f"{name:36} {found * 1e6:10,.0f}{'' if 'bytes' in name else ' µs'}")


if __name__ == "__main__":
    main()
