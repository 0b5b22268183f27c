"""Simulated providers in a process of their own, so that load on them is not load on the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.core import dollars_per_million
from gateway.simulator.profile import ProviderProfile

# Fast and without noise: tests that count requests have no use for thinking time.
BRISK: dict[str, Any] = {
    "ttft_base_s": 0.005,
    "ttft_sigma": 0.0,
    "rate_sigma": 0.0,
    "event_sigma": 0.0,
    "prefill_tokens_per_s": 1e9,
    "tokens_per_s": 20_000.0,
    "tokens_per_event": 4,
    "answer_tokens_median": 8,
    "answer_sigma": 0.1,
}


@dataclass(frozen=True, slots=True)
class SimulatorProcess:
    """One simulated provider as its neighbours see it: over HTTP."""

    profile: ProviderProfile
    base_url: str
    http: httpx.Client = field(repr=False)

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{self.root}/sim/stats").json()
        return found

    def invoice(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"{self.root}/sim/invoice").json()
        return found

    def control(self, **changes: Any) -> None:
        answer = self.http.post(f"{self.root}/sim/control", json=changes)
        assert answer.status_code == 200, answer.text


@contextmanager
def simulator_processes(
    profiles: Sequence[ProviderProfile], folder: Path
) -> Iterator[dict[str, SimulatorProcess]]:
    """All of `profiles` in one process, by name; it ends with this context, or with the test."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments: list[str] = []
    for profile in profiles:
        path = folder / f"{profile.name}.json"
        path.write_bytes(msgspec.json.encode(profile))
        arguments += ["--profile", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.simulator", "--with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None

    try:
        with httpx.Client(timeout=30) as http:
            running = {}
            for _ in profiles:
                line = process.stdout.readline()
                assert line, "the simulator ended at start"
                ready = json.loads(line)
                running[ready["name"]] = SimulatorProcess(
                    next(each for each in profiles if each.name == ready["name"]),
                    ready["base_url"],
                    http,
                )
            yield running
    finally:
        process.stdin.close()
        process.wait(10)


def policy_over(
    providers: Mapping[str, SimulatorProcess],
    models: Mapping[str, Sequence[str]],
    *,
    anthropic: Sequence[str] = (),
    key_envs: Mapping[str, str] | None = None,
    more: str = "",
) -> str:
    """A policy of these providers at their own prices; `models`: public name → provider names."""
    lines = ["version: 1", "providers:"]
    for name, provider in providers.items():
        api = "anthropic" if name in anthropic else "openai"
        secret = f", key_env: {key_envs[name]}" if key_envs and name in key_envs else ""
        lines.append(
            f'  {name}: {{api: {api}, base_url: "{provider.base_url}", network: private, '
            f"simulated: true{secret}}}"
        )
    lines.append("models:")
    for model, names in models.items():
        lines.append(f"  {model}:")
        for name in names:
            profile = providers[name].profile
            lines.append(
                f"    - {{provider: {name}, model: {profile.model}, canonical: simulated, "
                f"context: {profile.context_tokens_max}, max_output: {profile.output_tokens_max}, "
                f"price: {{input: {dollars_per_million(profile.price.input)}, "
                f"cached_read: {dollars_per_million(profile.price.cached_read)}, "
                f"output: {dollars_per_million(profile.price.output)}}}}}"
            )
    return "\n".join(lines) + "\n" + more
