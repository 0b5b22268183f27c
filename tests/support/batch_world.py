"""A real gateway with its batch lane, before simulated providers some of which have batch APIs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.cli.support import open_current_store
from gateway.core import dollars_per_million
from gateway.keys import service
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import NewKey
from gateway.settings import Settings
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.gateway_process import RunningGateway, looprouter, start_gateway
from tests.support.gateway_world import rows_of
from tests.support.recording_providers import Providers

ENDED = ("completed", "failed", "expired", "cancelled")
END_S_MAX = 120.0
_BRISK: dict[str, Any] = {
    "ttft_base_s": 0.02,
    "ttft_sigma": 0.0,
    "rate_sigma": 0.0,
    "event_sigma": 0.0,
    "tokens_per_s": 2_000.0,
    "answer_tokens_median": 12,
}
_QUICK = BatchProfile(turnaround_median_s=1.0, turnaround_sigma=0.1)
PROFILES = (
    ProviderProfile(
        name="at-once",
        model="gpt-sim",
        price=SimulatedPrice(input=137_000, output=593_000),
        **_BRISK,
    ),
    ProviderProfile(
        name="has-batch",
        model="native-sim",
        price=SimulatedPrice(input=200_000, output=800_000),
        batch=_QUICK,
        **_BRISK,
    ),
    ProviderProfile(
        name="claude-batch",
        model="claude-sim",
        price=SimulatedPrice(input=300_000, output=1_500_000),
        batch=_QUICK,
        **_BRISK,
    ),
    ProviderProfile(
        name="slow-one",
        model="slow-sim",
        price=SimulatedPrice(input=100_000, output=400_000),
        **{**_BRISK, "tokens_per_s": 4.0, "answer_tokens_median": 60},
    ),
)
MODELS = {"gpt": "at-once", "native": "has-batch", "claude": "claude-batch", "slow": "slow-one"}
APIS = {"claude-batch": "anthropic"}


class HasStatus(Protocol):
    @property
    def status(self) -> str: ...


T = TypeVar("T", bound=HasStatus)


@dataclass(slots=True)
class BatchWorld:
    """What a test of the batch lane works with."""

    gateway: RunningGateway
    providers: Providers
    key: str
    strangers_key: str
    policy: str
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        return self.gateway.base_url

    @property
    def v1(self) -> str:
        return self.gateway.v1

    def stored_objects(self) -> int:
        """Files and their indexes in the storage."""
        folder = self.gateway.home / "files"
        return sum(each.is_file() for each in folder.rglob("*"))

    def restart(self) -> None:
        """The same gateway again, on its port and with its home."""
        self.gateway = start_gateway(
            self.policy,
            self.gateway.home,
            environ=self.environ,
            key=self.key,
            port=self.gateway.port,
        )

    def check_paid(self, *, may_be_estimated: bool = False) -> None:
        """Every settled attempt costs what its invoice line says; the ledger balances."""
        looprouter("ledger", "verify", home=self.gateway.home)
        lines = {
            line.client_request_id: line
            for provider in self.providers.by_name.values()
            for line in provider.invoice()
        }
        attempts = rows_of(self.gateway.home, "SELECT * FROM attempts")
        corrected = {
            row["attempt_id"]: row["cost"]
            for row in rows_of(
                self.gateway.home,
                "SELECT attempt_id, SUM(cost_nanos) AS cost FROM corrections GROUP BY attempt_id",
            )
        }
        assert attempts or not lines  # where all was refused, nobody was asked for anything
        for row in attempts:
            if row["state"] != "settled" or row["failure"] == "client_gone":
                continue
            billed = row["cost_nanos"] + corrected.get(row["attempt_id"], 0)
            line = next(
                (lines[each] for each in invoice_ids(row["attempt_id"]) if each in lines), None
            )
            if row["is_estimated"] and row["attempt_id"] not in corrected:
                assert may_be_estimated, row
                continue
            assert line is not None, row
            assert billed == line.cost_nanos, (row, line)


def invoice_ids(attempt_id: str) -> tuple[str, ...]:
    """As a provider's invoice may name an attempt: a native line goes by its custom_id."""
    if not attempt_id.startswith("att_nb_"):
        return (attempt_id,)
    native_id, _, line_no = attempt_id.removeprefix("att_").rpartition("_")
    return f"{native_id}:{line_no}", f"{native_id}-{line_no}"  # Anthropic takes no colon


def chat_line(custom_id: str, model: str, text: str, **fields: Any) -> dict[str, Any]:
    body = {
        "model": model,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": text}],
        **fields,
    }
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def joined_lines(lines: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def wait_for_end(look: Callable[[], T], *, wait_s: float = END_S_MAX) -> T:
    """The batch once it has ended; fails the test when it does not in time."""
    began_s = time.monotonic()
    while (found := look()).status not in ENDED:
        assert time.monotonic() - began_s < wait_s, found
        time.sleep(0.1)
    return found


def policy_yaml(providers: Providers) -> str:
    lines = ["version: 1", "providers:"]
    for profile in PROFILES:
        quirks = ", quirks: [native_batch]" if profile.batch is not None else ""
        lines.append(
            f"  {profile.name}: {{api: {APIS.get(profile.name, 'openai')}, network: private, "
            f'base_url: "{providers[profile.name].base_url}", simulated: true{quirks}}}'
        )
    lines.append("models:")
    by_name = {profile.name: profile for profile in PROFILES}
    for model, name in MODELS.items():
        profile = by_name[name]
        prices = ", ".join(
            f"{bucket}: {dollars_per_million(getattr(profile.price, bucket))}"
            for bucket in ("input", "cached_read", "output")
        )
        lines += [
            f"  {model}:",
            f"    - {{provider: {name}, model: {profile.model}, canonical: sim, "
            f"context: {profile.context_tokens_max}, price: {{{prices}}}}}",
        ]
    return "\n".join(lines) + "\n"


async def _issue_keys(home: Path) -> list[str]:
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(home)})
    async with open_current_store(settings) as store:
        now, keys = time.time(), []
        for tenant in ("default", "strangers"):
            tenant_id = await ensure_tenant(store, tenant, "default", now=now)
            wanted = NewKey(name=tenant)
            made = await service.create_key(store, settings.pepper(), tenant_id, wanted, now=now)
            keys.append(made.key)
        return keys


@contextmanager
def batch_world(home: Path, environ: Mapping[str, str] | None = None) -> Iterator[BatchWorld]:
    """Providers, gateway and two tenants' keys; the gateway must stop in order at the end."""
    providers = Providers()
    providers.start(PROFILES)
    try:
        key, strangers_key = asyncio.run(_issue_keys(home))
        policy = policy_yaml(providers)
        gateway = start_gateway(policy, home, environ=environ, key=key)
        world = BatchWorld(gateway, providers, key, strangers_key, policy, dict(environ or {}))
        try:
            yield world
        finally:
            world.gateway.stop()
        log = world.gateway.log()
        for unwanted in ("unexpected error", "Traceback", "own fault", "has stopped"):
            assert unwanted not in log, log[-8000:]
    finally:
        providers.stop()
