"""The demo's three providers and the policy over them."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from gateway.catalogue.native_batch import native_batch_of
from gateway.core import Network
from gateway.policy.load import load_policy
from gateway.prices.book import PriceBook
from gateway.simulator.demo import demo_policy_yaml, demo_profiles, dollars_per_million
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import FaultMode

PORTS = {"simulated-fast": 9001, "simulated-cheap": 9002, "simulated-flaky": 9003}


def test_each_profile_is_the_best_at_something() -> None:
    fast, cheap, flaky = demo_profiles()

    assert fast.tokens_per_s > flaky.tokens_per_s > cheap.tokens_per_s
    assert fast.ttft_base_s < flaky.ttft_base_s < cheap.ttft_base_s
    assert fast.price.output > flaky.price.output > cheap.price.output
    assert {each.mode for each in flaky.faults} == {FaultMode.ERROR}
    assert not fast.faults
    assert not cheap.faults


def test_all_serve_one_model_and_are_named_simulated() -> None:
    profiles = demo_profiles()

    assert len({each.model for each in profiles}) == 1
    assert all(each.name.startswith("simulated-") for each in profiles)
    assert profiles[0].model.startswith("simulated")


def test_policy_marks_providers_simulated_private_and_priced() -> None:
    policy = yaml.safe_load(demo_policy_yaml(PORTS))

    for profile in demo_profiles():
        provider = policy["providers"][profile.name]
        assert provider["simulated"] is True
        assert provider["network"] == "private"
        assert provider["base_url"] == f"http://127.0.0.1:{PORTS[profile.name]}/v1"
    for profile, endpoint in zip(demo_profiles(), policy["models"]["chat"], strict=True):
        picos = {name: round(value * 1_000_000) for name, value in endpoint["price"].items()}
        assert picos == {name: getattr(profile.price, name) for name in picos}


def test_policy_tells_which_providers_have_a_batch_api_and_it_is_priced_at_half() -> None:
    plain, batching, _ = demo_profiles()
    batching = msgspec.structs.replace(batching, batch=BatchProfile())
    text = demo_policy_yaml(PORTS, (plain, batching))
    endpoints = load_policy(text.encode(), environ={}).endpoints.values()
    tiers = {
        endpoint.provider: [row.tier for row in PriceBook().rows(endpoint, 1.8e9)]
        for endpoint in endpoints
    }

    assert [native_batch_of(endpoint) is not None for endpoint in endpoints] == [False, True]
    assert tiers == {plain.name: ["standard"], batching.name: ["standard", "batch"]}


def test_policy_loads_into_priced_simulated_endpoints() -> None:
    policy = load_policy(demo_policy_yaml(PORTS).encode(), environ={})

    assert len(policy.models["chat"]) == 3
    for profile in demo_profiles():
        endpoint = policy.endpoints[f"{profile.name}/{profile.model}"]
        assert endpoint.is_simulated
        assert endpoint.network is Network.PRIVATE
        assert endpoint.context_tokens_max == profile.context_tokens_max
        assert (endpoint.prices[0].input, endpoint.prices[0].output) == (
            profile.price.input,
            profile.price.output,
        )


@pytest.mark.parametrize(
    ("picos", "text"), [(3_000_000, "3"), (125_000, "0.125"), (1, "0.000001"), (0, "0")]
)
def test_dollars_are_exact_decimals(picos: int, text: str) -> None:
    assert dollars_per_million(picos) == text
