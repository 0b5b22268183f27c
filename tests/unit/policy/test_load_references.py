"""References between sections, model identity, reachable routes, known providers."""

from __future__ import annotations

import pytest

from gateway.errors import PolicyError
from gateway.policy.load import load_policy
from gateway.policy.routes import find_route
from gateway.wire.pieces import Surface
from tests.support.deciding import facts_of


def problems_of(text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        load_policy(text if isinstance(text, bytes) else text.encode(), environ=None)
    return caught.value.problems


def with_endpoints(*lines: str, providers: str = "") -> str:
    return "\n".join(
        [
            "version: 1",
            "providers:",
            "  groq: {}",
            "  together: {}",
            "  own: {base_url: 'http://127.0.0.1:1/v1', network: private}",
            providers,
            "models:",
            "  m:",
            *(f"    - {{{line}}}" for line in lines),
        ]
    )


def test_two_canonical_models_are_not_one_public_model() -> None:
    (found,) = problems_of(
        with_endpoints(
            "provider: groq, model: llama-3.3-70b-versatile",
            "provider: groq, model: openai/gpt-oss-120b",
        )
    )

    assert "groq/llama-3.3-70b-versatile is llama-3.3-70b-instruct" in found
    assert "groq/openai/gpt-oss-120b is gpt-oss-120b" in found


def test_two_quantisation_classes_are_not_one_public_model() -> None:
    (found,) = problems_of(
        with_endpoints(
            "provider: together, model: meta-llama/Llama-3.3-70B-Instruct-Turbo",
            "provider: own, model: mine, canonical: llama-3.3-70b-instruct, quantisation: bf16",
        )
    )

    assert "is 8-bit (fp8)" in found
    assert "own/mine is 16-bit (bf16)" in found


def test_unknown_canonical_and_precision_are_allowed_beside_known_ones() -> None:
    text = with_endpoints(
        "provider: together, model: meta-llama/Llama-3.3-70B-Instruct-Turbo",
        "provider: groq, model: llama-3.3-70b-versatile",
        "provider: own, model: who-knows",
    )
    policy = load_policy(text.encode(), environ=None)

    assert policy.endpoints["own/who-knows"].quantisation == "unknown"
    assert policy.endpoints["own/who-knows"].canonical_model == ""


def test_operators_word_about_canonical_and_precision_wins() -> None:
    text = with_endpoints(
        "provider: together, model: meta-llama/Llama-3.3-70B-Instruct-Turbo, quantisation: bf16",
        "provider: own, model: mine, canonical: llama-3.3-70b-instruct, quantisation: fp16",
    )

    assert len(load_policy(text.encode(), environ=None).models["m"]) == 2


def test_endpoint_twice_in_a_model_is_an_error() -> None:
    (found,) = problems_of(with_endpoints(*["provider: groq, model: x"] * 2))

    assert found.startswith("models.m[1]: groq/x stands in this model twice; remove one")


def test_same_endpoint_described_in_two_ways_is_an_error() -> None:
    text = with_endpoints("provider: groq, model: x, context: 5") + (
        "\n  n:\n    - {provider: groq, model: x, context: 6}"
    )
    (found,) = problems_of(text)

    assert found.startswith("models.n[0]: groq/x is described differently at models.m[0]")


def test_same_model_at_two_tiers_is_two_endpoints() -> None:
    text = with_endpoints("provider: groq, model: x", "provider: groq, model: x, tier: flex")

    assert load_policy(text.encode(), environ=None).models["m"] == ("groq/x", "groq/x#flex")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{}", "{stream: true}"),
        ("{stream: true}", "{stream: true, lane: batch}"),
        ("{model: m*}", "{model: [m, mm]}"),
        ("{model: [m, n]}", "{model: m}"),
        ("{surface: [chat, messages]}", "{surface: chat}"),
        ("{tags: a}", "{tags: [a, b]}"),
        ("{min_prompt_tokens: 5}", "{min_prompt_tokens: 9}"),
        ("{team: [t, u]}", "{team: u, key: k}"),
    ],
)
def test_route_behind_one_that_takes_all_of_its_requests_is_an_error(
    earlier: str, later: str
) -> None:
    text = (
        with_endpoints("provider: groq, model: x")
        .replace("  m:", "  n: *e\n  m: &e")
        .replace("  n: *e\n  m: &e", "  m: &e")
    )
    text += "\n  n: *e\n  mm: *e\nroutes:\n"
    text += f"  - {{name: one, match: {earlier}, prefer: {{by: fastest}}}}\n"
    text += f"  - {{name: two, match: {later}, prefer: {{by: fastest}}}}\n"
    (found,) = problems_of(text)

    assert found.startswith("routes[1]: is never reached: routes[0] (one) takes all it matches")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{stream: true}", "{}"),
        ("{stream: true}", "{stream: false}"),
        ("{model: m}", "{model: [m, n]}"),
        ("{model: m}", "{model: m*}"),
        ("{tags: [a, b]}", "{tags: a}"),
        ("{min_prompt_tokens: 9}", "{min_prompt_tokens: 5}"),
        ("{max_prompt_tokens: 9}", "{min_prompt_tokens: 5}"),
        ("{key: k}", "{team: t}"),
    ],
)
def test_route_that_still_gets_requests_is_fine(earlier: str, later: str) -> None:
    text = with_endpoints("provider: groq, model: x") + "\n  n:\n    - {provider: groq, model: y}"
    text += "\nroutes:\n"
    text += f"  - {{name: one, match: {earlier}, prefer: {{by: fastest}}}}\n"
    text += f"  - {{name: two, match: {later}, prefer: {{by: fastest}}}}\n"

    assert len(load_policy(text.encode(), environ=None).routes) == 2


