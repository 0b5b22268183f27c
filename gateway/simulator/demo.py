"""The three simulated providers of `looprouter up --demo`, and the policy that routes to them."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core import dollars_per_million
from gateway.simulator.profile import Fault, FaultMode, ProviderProfile, SimulatedPrice

DEMO_MODEL = "simulated-chat"
DEMO_SEED = 7
CAPABILITIES = (
    "text",
    "tools",
    "parallel_tool_calls",
    "json_object",
    "json_schema",
    "vision",
    "reasoning",
    "logprobs",
    "n",
)

_OUTAGES = 60
_OUTAGE_EVERY_S = 120.0
_OUTAGE_S = 20.0


def _price(input_picos: int, output_picos: int) -> SimulatedPrice:
    return SimulatedPrice(
        input=input_picos,
        cached_read=input_picos // 2,
        cache_write_5m=input_picos * 5 // 4,
        cache_write_1h=input_picos * 2,
        output=output_picos,
    )


def demo_profiles() -> tuple[ProviderProfile, ...]:
    """Fast and dear, slow and cheap, and flaky: each is the right choice for somebody."""
    fast = ProviderProfile(
        name="simulated-fast",
        model=DEMO_MODEL,
        seed=DEMO_SEED,
        price=_price(3_000_000, 15_000_000),
        ttft_base_s=0.15,
        prefill_tokens_per_s=20_000.0,
        tokens_per_s=140.0,
        tokens_per_event=2,
        drift_sigma=0.08,
    )
    slow = ProviderProfile(
        name="simulated-cheap",
        model=DEMO_MODEL,
        seed=DEMO_SEED + 1,
        price=_price(100_000, 400_000),
        ttft_base_s=0.6,
        prefill_tokens_per_s=4_000.0,
        tokens_per_s=32.0,
        drift_sigma=0.08,
    )
    flaky = ProviderProfile(
        name="simulated-flaky",
        model=DEMO_MODEL,
        seed=DEMO_SEED + 2,
        price=_price(500_000, 1_500_000),
        ttft_base_s=0.25,
        tokens_per_s=90.0,
        drift_sigma=0.35,
        drift_period_s=180.0,
        requests_per_minute=240,
        requests_burst=20,
        faults=(
            Fault(mode=FaultMode.ERROR, status=503, share=0.15),
            *(
                Fault(
                    mode=FaultMode.ERROR,
                    status=500,
                    starts_s=number * _OUTAGE_EVERY_S,
                    ends_s=number * _OUTAGE_EVERY_S + _OUTAGE_S,
                )
                for number in range(1, _OUTAGES + 1)
            ),
        ),
    )
    return fast, slow, flaky


def _provider_yaml(profile: ProviderProfile, port: int) -> str:
    quirks = "" if profile.batch is None else "    quirks: [native_batch]\n"
    return (
        f"  {profile.name}:\n"
        f"    api: openai\n"
        f'    base_url: "http://127.0.0.1:{port}/v1"\n'
        f"    network: private\n"
        f"    simulated: true\n"
        f"{quirks}"
    )


def _endpoint_yaml(profile: ProviderProfile) -> str:
    price = profile.price
    amounts = ", ".join(
        f"{name}: {dollars_per_million(getattr(price, name))}"
        for name in ("input", "cached_read", "cache_write_5m", "cache_write_1h", "output")
    )
    return (
        f"    - provider: {profile.name}\n"
        f"      model: {profile.model}\n"
        f"      canonical: {profile.model}\n"
        f"      price: {{{amounts}}}\n"
        f"      context: {profile.context_tokens_max}\n"
        f"      max_output: {profile.output_tokens_max}\n"
        f"      capabilities: [{', '.join(CAPABILITIES)}]\n"
    )


def demo_policy_yaml(
    ports: Mapping[str, int],
    profiles: tuple[ProviderProfile, ...] | None = None,
    *,
    more_providers: str = "",
    more_models: str = "",
) -> str:
    """A policy file over simulated providers; `ports` maps each profile's name to its port.

    `more_providers` and `more_models` are further entries of those sections, as YAML.
    """
    shown = demo_profiles() if profiles is None else profiles
    providers = "".join(_provider_yaml(each, ports[each.name]) for each in shown)
    endpoints = "".join(_endpoint_yaml(each) for each in shown)
    return (
        "# Providers marked simulated: no real model answers, no real money is spent.\n"
        "# Each start of `looprouter up` writes this file anew; a change to it lasts until then.\n"
        "version: 1\n"
        "providers:\n"
        f"{providers}{more_providers}"
        "models:\n"
        "  chat:\n"
        f"{endpoints}{more_models}"
        "routes:\n"
        "  - {name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 24h}}\n"
        "  - {name: interactive, match: {stream: true}, prefer: {by: fastest}}\n"
        "  - {name: rest, prefer: {by: balanced, usd_per_second: 0.0005}}\n"
    )
