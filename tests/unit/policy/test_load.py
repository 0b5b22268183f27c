"""Bad policies: every problem is reported with its path and fix, and nothing secret is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core import Network
from gateway.errors import PolicyError
from gateway.policy.load import load_policy

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
    assert [warning.split(":")[0] for warning in policy.warnings] == [
        "providers.groq.key_env",
        "providers.claude.key_env",
    ]


def test_continuation_without_an_endpoint_that_can_is_pointed_out() -> None:
    said = DESIGN.replace("hedge: {", "continue_by_prefill: true, hedge: {")
    policy = load_policy(said.encode(), environ={})

    assert policy.rescue.continue_by_prefill
    assert any("rescue.continue_by_prefill" in warning for warning in policy.warnings)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 1\nproviders: {a: {api: openai\n", "p.yaml: line 3, column 1: not valid YAML"),
        ("", "p.yaml: the policy is empty"),
        ("- 1\n", "p.yaml: the policy must be a mapping"),
    ],
)
def test_text_that_is_no_policy_is_told_with_its_file(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(text.encode(), environ=None, source="p.yaml")

    assert str(caught.value).startswith(message)
    assert not caught.value.places[0].message.startswith("p.yaml")  # an editor knows its file