@pytest.mark.parametrize(
    ("match", "facts", "is_taken"),
    [
        ("{team: t}", {"team_id": "t"}, True),
        ("{team: t}", {"team_id": "u"}, False),
        ("{key: k}", {"key_id": "k"}, True),
        ("{key: [j, k]}", {"key_name": "k"}, True),
        ("{key: k}", {}, False),
        ("{tags: [a, b]}", {"tags": frozenset("abc")}, True),
        ("{tags: [a, b]}", {"tags": frozenset("ac")}, False),
        ("{surface: messages}", {"surface": Surface.MESSAGES}, True),
        ("{surface: messages}", {}, False),
        ("{model: m*}", {"models": ("mm",)}, True),
        ("{model: m*}", {"models": ("x",)}, False),
        ("{min_prompt_tokens: 100}", {}, True),
        ("{min_prompt_tokens: 101}", {}, False),
        ("{max_prompt_tokens: 99}", {}, False),
        ("{stream: false}", {}, False),
        ("{lane: interactive}", {}, True),
    ],
)
def test_route_takes_what_it_says(match: str, facts: dict, is_taken: bool) -> None:
    text = with_endpoints("provider: groq, model: x")
    text += f"\nroutes: [{{name: one, match: {match}, prefer: {{by: fastest}}}}]"
    policy = load_policy(text.encode(), environ=None)

    assert (find_route(policy.routes, facts_of(**facts)).name == "one") is is_taken


@pytest.mark.parametrize(
    ("spec", "base_url"),
    [
        ("groq: {}", "https://api.groq.com/openai/v1"),
        ("fast: {key_env: GROQ_API_KEY}", "https://api.groq.com/openai/v1"),
        ("mine: {api: anthropic}", "https://api.anthropic.com"),
        ("ollama: {}", "http://127.0.0.1:11434/v1"),
        ("x: {base_url: 'https://h.example/v1/'}", "https://h.example/v1"),
        ("az: {base_url: 'https://r.openai.azure.com/openai?api-version=2024-10-21'}",
         "https://r.openai.azure.com/openai?api-version=2024-10-21"),
    ],
)  # fmt: skip
def test_known_provider_needs_no_address(spec: str, base_url: str) -> None:
    name = spec.split(":")[0]
    policy = load_policy(f"version: 1\nproviders: {{{spec}}}".encode(), environ=None)

    assert policy.providers[name].base_url == base_url


def test_azure_must_say_its_resource() -> None:
    (found,) = problems_of("version: 1\nproviders: {azure: {key_env: AZURE_OPENAI_API_KEY}}")

    assert "the address of your Azure resource" in found


def test_local_server_elsewhere_must_be_declared_private() -> None:
    (found,) = problems_of("version: 1\nproviders: {ollama: {base_url: 'http://10.1.2.3/v1'}}")

    assert "add network: private" in found


def test_price_of_an_anthropic_endpoint_charges_cache_writes_as_anthropic_does() -> None:
    text = (
        "version: 1\nproviders: {c: {api: anthropic, key_env: K}}\n"
        "models: {m: [{provider: c, model: x, price: {input: 4, output: 20, cached_read: 0}}]}"
    )
    row = load_policy(text.encode(), environ=None).endpoints["c/x"].prices[0]

    assert (row.cache_write_5m, row.cache_write_1h) == (5_000_000, 8_000_000)
    assert row.cached_read == 0
    assert "cached_read" in row.free
    assert row.reasoning == 20_000_000


def test_provider_timeouts_stand_in_for_the_top_level() -> None:
    text = "version: 1\nproviders: {groq: {timeouts: {idle: 5s}}}\ntimeouts: {connect: 1s}"
    timeouts = load_policy(text.encode(), environ=None).providers["groq"].timeouts

    assert (timeouts.connect_s, timeouts.idle_s, timeouts.total_s) == (1.0, 5.0, 600.0)


def test_simulated_provider_marks_its_endpoints() -> None:
    text = (
        "version: 1\nproviders: {s: {base_url: 'http://127.0.0.1:1/v1', network: private, "
        "simulated: true}}\nmodels: {m: [{provider: s, model: x, price: {input: 1, output: 1}}]}"
    )

    assert load_policy(text.encode(), environ=None).endpoints["s/x"].is_simulated


@pytest.mark.parametrize(
    ("spec", "key_env"),
    [
        ("groq: {}", "GROQ_API_KEY"),
        ("together: {}", "TOGETHERAI_API_KEY"),
        ("groq: {key_env: OTHER}", "OTHER"),
        ("groq: {base_url: 'https://proxy.example/v1'}", ""),
        ("vllm: {}", ""),
    ],
)
def test_usual_key_is_taken_at_the_providers_own_address_only(spec: str, key_env: str) -> None:
    environ = {"GROQ_API_KEY": "x", "TOGETHERAI_API_KEY": "y"}
    policy = load_policy(f"version: 1\nproviders: {{{spec}}}".encode(), environ=environ)

    assert policy.providers[spec.split(":")[0]].key_env == key_env
