"""Bad policies: every problem is reported with its path and fix, and nothing secret is repeated."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import Network
from gateway.errors import PolicyError
from gateway.policy.load import load_policy
from gateway.policy.routes import find_route
from gateway.policy.units import nanos_of, parse_duration, picos_of
from gateway.wire.pieces import Surface
from tests.support.deciding import facts_of

ROOT = Path(__file__).parents[3]
GOOD = """\
version: 1
providers:
  a: {base_url: "https://a.example/v1", key_env: A_KEY}
models:
  m:
    - {provider: a, model: x, price: {input: 1, output: 2}}
routes:
  - {name: all, prefer: {by: fastest}}
"""
DESIGN = """\
version: 1
providers:
  groq:     {api: openai, base_url: "https://api.groq.com/openai/v1", key_env: GROQ_API_KEY}
  claude:   {api: anthropic, key_env: ANTHROPIC_API_KEY}
  own:      {api: openai, base_url: "http://127.0.0.1:8100/v1", network: private,
             self_hosted: {usd_per_hour: 2.10, billing: on_demand}}
models:                       # public name → endpoints that can serve it
  chat:
    - {provider: groq, model: llama-3.3-70b-versatile}
    - {provider: own,  model: smollm2-135m-instruct}
routes:                       # first match wins
  - {name: batch,       match: {lane: batch},  prefer: {by: cheapest, deadline: 24h}}
  - {name: interactive, match: {stream: true},
     prefer: {by: fastest, price_max: {input: 3, output: 15}}}
  - {name: rest,                               prefer: {by: balanced, usd_per_second: 0.0005}}
rescue: {first_token_timeout: auto, decode_floor: {tokens_per_second: 5, grace: 3s},
         hedge: {share_max: 0.02}}
