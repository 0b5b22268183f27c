"""A real gateway in front of simulated providers of both dialects, and the sums at its end."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from gateway.cli.support import open_current_store
from gateway.core import dollars_per_million
from gateway.keys import service
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import Budget, NewKey
from gateway.settings import Settings
from gateway.simulator.meter import InvoiceLine
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile, SimulatedPrice
from tests.support.gateway_process import RunningGateway, looprouter, start_gateway
from tests.support.recording_providers import Providers

WAIT_S = 20.0
# One red pixel.
IMAGE_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
BUCKETS = ("input", "cached_read", "cache_write_5m", "cache_write_1h", "output", "reasoning")
_BRISK: dict[str, Any] = {
    "ttft_base_s": 0.02,
    "ttft_sigma": 0.0,
    "rate_sigma": 0.0,
    "event_sigma": 0.0,
    "tokens_per_s": 2_000.0,
    "tokens_per_event": 3,
    "answer_tokens_median": 60,
    "reasoning_tokens": 24,
}
SLOW: dict[str, object] = {"tokens_per_s": 20.0, "tokens_per_event": 1}
# One provider a dialect that answers, one a dialect that is slow enough to be left, one that fails.
PROFILES = (
    ProviderProfile(
        name="openai-sim",
        model="gpt-sim",
        api_key="sk-upstream-openai",
        price=SimulatedPrice(input=137_000, cached_read=68_500, output=593_000),
        **_BRISK,
    ),
    ProviderProfile(
        name="anthropic-sim",
        model="claude-sim",
        api_key="sk-upstream-anthropic",
        price=SimulatedPrice(
            input=311_000,
            cached_read=31_100,
            cache_write_5m=388_750,
            cache_write_1h=622_000,
            output=1_507_000,
        ),
        **_BRISK,
    ),
    ProviderProfile(name="slow-openai", model="slow-gpt", **{**_BRISK, **SLOW}),
    ProviderProfile(name="slow-anthropic", model="slow-claude", **{**_BRISK, **SLOW}),
    ProviderProfile(
        name="broken-sim", model="broken-gpt", faults=(Fault(mode=FaultMode.ERROR, status=500),)
    ),
)
DIALECTS = {"anthropic-sim": "anthropic", "slow-anthropic": "anthropic"}
# Public models; "pair" begins at the endpoint that fails where a request orders it so.
MODELS = {
    "gpt": ("openai-sim",),
    "claude": ("anthropic-sim",),
    "slow-gpt": ("slow-openai",),
    "slow-claude": ("slow-anthropic",),
    "broken": ("broken-sim",),
    "pair": ("broken-sim", "openai-sim"),
}
# Answers of these are left half way, so what they cost is an estimate.
ESTIMATED = frozenset({"slow-openai", "slow-anthropic"})
KEYS = {
    "main": NewKey(name="main"),
    "scoped": NewKey(name="scoped", models=("gpt",), routes=("chat", "messages")),
    "limited": NewKey(name="limited", requests_per_minute=60, tokens_per_minute=100_000),
    # Spent by one test for a minute, so each SDK has its own.
    "one-a-minute-openai": NewKey(requests_per_minute=1),
    "one-a-minute-anthropic": NewKey(requests_per_minute=1),
    "one-a-minute-node": NewKey(requests_per_minute=1),
    "one-at-a-time": NewKey(name="one-at-a-time", concurrency_max=1),
    "poor": NewKey(name="poor", budgets=(Budget(limit_nanos=1),)),
}


@dataclass(slots=True)
class SdkWorld:
    """What a test of an SDK works with."""

    gateway: RunningGateway
    providers: Providers
    keys: Mapping[str, str]
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30))

    def record(self, request_id: str, key: str = "main") -> dict[str, Any]:
        """GET /v1/requests/{id}, as soon as the request has been recorded."""
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            answer = self.http.get(f"{self.gateway.v1}/requests/{request_id}", headers=headers)
            assert answer.status_code in (200, 404), answer.text
            if answer.status_code == 200:
                found.append(answer.json())
            return bool(found)

        wait_until(is_there, f"the record of request {request_id}")
        return found[0]

    def line(self, upstream_id: str) -> InvoiceLine:
        """The line of one answer on whichever provider's invoice has it."""
        found: list[InvoiceLine] = []

        def is_there() -> bool:
            found[:] = [
                line
                for provider in self.providers.by_name.values()
                for line in provider.invoice()
                if line.id == upstream_id
            ]
            return bool(found)

        wait_until(is_there, f"an invoice line {upstream_id}")
        assert len(found) == 1

        return found[0]

    def check_paid(self, headers: Mapping[str, str], *, model: str, surface: str) -> dict[str, Any]:
        """The record says what the headers say, and costs to the nano what the provider bills."""
        record = self.record(headers["x-looprouter-request-id"])
        line = self.line(headers["x-upstream-request-id"])
        assert record["status"] == 200
        assert record["model"] == model
        assert record["surface"] == surface
        assert record["endpoint_id"] == headers["x-looprouter-endpoint"]
        assert record["num_attempts"] == int(headers["x-looprouter-attempts"]) == 1
        assert record["is_estimated"] is False
        usage = {name: record["usage"].get(name, 0) for name in BUCKETS}
        assert usage == {name: getattr(line, name) for name in BUCKETS}
        assert nanos(record["provider_cost"]) == nanos(record["cost"]) == line.cost_nanos
        assert line.cost_nanos > 0
        if "x-looprouter-cost" in headers:
            assert nanos(headers["x-looprouter-cost"]) == line.cost_nanos
        assert float(headers["x-looprouter-overhead-ms"]) > 0
        return record

    def record_of(self, line: InvoiceLine) -> dict[str, Any]:
        """The record of the request behind a line, for one whose answer never told its id."""
        found: dict[str, dict[str, Any]] = {}

        def is_booked() -> bool:
            found.update(booked_attempts(self.gateway.home))
            return line.client_request_id in found

        wait_until(is_booked, f"attempt {line.client_request_id} in the ledger")
        return self.record(found[line.client_request_id]["request_id"])

    def num_answered(self, surface: str) -> int:
        """Requests to one surface that the gateway has answered, once none is running."""
        wait_until(lambda: self._metric("gateway_requests_in_flight") == 0, "an idle gateway")
        return int(self._metric(f'gateway_requests_total{{.*surface="{surface}".*}}'))

    def _metric(self, pattern: str) -> float:
        text = self.http.get(f"{self.gateway.base_url}/metrics").text
        return sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", text, re.M))

    @contextmanager
    def exactly_one_request(self, surface: str) -> Iterator[None]:
        """Fails unless the gateway got one request within: an SDK that tried again sends more."""
        before = self.num_answered(surface)
        yield
        assert self.num_answered(surface) == before + 1

    @staticmethod
    def provider_of(model: str) -> str:
        """The provider behind a public model that has one endpoint."""
        (name,) = MODELS[model]
        return name

    def upstream_model(self, model: str) -> str:
        return next(each.model for each in PROFILES if each.name == self.provider_of(model))

    def last_received(self, provider: str) -> Any:
        """The JSON of the last request one provider was sent."""
        return self.providers[provider].received[-1].json


