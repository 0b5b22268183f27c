"""Six simulated providers behind one gateway: a pair that differs, twins, a shaky pair."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.gateway_process import RunningGateway, start_gateway
from tests.support.gateway_world import Answered, Client, chat, in_threads, issue_key, status_of
from tests.support.simulator_process import BRISK, SimulatorProcess, simulator_processes

EVEN: dict[str, Any] = {**BRISK, "tokens_per_event": 2, "prefill_tokens_per_s": 50_000.0}
PRICES = {
    "quick": SimulatedPrice(input=3_000_000, cached_read=300_000, output=15_000_000),
    "cheap": SimulatedPrice(input=100_000, cached_read=50_000, output=400_000),
}
PROFILES = (
    ProviderProfile(**{**EVEN, "name": "quick", "tokens_per_s": 300.0}, price=PRICES["quick"]),
    ProviderProfile(**{**EVEN, "name": "cheap", "tokens_per_s": 80.0}, price=PRICES["cheap"]),
    ProviderProfile(**{**EVEN, "name": "twin-a"}),
    ProviderProfile(**{**EVEN, "name": "twin-b"}),
    ProviderProfile(**{**EVEN, "name": "shaky", "ttft_base_s": 0.002}),
    ProviderProfile(**{**EVEN, "name": "steady", "ttft_base_s": 0.2, "tokens_per_s": 100.0}),
)
POOLS = {"chat": ("quick", "cheap"), "twins": ("twin-a", "twin-b"), "risky": ("shaky", "steady")}
# What a policy may say of an endpoint, and a wish may ask for.
SAID = {
    "quick": "stores_data: true",
    "cheap": "stores_data: false, zero_retention: true",
}
CAN = {
    "quick": "parameters: [temperature, seed], capabilities: [text, tools, json_schema]",
    "cheap": "parameters: [temperature], capabilities: [text], context: 4000",
}
ROUTES = """
routes:
  - {name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 1h}}
  - {name: cheap-only, match: {tags: [frugal]}, prefer: {by: fastest, price_max: {input: 1}}}
  - {name: interactive, match: {stream: true}, prefer: {by: fastest}}
  - {name: rest, prefer: {by: balanced, usd_per_second: 0.0005}}
exploration: {share: 0}
"""


def policy(providers: dict[str, SimulatorProcess]) -> str:
    lines = ["version: 1", "providers:"]
    for name, provider in providers.items():
        said = f", {SAID[name]}" if name in SAID else ""
        lines.append(
            f'  {name}: {{api: openai, base_url: "{provider.base_url}", network: private, '
            f"simulated: true{said}}}"
        )
    lines.append("models:")
    for model, names in POOLS.items():
        lines.append(f"  {model}:")
        for name in names:
            price = providers[name].profile.price
            amounts = ", ".join(
                f"{bucket}: {getattr(price, bucket) / 1e6}"
                for bucket in ("input", "cached_read", "output")
            )
            can = f", {CAN[name]}" if name in CAN else ""
            lines.append(
                f"    - {{provider: {name}, model: simulated-model, canonical: sim, "
                f"price: {{{amounts}}}{can}}}"
            )
    return "\n".join(lines) + ROUTES


@dataclass
class World:
    gateway: RunningGateway
    providers: dict[str, SimulatorProcess]

    def ask(self, body: dict[str, Any], **headers: str) -> Answered:
        client = Client(self.gateway.base_url, self.gateway.key)
        try:
            return client.ask(
                body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
        finally:
            client.close()

    def plan(self, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """The decision alone; nothing is sent."""
        answer = self.ask(body, x_looprouter_explain="only", **headers)
        assert answer.status == 200, answer.text
        return dict(answer.json)

    def row(self, endpoint: str) -> dict[str, Any]:
        rows = status_of(self.gateway.base_url)["endpoints"]
        (found,) = [row for row in rows if row["id"].startswith(endpoint + "/")]
        return dict(found)


def provider_of(answer: Answered) -> str:
    return answer.headers["x-looprouter-endpoint"].partition("/")[0]


def order_of(plan: dict[str, Any]) -> list[str]:
    return [each.partition("/")[0] for each in plan["order"]]


@contextmanager
def routing_world(home: Path) -> Iterator[World]:
    """Measured once, so that speeds are known."""
    with simulator_processes(PROFILES, home / "providers") as providers:
        gateway = start_gateway(policy(providers), home, key=issue_key(home))
        built = World(gateway, providers)
        numbers = itertools.count()

        def measure() -> None:
            """Streams long enough to show a decode rate, at each of the two endpoints of chat."""
            for _ in range(3):
                name, tokens = ("quick", 180) if next(numbers) % 2 else ("cheap", 60)
                body = chat(f"[[sim tokens={tokens}]]", stream=True, provider={"only": [name]})
                assert built.ask(body).status == 200

        try:
            in_threads(4, measure)
            yield built
        finally:
            assert gateway.stop() == 0, gateway.log()[-3000:]