"""


def problems_of(text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(PolicyError) as caught:
        load_policy(text if isinstance(text, bytes) else text.encode(), environ=None)
    return caught.value.problems


def test_design_example_loads() -> None:
    policy = load_policy(DESIGN.encode(), environ={})
    own = policy.endpoints["own/smollm2-135m-instruct"]

    assert policy.models == {"chat": ("groq/llama-3.3-70b-versatile", "own/smollm2-135m-instruct")}
    assert policy.providers["claude"].base_url == "https://api.anthropic.com"
    assert own.network is Network.PRIVATE
    assert own.usd_per_hour_nanos == 2_100_000_000
    assert own.prices[0].source == "self_hosted"
    assert own.prices[0].output == 2_100_000
    assert [route.name for route in policy.routes] == ["batch", "interactive", "rest"]
    assert policy.routes[0].preference.deadline_s == 86_400
    assert policy.routes[1].preference.output_picos_max == 15_000_000
    assert policy.routes[2].preference.seconds_per_nano == pytest.approx(2_000 / 1e9)
    assert policy.rescue.first_token_timeout_s is None
    assert policy.rescue.hedge_share_max == 0.02
    assert len(policy.warnings) == 2


def test_shipped_example_loads_without_a_problem() -> None:
    policy = load_policy((ROOT / "deploy" / "policy.example.yaml").read_bytes(), environ=None)

    assert policy.warnings == ()
    assert len(policy.models) == 6


def test_defaults_are_those_of_the_design() -> None:
    policy = load_policy(b"version: 1", environ=None)

    assert policy.timeouts.connect_s == 2.0
    assert (policy.timeouts.idle_s, policy.timeouts.idle_reasoning_s) == (30.0, 60.0)
    assert (policy.timeouts.total_s, policy.timeouts.status_line_s) == (600.0, 10.0)
    assert (policy.retry.attempts_max, policy.retry.budget_share, policy.retry.floor) == (2, 0.2, 3)
    assert (policy.keep_alive_s, policy.drain_s) == (15.0, 600.0)
    assert policy.limits.body_bytes_max == 10 * 2**20
    assert (policy.exploration.share, policy.exploration.credits_max) == (0.02, 20.0)
    assert policy.unpriced == "block"
    assert "none is defined" in policy.warnings[0]


def test_version_is_a_hash_of_the_text_comments_included() -> None:
    one, other = (load_policy(GOOD.encode() + c, environ=None) for c in (b"", b"# note\n"))

    assert one.version != other.version
    assert one.version == load_policy(GOOD.encode(), environ=None).version


@pytest.mark.parametrize(
    ("wrong", "right", "problem"),
    [
        ("by: fastest", "by: best", "routes[0].prefer.by: 'best' is unknown; use fastest, balanced,"
         " cheapest, throughput, latency or price (line 8)"),
        ("by: fastest", "by: fastest, deadline: 3s",
         "routes[0].prefer.deadline: does nothing with by: fastest; use by: cheapest"),
        ("by: fastest", "by: fastest, usd_per_second: 1",
         "routes[0].prefer.usd_per_second: does nothing with by: fastest; use by: balanced"),
        ("by: fastest", "by: cheapest, deadline: 24",
         "routes[0].prefer.deadline: 24 is no duration; write a number and a unit"),
        ("by: fastest", "by: cheapest, deadline: 40d",
         "routes[0].prefer.deadline: '40d' is longer than 31 days"),
        ("by: fastest", "by: balanced, usd_per_second: 0",
         "routes[0].prefer.usd_per_second: 0 is wrong; must be a number > 0"),
        ("provider: a", "provider: b",
         "models.m[0].provider: 'b' is not under providers (a); add it there"),
        ("model: x,", "modell: x,", "models.m[0].modell: unknown field; did you mean `model`?"),
        ("model: x,", "", "models.m[0]: the field `model` is missing; add it"),
        ("input: 1", "input: -1", "models.m[0].price.input: -1 is wrong; must be a number >= 0"),
        ("input: 1, output: 2", "input: 1", "models.m[0].price: the field `output` is missing"),
        ("input: 1", "input: cheap", "models.m[0].price.input: 'cheap' is wrong; must be a number"),
        ("version: 1", "version: 2", "version: 2 is wrong; use 1"),
        ("version: 1", "versoin: 1", "versoin: unknown field; did you mean `version`?"),
        ("https://a.example/v1", "http://a.example/v1",
         "providers.a.base_url: http:// is not for the public network; use https://"),
        ("https://a.example/v1", "https://10.0.0.7/v1",
         "providers.a.base_url: 10.0.0.7 is inside your own network; add network: private"),
        ("https://a.example/v1", "https://169.254.169.254/v1",
         "providers.a.base_url: 169.254.169.254 is an address that is always refused"),
        ("https://a.example/v1", "https://u:p@a.example/v1",
         "providers.a.base_url: holds a user name or password"),
        ("https://a.example/v1", "https://a.example/v1?x=1",
         "providers.a.base_url: holds more than an address"),
        ("https://a.example/v1", "ftp://a.example", "providers.a.base_url: is no address"),
        ("https://a.example/v1", "https://[::1", "providers.a.base_url: is no address"),
        ('base_url: "https://a.example/v1", ', "",
         "providers.a.base_url: is missing (it is no provider we know)"),
        ("key_env: A_KEY", "verify_tls: false", "providers.a.verify_tls: false is only for"),
        ("key_env: A_KEY", "quirks: [odd]", "providers.a.quirks: 'odd' is unknown; use api_key"),
        ("key_env: A_KEY", "headers: {Host: x}",
         "providers.a.headers.Host: is set by the gateway itself"),
        ("key_env: A_KEY", 'headers: {x-a: "b\\r\\nc: d"}', "providers.a.headers: 'x-a' is no"),
        ("key_env: A_KEY", "timeouts: {idle: soon}",
         "providers.a.timeouts.idle: 'soon' is no duration"),
        ("routes:", "unpriced: cap\nroutes:", "unpriced: rule cap and usd_per_million_tokens go"),
        ("routes:", "unpriced: {rule: block, usd_per_million_tokens: 1}\nroutes:",
         "unpriced: rule cap and usd_per_million_tokens go together"),
        ("routes:", "unpriced: maybe\nroutes:", "unpriced: 'maybe' is unknown; use"),
        ("routes:", "rescue: {first_token_timeout: later}\nroutes:",
         "rescue.first_token_timeout: 'later' is no duration; write auto, or a number"),
        ("routes:", "limits: {body_bytes: 5}\nroutes:",
         "limits.body_bytes: 5 is wrong; must be a whole number >= 1024"),
        ("name: all,", "name: all, match: {model: gone},",
         "routes[0].match.model: 'gone' is no model; add it under models"),
        ("name: all,", "name: all, match: {min_prompt_tokens: 9, max_prompt_tokens: 8},",
         "routes[0].match: min_prompt_tokens 9 is above max_prompt_tokens 8"),
        ("name: all,", "name: all, match: {surface: chatt},", "routes[0].match.surface: 'chatt'"),
        ("name: all,", "name: 'a b',", "routes[0].name: 'a b' must begin with a letter or digit"),
        ("  m:\n", "  m: []\n  n:\n", "models.m: has no endpoints; add one or remove the model"),
        ("  m:\n", "  a/x:\n", "models.a/x: is also an endpoint's id; give the model another name"),
        ("  m:\n", "  5:\n", "models.5: the name 5 is not text; put it in quotes"),
    ],
)  # fmt: skip
def test_problem_names_its_path_and_fix(wrong: str, right: str, problem: str) -> None:
    assert wrong in GOOD

    found = problems_of(GOOD.replace(wrong, right, 1))

    assert any(line.startswith(problem) for line in found), found


def test_several_problems_are_reported_together() -> None:
    text = GOOD.replace("fastest", "best").replace("model: x", "modell: x").replace(": 1,", ": -1,")

    assert len(problems_of(text)) == 4


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-Zm9vYmFyYmF6cXV4MTIz",
        "sk-ant-api03-Zm9vYmFyYmF6",
        "gsk_Zm9vYmFyYmF6cXV4MTIzNDU2",
        "lr-0123abcd_0123456789abcdef0123456789abcdef",
        "0123456789abcdef0123456789abcdef",
        "Bearer Zm9vYmFyYmF6",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        "providers: {a: {key_env: %s}}",
        "providers: {a: {api_key: %s}}",
        "providers: {a: {headers: {x-note: '%s'}}}",
        "models: {m: [{provider: a, model: '%s'}]}",
        "routes: [{name: r, match: {tags: ['%s']}, prefer: {by: fastest}}]",
        "'%s': 1",
        "providers: {a: {base_url: 'https://h.example/%s'}}",
    ],
)
def test_secret_anywhere_is_refused_and_never_repeated(place: str, secret: str) -> None:
    found = problems_of("version: 1\n" + place % secret)

    assert "key_env" in found[0]
    assert secret not in "\n".join(found)
    assert len(found) == 1


def test_short_secret_under_a_secret_field_is_refused_too() -> None:
    assert (
        "secrets never stand in a policy"
        in problems_of("version: 1\nproviders: {a: {api_key: hunter2}}")[0]
    )


def test_key_env_that_is_no_name_is_not_repeated() -> None:
    (found,) = problems_of("version: 1\nproviders: {openai: {key_env: my-short-key}}")

    assert "not the key itself" in found
    assert "my-short-key" not in found


# ---- references between sections ---------------------------------------------------------------


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


# ---- providers -----------------------------------------------------------------------------------


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


# ---- YAML itself ---------------------------------------------------------------------------------

BILLION_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is empty"),
        (b"- 1", "must be a mapping"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"version: 1\nversion: 1", "version: stands here twice (line 2); keep one"),
        (b"a: {b: 1, 'b': 2}", "a.b: stands here twice"),
        (b"a: [1", "not valid YAML"),
        (b"a: \t- b: c: d", "not valid YAML"),
        (b"version: 1\n---\nversion: 1", "a policy is one document"),
        (b"x: " + b"[" * 40 + b"]" * 40, "nested deeper than 32"),
        (b"x: " + b"[" * 100_000, "nest"),
        (b"x: 1\n" * 100_000, "at most 262,144 are read"),
        (b"x: [" + b"1," * 60_000 + b"]", "more than 50,000 values"),
        (BILLION_LAUGHS.encode(), "aliases expand to more than 50,000 values"),
        (b"x: &x [*x]", "contains itself"),
        (b"x: &x 1\ny: [" + b"*x," * 201 + b"]", "more than 200 aliases"),
        (b"? [a]\n: 1", "a key must be plain text"),
        (b"x: !!python/object/apply:os.system [ls]", "not valid YAML"),
        (b"x: *nobody", "not valid YAML"),
        (b"x: 2024-99-99", "a value YAML cannot read"),
    ],
)  # fmt: skip
def test_hostile_yaml_is_refused_with_a_plain_sentence(text: bytes, says: str) -> None:
    with pytest.raises(PolicyError, match=None) as caught:
        load_policy(text, environ=None)

    assert says in str(caught.value)


def test_anchors_and_merges_work_within_their_bounds() -> None:
    text = GOOD.replace("{provider: a, model: x,", "&e {provider: a, model: x,")
    text += "# the same endpoint, but for the window\n"
    text = text.replace("routes:", "  n:\n    - {<<: *e, model: y}\nroutes:")

    assert load_policy(text.encode(), environ=None).models["n"] == ("a/y",)


@given(st.binary(max_size=300))
def test_any_bytes_load_or_raise_a_policy_error(text: bytes) -> None:
    with suppress(PolicyError):
        load_policy(text, environ=None)


WORDS = st.sampled_from(
    ["a", "m", "x", "version", "providers", "models", "routes", "prefer", "by", "price", "input"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_any_shape_of_values_loads_or_raises_a_policy_error(tree: dict) -> None:
    with suppress(PolicyError):
        load_policy(yaml.safe_dump({"version": 1, **tree}).encode(), environ=None)


# ---- units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("150ms", 0.15), ("3s", 3), ("1.5s", 1.5), ("10m", 600), ("24h", 86_400), ("7d", 604_800)],
)
def test_durations_are_read_as_written(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "3", "s", "-3s", "3 s", "3S", "1e3s", "32d", "99999999999h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_dollars_become_integers_exactly() -> None:
    assert picos_of(0.59) == 590_000
    assert picos_of(0.0028) == 2_800
    assert picos_of(1e-7) == 1
    assert nanos_of(2.1) == 2_100_000_000