def teach_token_lengths(world: SdkWorld) -> None:
    """Let the gateway learn from whole answers how many characters slow providers' tokens have."""
    for model in ("slow-gpt", "slow-claude"):
        provider = world.providers[world.provider_of(model)]
        provider.control(tokens_per_s=50_000.0, tokens_per_event=50)
        headers = [_asked(world, model, "hi [[sim tokens=1500]]").headers for _ in range(4)]
        provider.control(**SLOW)
        seen = world.record(headers[-1]["x-looprouter-request-id"])["snapshot_id"]
        # A decision reads a snapshot of what was learned, which is made anew once a second.
        wait_until(
            lambda m=model, old=seen: (
                _asked(world, m, "hi", explain="only").json()["snapshot_id"]  # type: ignore[misc]
                != old
            ),
            "a newer snapshot",
        )


def _asked(world: SdkWorld, model: str, text: str, *, explain: str = "") -> httpx.Response:
    return world.http.post(
        f"{world.gateway.v1}/chat/completions",
        json={"model": model, "messages": [{"role": "user", "content": text}]},
        headers={**world.gateway.headers, "x-looprouter-explain": explain},
    )


def nanos(dollars: str | float) -> int:
    """Exact; a fraction of a nano-dollar is an error."""
    amount = Decimal(str(dollars)) * 1_000_000_000
    assert amount == amount.to_integral_value(), dollars

    return int(amount)


