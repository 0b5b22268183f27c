"""What the replay stands on: arrivals from the public trace, and five providers that misbehave."""

from __future__ import annotations

import csv
import datetime
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from gateway.simulator.profile import Fault, FaultMode, ProviderProfile, SimulatedPrice, changed
from tests.support.gateway_process import free_port

ROOT = Path(__file__).resolve().parents[2]
CONTEXT_TOKENS_MAX = 16_000


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path, *, start_minute: float, minutes: float, speed: float) -> list[Arrival]:
    """Arrivals of a slice, times divided by `speed`."""
    arrivals: list[Arrival] = []
    first: datetime.datetime | None = None
    with path.open() as handle:
        for row in csv.DictReader(handle):
            moment = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or moment
            offset_s = (moment - first).total_seconds() - start_minute * 60
            if 0 <= offset_s < minutes * 60:
                arrivals.append(
                    Arrival(
                        offset_s / speed,
                        min(int(row["ContextTokens"]), CONTEXT_TOKENS_MAX),
                        max(1, int(row["GeneratedTokens"])),
                    )
                )
    return arrivals


def synthetic_trace(*, minutes: float, speed: float, seed: int = 1) -> list[Arrival]:
    """The trace's own statistics, for a machine that does not have it: 5.4 requests a second."""
    rng = random.Random(seed)
    arrivals: list[Arrival] = []
    at_s = 0.0
    while at_s < minutes * 60:
        at_s += rng.expovariate(5.4)
        prompt = min(CONTEXT_TOKENS_MAX, int(rng.lognormvariate(6.9, 0.9)))
        arrivals.append(Arrival(at_s / speed, prompt, int(rng.lognormvariate(4.86, 0.9)) + 1))
    return arrivals


def price(input_usd: float, output_usd: float) -> SimulatedPrice:
    """Dollars per million tokens; cached input at half."""
    return SimulatedPrice(
        input=round(input_usd * 1e6),
        cached_read=round(input_usd * 5e5),
        cache_write_5m=round(input_usd * 1.25e6),
        cache_write_1h=round(input_usd * 2e6),
        output=round(output_usd * 1e6),
    )


def dead_from_s(length_s: float) -> float:
    """When the provider `dies` stops answering for good."""
    return length_s * 0.4


def profiles(length_s: float) -> tuple[ProviderProfile, ...]:
    """Five providers; `length_s` is the replay's wall time, which the fault windows scale with."""
    base = ProviderProfile(name="x", model="replay-model", tokens_per_event=4)
    fast = {
        "name": "fast",
        "seed": 11,
        "ttft_base_s": 0.2,
        "tokens_per_s": 170.0,
        "drift_sigma": 0.25,
        "drift_period_s": 120.0,
        "price": price(1.0, 3.0),
    }
    dies = {
        "name": "dies",
        "seed": 12,
        "ttft_base_s": 0.15,
        "tokens_per_s": 190.0,
        "price": price(0.9, 2.8),
        "faults": [Fault(mode=FaultMode.DEAD, starts_s=dead_from_s(length_s))],
    }
    limited = {
        "name": "limited",
        "seed": 13,
        "ttft_base_s": 0.1,
        "tokens_per_s": 220.0,
        "requests_per_minute": 240,
        "requests_burst": 8,
        "price": price(0.8, 2.0),
    }
    flaky = {
        "name": "flaky",
        "seed": 14,
        "ttft_base_s": 0.3,
        "tokens_per_s": 130.0,
        "drift_sigma": 0.35,
        "drift_period_s": 60.0,
        "price": price(0.4, 1.2),
        # Counts as it goes, so that a stream cut in the middle is billed exactly.
        "usage_every_event": True,
        "faults": [
            Fault(mode=FaultMode.ERROR, status=503, share=0.05),
            Fault(mode=FaultMode.HTML_200, share=0.01),
            Fault(mode=FaultMode.CUT_MID_STREAM, share=0.01, after_tokens=24),
        ],
    }
    slow = {
        "name": "slow",
        "seed": 15,
        "ttft_base_s": 0.6,
        "tokens_per_s": 60.0,
        "drift_sigma": 0.1,
        "price": price(0.1, 0.3),
    }
    return tuple(changed(base, each) for each in (fast, dies, limited, flaky, slow))


def start_providers(
    found: tuple[ProviderProfile, ...], folder: Path
) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    """One process for all simulated providers, so that they do not share the gateway's core."""
    ports = {each.name: free_port() for each in found}
    command = [sys.executable, "-m", "gateway.simulator", "--with-parent"]
    for each in found:
        path = folder / f"{each.name}.json"
        path.write_bytes(msgspec.json.encode(each))
        command += ["--profile", str(path), "--port", str(ports[each.name])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    for _ in found:
        process.stdout.readline()
    return process, ports


def fetch(port: int, path: str, body: object = None) -> dict[str, object]:
    url = f"http://127.0.0.1:{port}{path}"
    answer = httpx.get(url, timeout=30) if body is None else httpx.post(url, json=body, timeout=30)
    answer.raise_for_status()
    return dict(answer.json())
