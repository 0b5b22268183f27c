"""Policies, views and facts for tests of decisions, short to write and easy to vary."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from gateway.core import (
    Candidate,
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    Plan,
    RequestFacts,
)
from gateway.policy.decide import decide
from gateway.policy.explain import candidates_of, explain
from gateway.policy.load import load_policy
from gateway.policy.policy import Policy
from gateway.wire.pieces import Surface


def policy_of(
    *endpoints: str,
    routes: str = "[{name: all, prefer: {by: fastest}}]",
    more: str = "",
    environ: Mapping[str, str] | None = None,
    others: str = "",
) -> Policy:
    """Public model `m` over `a/x`, `b/x`, …: each endpoint is `name` or `name, yaml fields`."""
    names = [text.split(",")[0].strip() for text in endpoints]
    lines = ["version: 1", "providers:"]
    lines += [f"  {name}: {{base_url: 'https://{name}.example/v1'}}" for name in names]
    lines += ["models:", "  m:"]
    for name, text in zip(names, endpoints, strict=True):
        rest = text[len(name) :]
        price = "" if "price" in rest else ", price: {input: 1, output: 2}"
        lines.append(f"    - {{provider: {name}, model: x{rest}{price}}}")
    lines += [others, f"routes: {routes}", more]
    return load_policy("\n".join(lines).encode(), environ=environ)


def stats_of(
    endpoint_id: str, *, ttft_s: float = 0.5, rate: float = 50.0, **more: Any
) -> EndpointStats:
    fields: dict[str, Any] = {
        "ttft_base_s": 0.5,
        "prefill_tokens_per_s": 7_000.0,
        "ttft_mu": log(ttft_s),
        "ttft_sigma": 0.3,
        "ttft_n": 1_000_000.0,  # sure of itself: draws equal means, unless a test says otherwise
        "rate_mu": log(rate),
        "rate_sigma": 0.2,
        "rate_n": 1_000_000.0,
        "success_p": 1.0,
        "success_n": 100.0,
        "failure_lost_s": 2.0,
        "sample_age_s": 1.0,
    }
    fields.update(more)
    return EndpointStats(endpoint_id=endpoint_id, **fields)


def view_of(
    policy: Policy,
    stats: Mapping[str, Mapping[str, Any]] | None = None,
    live: Mapping[str, Mapping[str, Any]] | None = None,
    **more: Any,
) -> FleetView:
    """Stats and live state by provider: `view_of(policy, {"a": {"rate": 90}})`."""
    stats, live = stats or {}, live or {}
    providers = {eid: endpoint.provider for eid, endpoint in policy.endpoints.items()}
    snapshot = FleetSnapshot(
        id="snap-1",
        at_unix_s=1.0,
        stats={eid: stats_of(eid, **stats.get(name, {})) for eid, name in providers.items()},
        prices={eid: e.prices for eid, e in policy.endpoints.items()},
    )
    return FleetView(
        snapshot=snapshot,
        live={
            eid: EndpointLive(endpoint_id=eid, **live.get(name, {}))
            for eid, name in providers.items()
        },
        **more,
    )


def facts_of(**changes: Any) -> RequestFacts:
    fields: dict[str, Any] = {
        "request_id": "r",
        "surface": Surface.CHAT,
        "models": ("m",),
        "stream": True,
        "prompt_tokens": 100,
        **changes,
    }
    return RequestFacts(**fields)


@dataclass
class Decided:
    """A plan and, worked out as whoever explains it does, its candidates."""

    plan: Plan
    candidates: tuple[Candidate, ...]
    shown: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)


def decide_on(
    policy: Policy,
    view: FleetView,
    facts: RequestFacts | None = None,
    *,
    seed: int = 1,
    tried: tuple[str, ...] = (),
) -> Decided:
    facts = facts or facts_of()
    plan = decide(facts, view, policy, random.Random(seed), seed=seed, tried=tried)
    candidates = candidates_of(plan, facts, view, policy, tried=tried)
    return Decided(plan, candidates, explain(plan, facts, view, policy, tried=tried))


def order_of(plan: Decided) -> list[str]:
    """Provider names in the plan's order."""
    return [endpoint_id.partition("/")[0] for endpoint_id in plan.order]


def reason_of(plan: Decided, provider: str) -> str:
    return next(c.reason for c in plan.candidates if c.endpoint_id.startswith(f"{provider}/"))
