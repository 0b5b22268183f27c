"""The catalogue is consistent, answers by name and address, and starts a policy that loads."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.catalogue.entries import QUANTISATIONS, QUIRKS, quantisation_class
from gateway.catalogue.lookup import (
    canonical_models,
    detect_providers,
    entries_of,
    key_env_in,
    lookup,
    provider_defaults,
)
from gateway.catalogue.models import MODELS
from gateway.catalogue.providers import PROVIDERS
from gateway.catalogue.starter import default_policy
from gateway.policy.load import load_policy
from gateway.prices.book import PriceBook
from gateway.wire.translate.shapes import target_of

NAMED = (
    *("openai", "anthropic", "groq", "together", "fireworks", "deepseek", "moonshot", "zhipu"),
    *("dashscope", "siliconflow", "mistral", "openrouter", "azure", "vllm", "sglang", "ollama"),
)
# The list keeps one entry for two versions with different windows.
LISTED_TOGETHER = {"moonshotai/kimi-k2-instruct-0905"}


@pytest.mark.parametrize("name", NAMED)
def test_provider_is_known_with_what_a_policy_may_leave_out(name: str) -> None:
    provider = provider_defaults(name)

    assert provider is not None
    assert provider.surfaces
    assert provider.base_url or name == "azure"
    assert provider.key_envs or provider.is_local
    assert provider.quirks <= QUIRKS.keys()
    if provider.base_url and not provider.is_local:
        assert provider_defaults(provider.base_url) is provider


def test_address_decides_and_a_lookalike_host_does_not_pass() -> None:
    azure = provider_defaults("https://my-resource.openai.azure.com/openai/v1")

    assert azure is provider_defaults("azure")
    assert provider_defaults("https://evil-api.openai.com.example/v1") is None
    assert provider_defaults("https://api.openai.com.evil.example/v1") is None
    assert provider_defaults("https://notopenrouter.ai/api/v1") is None
    assert provider_defaults("https://[broken") is None
    assert provider_defaults("nobody") is None


@pytest.mark.parametrize(
    ("alias", "name"),
    [("claude", "anthropic"), ("Kimi", "moonshot"), ("qwen", "dashscope"), ("GROQ", "groq")],
)
def test_other_names_of_a_provider_are_understood(alias: str, name: str) -> None:
    assert provider_defaults(alias) is provider_defaults(name)


def test_catalogue_has_forty_models_and_every_canonical_name_once() -> None:
    assert len(MODELS) >= 40
    assert max(Counter(canonical_models()).values()) == 1


def test_no_provider_id_means_two_models() -> None:
    ids = Counter()
    for row in MODELS:
        for provider, stated in row.ids.items():
            for text in (stated,) if isinstance(stated, str) else stated:
                ids[provider, text.partition("|")[0].lower()] += 1

    assert [key for key, count in ids.items() if count > 1] == []


def test_every_entry_uses_known_providers_precisions_and_quirks() -> None:
    for row in MODELS:
        assert row.ids.keys() <= {*(p.name for p in PROVIDERS), "*"}
        assert not row.is_open or "*" in row.ids
        assert set(row.quirks.split()) <= QUIRKS.keys()
    for provider in PROVIDERS:
        for entry in entries_of(provider.name):
            assert entry.quantisation in QUANTISATIONS


def test_same_weights_are_one_canonical_model_everywhere() -> None:
    found = {
        lookup("groq", "llama-3.3-70b-versatile").canonical,
        lookup("https://api.together.xyz/v1", "meta-llama/Llama-3.3-70B-Instruct-Turbo").canonical,
        lookup("fireworks", "accounts/fireworks/models/llama-v3p3-70b-instruct").canonical,
        lookup("ollama", "llama3.3:70b").canonical,
        lookup("vllm", "meta-llama/Llama-3.3-70B-Instruct").canonical,
        lookup("http://10.0.0.9/v1", "META-LLAMA/llama-3.3-70b-instruct").canonical,
    }

    assert found == {"llama-3.3-70b-instruct"}


def test_open_weights_id_is_not_looked_up_at_a_provider_with_its_own_ids() -> None:
    assert lookup("groq", "meta-llama/Llama-3.3-70B-Instruct") is None
    assert lookup("openai", "no-such-model") is None


def test_stated_precision_is_the_providers_and_unknown_stays_unknown() -> None:
    assert lookup("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo").quantisation == "fp8"
    assert lookup("groq", "llama-3.3-70b-versatile").quantisation == "unknown"
    assert lookup("openrouter", "openai/gpt-oss-120b").quantisation == "unknown"
    assert lookup("groq", "openai/gpt-oss-120b").quantisation == "mxfp4"


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [("mxfp4", "4-bit"), ("int8", "8-bit"), ("bf16", "16-bit"), ("fp32", "16-bit"),
     ("fp6", "6-bit"), ("unknown", "unknown"), ("odd", "unknown")],
)  # fmt: skip
def test_quantisation_classes(quantisation: str, bits: str) -> None:
    assert quantisation_class(quantisation) == bits


def test_listed_models_agree_with_the_price_list_about_context_windows() -> None:
    """A cross-check of hand-written facts against genai-prices, where both state one."""
    from genai_prices.data import providers as listed

    compared, wrong = 0, []
    for ours, theirs in (("openai", "openai"), ("anthropic", "anthropic"), ("groq", "groq")):
        provider = next(p for p in listed if p.id == theirs)
        for entry in entries_of(ours):
            model = provider.find_model(entry.model)
            if model is None or not model.context_window or not entry.context_tokens_max:
                continue
            compared += 1
            differs = abs(entry.context_tokens_max / model.context_window - 1) > 0.06
            if differs and entry.model not in LISTED_TOGETHER:
                wrong.append((entry.model, entry.context_tokens_max, model.context_window))

    assert wrong == []
    assert compared > 30


# ---- what `looprouter up` starts from ------------------------------------------------------------


def test_providers_with_a_key_in_the_environment_are_detected() -> None:
    environ = {"GROQ_API_KEY": "x", "TOGETHERAI_API_KEY": "y", "OPENAI_API_KEY": "", "PATH": "/"}
    found = detect_providers(environ)

    assert [provider.name for provider in found] == ["groq", "together"]
    assert key_env_in(found[1], environ) == "TOGETHERAI_API_KEY"
    assert detect_providers({}) == []


def test_azure_is_not_detected_as_its_address_is_unknown() -> None:
    assert detect_providers({"AZURE_OPENAI_API_KEY": "x"}) == []


def test_default_policy_over_every_provider_loads_and_splits_precisions() -> None:
    text = default_policy([p for p in PROVIDERS if p.base_url])
    policy = load_policy(text.encode(), environ=None)

    assert (
        "together/meta-llama/Llama-3.3-70B-Instruct-Turbo"
        in policy.models["llama-3.3-70b-instruct-8-bit"]
    )
    assert "groq/llama-3.3-70b-versatile" in policy.models["llama-3.3-70b-instruct"]
    assert len(policy.models) >= 100
    assert [route.name for route in policy.routes] == ["batch", "interactive", "rest"]


def test_default_policy_names_the_variables_that_are_set() -> None:
    environ = {"TOGETHERAI_API_KEY": "y", "GROQ_API_KEY": "x"}
    policy = load_policy(default_policy(detect_providers(environ), environ).encode(),
                         environ=environ)  # fmt: skip

    assert policy.providers["together"].key_env == "TOGETHERAI_API_KEY"
    assert policy.warnings == ()
    assert set(policy.models["gpt-oss-120b"]) == {
        "groq/openai/gpt-oss-120b",
        "together/openai/gpt-oss-120b",
    }


def test_default_policy_of_nobody_loads_and_warns() -> None:
    policy = load_policy(default_policy([]).encode(), environ={})

    assert policy.models == {}
    assert len(policy.warnings) == 1


def test_own_servers_cost_nothing_by_the_token_and_say_so() -> None:
    policy = load_policy(default_policy(["ollama"]).encode(), environ={})
    book = PriceBook()
    rows = [book.rows(endpoint, 1.8e9) for endpoint in policy.endpoints.values()]

    assert rows
    assert all(row[0].is_priced and row[0].output == 0 for row in rows)


def test_most_known_models_have_a_list_price() -> None:
    book = PriceBook()
    for name in ("openai", "anthropic", "groq", "deepseek", "mistral", "moonshot"):
        policy = load_policy(default_policy([name]).encode(), environ=None)
        priced = [book.rows(e, 1.794e9)[0].is_priced for e in policy.endpoints.values()]
        assert sum(priced) >= 0.8 * len(priced), name


@pytest.mark.parametrize(
    ("model", "quirks"),
    [
        ("claude-sonnet-4-20250514", {"thinking_budget"}),
        ("claude-opus-4-5", {"thinking_budget"}),
        ("claude-haiku-4-5", {"thinking_budget"}),
        ("claude-sonnet-4-6", set()),  # takes both
        ("claude-opus-4-6", set()),
        ("claude-opus-4-8", {"thinking_effort"}),
        ("claude-sonnet-5", {"thinking_effort"}),
        ("claude-3-5-haiku-latest", set()),  # does not think at all
    ],
)
def test_claude_models_take_a_budget_or_an_effort_for_their_thinking(
    model: str, quirks: set[str]
) -> None:
    entry = lookup("anthropic", model)

    assert entry is not None
    assert entry.quirks == quirks


def test_quirks_that_translation_heeds_are_known_ones() -> None:
    for quirk in ("thinking_budget", "thinking_effort", "string_content", "no_stream_options"):
        assert quirk in QUIRKS
        assert target_of(frozenset({quirk})) != target_of(frozenset())

    deepseek = provider_defaults("deepseek")
    assert deepseek is not None
    assert "string_content" in deepseek.quirks