def wait_until(holds: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> float:
    """Seconds until the condition held; fails the test when it does not in time."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < wait_s, f"waited {wait_s} s for {what}"
        time.sleep(0.01)
    return time.monotonic() - began_s


def policy_yaml(providers: Providers) -> str:
    """Every provider with its price to the pico, every public model over them."""
    lines = ["version: 1", "providers:"]
    for profile in PROFILES:
        api = DIALECTS.get(profile.name, "openai")
        secret = f", key_env: {key_env(profile)}" if profile.api_key else ""
        base_url = providers[profile.name].base_url
        lines.append(
            f'  {profile.name}: {{api: {api}, base_url: "{base_url}", network: private, '
            f"simulated: true{secret}}}"
        )
    lines.append("models:")
    by_name = {profile.name: profile for profile in PROFILES}
    for model, names in MODELS.items():
        lines.append(f"  {model}:")
        lines += [f"    - {endpoint_yaml(by_name[name])}" for name in names]
    return "\n".join(lines) + "\n"


def endpoint_yaml(profile: ProviderProfile) -> str:
    prices = ", ".join(
        f"{name}: {dollars_per_million(getattr(profile.price, name))}"
        for name in ("input", "cached_read", "cache_write_5m", "cache_write_1h", "output")
    )
    return (
        f"{{provider: {profile.name}, model: {profile.model}, canonical: sim, "
        f"context: {profile.context_tokens_max}, max_output: {profile.output_tokens_max}, "
        f"price: {{{prices}}}}}"
    )


def key_env(profile: ProviderProfile) -> str:
    return f"{profile.name.replace('-', '_').upper()}_KEY"


async def issue_keys(home: Path) -> dict[str, str]:
    """The text of every key of KEYS, made as the CLI makes them."""
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(home)})
    async with open_current_store(settings) as store:
        tenant_id = await ensure_tenant(store, "default", "default", now=time.time())
        pepper, issued = settings.pepper(), {}
        for name, wanted in KEYS.items():
            made = await service.create_key(store, pepper, tenant_id, wanted, now=time.time())
            issued[name] = made.key
        return issued


@contextmanager
def sdk_world(home: Path) -> Iterator[SdkWorld]:
    """The providers, the gateway and its keys; at the end it must stop in order and balance."""
    providers = Providers()
    providers.start(PROFILES)
    environ = {key_env(profile): profile.api_key for profile in PROFILES if profile.api_key}
    try:
        keys = asyncio.run(issue_keys(home))
        gateway = start_gateway(policy_yaml(providers), home, environ=environ, key=keys["main"])
        world = SdkWorld(gateway, providers, keys)
        try:
            yield world
            # uvicorn may end by the signal it was stopped with, once everything is closed.
            assert gateway.stop() in (0, -signal.SIGTERM), gateway.log()[-4000:]
            check_log(gateway)
            looprouter("ledger", "verify", home=home)
        finally:
            world.http.close()
            gateway.stop()
    finally:
        providers.stop()


def check_log(gateway: RunningGateway) -> None:
    """The gateway met nothing that it did not expect."""
    for unwanted in ("unexpected error", "Traceback", "by our own bug", "is locked"):
        assert unwanted not in gateway.log(), gateway.log()[-8000:]


def check_books(world: SdkWorld) -> None:
    """Once nothing runs, the ledger balances, and equals every invoice line by line."""
    home, providers = world.gateway.home, world.providers.by_name.values()
    for provider in providers:
        wait_until(lambda p=provider: p.stats()["in_flight"] == 0, f"{provider.name} to be idle")  # type: ignore[misc]
    world.num_answered("")  # waits for an idle gateway
    lines = {line.client_request_id: line for each in providers for line in each.invoice()}
    attempts: dict[str, dict[str, Any]] = {}

    def is_booked() -> bool:
        attempts.update(booked_attempts(home))
        are_settled = {each["state"] for each in attempts.values()} <= {"settled", "released"}
        return are_settled and lines.keys() <= attempts.keys()

    wait_until(is_booked, "every attempt to be booked")
    looprouter("ledger", "verify", home=home)
    check_log(world.gateway)
    for attempt_id, line in lines.items():
        if not attempts[attempt_id]["is_estimated"]:
            assert attempts[attempt_id]["cost_nanos"] == line.cost_nanos, line
    for provider in providers:
        if provider.name in ESTIMATED:
            continue  # the tests of clients that leave compare each of these
        booked = [each for each in attempts.values() if each["provider"] == provider.name]
        assert not any(each["is_estimated"] for each in booked)
        assert sum(each["cost_nanos"] for each in booked) == provider.stats()["billed_nanos"]


def booked_attempts(home: Path) -> dict[str, dict[str, Any]]:
    """Every attempt in the ledger's table, by its id, which the provider was told as well."""
    columns = ("attempt_id", "request_id", "provider", "state", "cost_nanos", "is_estimated")
    with closing(sqlite3.connect(f"file:{home}/looprouter.db?mode=ro", uri=True)) as database:
        rows = database.execute(f"SELECT {', '.join(columns)} FROM attempts").fetchall()
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
