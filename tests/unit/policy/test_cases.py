"""Policy tests as users write them: the shipped example passes, and each expectation can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.policy_cases import run_cases
from gateway.errors import PolicyError, SetupError
from gateway.policy.cases import (
    Case,
    CasesFile,
    EndpointCase,
    Expect,
    RequestCase,
    instant_of,
    load_cases,
)

DEPLOY = Path(__file__).parents[3] / "deploy"
EXAMPLE = DEPLOY / "policy.cases.example.yaml"
POLICY = """
version: 1
providers:
  fast: {base_url: "https://fast.example/v1"}
  slow: {base_url: "https://slow.example/v1"}
models:
  m:
    - {provider: fast, model: x, price: {input: 3, output: 15}, capabilities: [text]}
    - {provider: slow, model: x, price: {input: 0.1, output: 0.4}, capabilities: [text, tools]}
  n:
    - {provider: slow, model: y}
routes:
  - {name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 1h}}
  - {name: team, match: {team: [rich]}, prefer: {by: balanced, usd_per_second: 0.01}}
  - {name: key, match: {key: [bot], tags: [night]}, prefer: {by: price}}
  - {name: rest, prefer: {by: fastest}}
"""
FLEET = "{fast/x: {tokens_per_second: 200}, slow/x: {tokens_per_second: 20}}"


def problems(tmp_path: Path, request: str, expect: str, *, more: str = "") -> list[str]:
    """What one case says; empty: it passed."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    path = tmp_path / "cases.yaml"
    path.write_text(
        f"version: 1\npolicy: policy.yaml\nfleet: {FLEET}\ncases:\n"
        f"  - {{name: c, request: {request}, expect: {expect}{more}}}\n"
    )
    (result,) = run_cases(path, None)
    assert result.has_passed is not bool(result.problems)
    return list(result.problems)


def test_the_example_passes_against_the_example_policy() -> None:
    results = run_cases(EXAMPLE, None)

    assert len(results) >= 10
    assert {each.name: each.problems for each in results if not each.has_passed} == {}
    assert {bool(each.chosen) for each in results} == {True, False}  # refusals too
    assert run_cases(EXAMPLE, DEPLOY / "policy.example.yaml") == results


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (("drain: 10m", "drain: 5m"), 0),
        (("by: cheapest, deadline: 24h", "by: fastest"), 2),
        ((", price_max: {input: 3, output: 15}", ""), 1),
        (("team: [research], ", "team: [others], "), 1),
        (("gpt-oss-120b:\n", "gpt-9:\n"), 11),
    ],
)  # fmt: skip
def test_a_policy_that_was_changed_fails_the_example(
    tmp_path: Path, change: tuple[str, str], fails: int
) -> None:
    text = (DEPLOY / "policy.example.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "changed.yaml"
    path.write_text(text.replace(*change))
    failed = [each for each in run_cases(EXAMPLE, path) if not each.has_passed]

    assert len(failed) == fails


@pytest.mark.parametrize(
    ("request_", "right", "wrong", "said"),
    [
        ("{model: m}", "{endpoint: fast/x}", "{endpoint: slow/x}",
         "expected endpoint slow/x, but fast/x is chosen"),
        ("{model: m}", "{one_of: [slow/x, fast/x]}", "{one_of: [slow/x]}",
         "expected one of slow/x, but fast/x is chosen"),
        ("{model: m, lane: batch}", "{order: [slow/x, fast/x]}", "{order: [fast/x]}",
         "expected order fast/x, but it is slow/x, fast/x"),
        ("{model: m, lane: batch}", "{route: batch}", "{route: rest}",
         "expected route rest, but it is batch"),
        ("{model: m, team: rich}", "{prefer: balanced, route: team}", "{prefer: fastest}",
         "expected prefer fastest, but it is balanced"),
        ("{model: m, key: bot, tags: [night, x]}", "{route: key}", "{refused: true}",
         "expected refused, but slow/x is chosen"),
        ("{model: m, needs: [tools]}", "{endpoint: slow/x, excluded: {fast/x: capability}}",
         "{excluded: {fast/x: capacity, slow/x: breaker}}",
         "expected fast/x excluded by capacity, but it is excluded by capability"),
        ("{model: nobody}", "{refused: true}", "{endpoint: fast/x}",
         "expected endpoint fast/x, but the request is refused: model_not_found"),
        ("{model: m, provider: {max_price: {prompt: 0.01}}}",
         "{refused: max_price, excluded: {slow/x: max_price}}", "{refused: capacity}",
         "expected refused by capacity, but it is by max_price"),
        ("{model: m, key_models: [n]}", "{refused: true}", "{order: [fast/x]}",
         "expected order fast/x, but the request is refused: permission"),
        ("{model: 'm:floor'}", "{prefer: price}", "{prefer: fastest}",
         "expected prefer fastest, but it is price"),
        ("{model: gone, fallbacks: [m]}", "{endpoint: fast/x}", "{refused: model_not_found}",
         "expected refused by model_not_found, but fast/x is chosen"),
    ],
)  # fmt: skip
def test_each_expectation_holds_or_says_why_not(
    tmp_path: Path, request_: str, right: str, wrong: str, said: str
) -> None:
    assert problems(tmp_path, request_, right) == []
    found = problems(tmp_path, request_, wrong)
    assert found
    assert found[0].startswith(said)


@pytest.mark.parametrize(
    ("state", "excluded"),
    [
        ("in_flight: 4, capacity: 4", "capacity"),
        ("breaker: open", "breaker"),
        ("pause: 5s", "pause"),
    ],
)
def test_the_state_of_the_fleet_is_heeded(tmp_path: Path, state: str, excluded: str) -> None:
    more = f", fleet: {{fast/x: {{tokens_per_second: 200, {state}}}}}"
    expect = f"{{endpoint: slow/x, excluded: {{fast/x: {excluded}}}}}"

    assert problems(tmp_path, "{model: m}", expect, more=more) == []
    assert problems(tmp_path, "{model: m}", "{endpoint: fast/x}", more=more)


@pytest.mark.parametrize(
    "state",
    ["success: 0.2, failure_lost: 60s", "ttft: 30s", "tokens_per_second: 5",
     "in_flight: 3, capacity: 3, pause: 1s"],
)  # fmt: skip
def test_what_makes_an_endpoint_worse_makes_it_lose(tmp_path: Path, state: str) -> None:
    fast = f"fast/x: {{{state}}}"
    more = f", fleet: {{{fast}}}"

    assert problems(tmp_path, "{model: m}", "{endpoint: slow/x}", more=more) == []


def test_prices_of_a_case_go_before_the_policys(tmp_path: Path) -> None:
    more = ", fleet: {fast/x: {price: {input: 0, output: 0}}}"

    assert problems(tmp_path, "{model: m, lane: batch}", "{endpoint: slow/x}") == []
    assert problems(tmp_path, "{model: m, lane: batch}", "{endpoint: fast/x}", more=more) == []


def test_expected_length_decides_between_a_quick_start_and_a_quick_pace(tmp_path: Path) -> None:
    fleet = (
        "fleet: {fast/x: {ttft: 3s, tokens_per_second: 200}, "
        "slow/x: {ttft: 100ms, tokens_per_second: 20}}"
    )
    short, long = (f", {fleet}, output_tokens: {tokens}" for tokens in (10, 2_000))

    assert problems(tmp_path, "{model: m}", "{endpoint: slow/x}", more=short) == []
    assert problems(tmp_path, "{model: m}", "{endpoint: fast/x}", more=long) == []


def test_the_same_seed_gives_the_same_choice_among_equals(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    path = tmp_path / "cases.yaml"
    equal = "{fast/x: {samples: 3}, slow/x: {samples: 3}}"
    lines = [
        f"  - {{name: c{seed}, seed: {seed}, request: {{model: m}}, expect: {{route: rest}}}}"
        for seed in range(40)
    ]
    path.write_text(
        "\n".join(["version: 1", "policy: policy.yaml", f"fleet: {equal}", "cases:", *lines])
    )
    results = run_cases(path, None)

    assert {each.chosen for each in results} == {"fast/x", "slow/x"}
    assert run_cases(path, None) == results


def test_list_prices_do_not_follow_the_hour_of_the_run(tmp_path: Path) -> None:
    """A model with an off-peak price: noon of the day, or the instant that the file names."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    path = tmp_path / "cases.yaml"
    case = "cases: [{name: c, request: {model: m}, expect: {route: rest}}]"
    path.write_text(f"version: 1\npolicy: policy.yaml\n{case}\n")
    day_s = 1_790_000_000 // 86_400 * 86_400.0
    morning, evening = (run_cases(path, None, now_unix_s=day_s + s) for s in (60.0, 86_000.0))

    assert morning == evening
    instants = set()
    for at in ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00", "'2026-01-31T13:00:00+01:00'"):
        path.write_text(f"version: 1\nat: {at}\npolicy: policy.yaml\n{case}\n")
        instants.add(instant_of(load_cases(path.read_bytes())))
        assert run_cases(path, None) == morning
    assert instants == {1_769_860_800.0}
    path.write_text(f"version: 1\npolicy: policy.yaml\nat: noon\n{case}\n")
    with pytest.raises(PolicyError, match=r"at: 'noon' is wrong.*line 3"):
        run_cases(path, None)


BASE = "version: 1\ncases: [{name: c, request: {model: m}, expect: {endpoint: fast/x}}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\n", "cases: there is none; add one"),
        ("cases: []\n", "the file: the field `version` is missing"),
        ("version: 2\ncases: []\n", "version: 2 is wrong"),
        ("[]", "the file: must be a mapping"),
        ("", "the file is empty"),
        (BASE + "colour: red\n", "colour: unknown field"),
        (BASE.replace("model: m", "model: m, strem: true"),
         "cases[0].request.strem: unknown field; did you mean `stream`?"),
        (BASE.replace("{model: m}", "{}"), "cases[0].request: the field `model` is missing"),
        (BASE.replace("model: m", "model: m, prompt_tokens: many"),
         "cases[0].request.prompt_tokens: 'many' is wrong"),
        (BASE.replace("model: m", "model: m, deadline: 90d"),
         "cases[0].request.deadline: '90d' is longer than 31 days"),
        (BASE.replace("endpoint: fast/x", ""), "cases[0].expect: says nothing"),
        (BASE.replace("fast/x}", "fast/x, refused: true}"),
         "cases[0].expect: a refused request goes to no endpoint"),
        (BASE.replace("endpoint: fast/x", "refused: false"), "cases[0].expect.refused: must be"),
        (BASE.replace("endpoint: fast/x", "refused: true, route: rest"),
         "cases[0].expect: a refused request has no plan"),
        (BASE + "fleet: {fast/x: {breaker: ajar}}\n",
         "fleet.fast/x.breaker: 'ajar' is unknown; use closed, open or half_open"),
        (BASE + "fleet: {fast/x: {tokens_per_second: 0}}\n", "fleet.fast/x.tokens_per_second: 0"),
        (BASE.replace("[{", "[{name: c, request: {model: m}, expect: {route: r}}, {"),
         "cases[1].name: is also cases[0]"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_path(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        load_cases(text.encode(), source="cases.yaml")

    assert said in str(error.value)
    assert "cases.yaml" in str(error.value)


def test_all_mistakes_are_told_at_once() -> None:
    text = BASE.replace("model: m", "model: m, a: 1, b: 2") + "c: 3\n"
    with pytest.raises(PolicyError) as error:
        load_cases(text.encode())

    assert len(error.value.problems) == 3
    assert "(line 2)" in str(error.value)


@pytest.mark.parametrize(
    ("expect", "more", "said"),
    [
        (
            "{endpoint: fats/x}",
            "",
            "expect.endpoint: 'fats/x' is no endpoint of the policy; did you",
        ),
        ("{one_of: [fast/x, z]}", "", "expect.one_of[1]: 'z'"),
        ("{excluded: {zz: capacity}}", "", "expect.excluded.zz"),
        (
            "{route: resst}",
            "",
            "expect.route: 'resst' is no route of the policy; did you mean `rest`",
        ),
        (
            "{route: rest}",
            ", fleet: {fast/y: {}}",
            "cases[0].fleet.fast/y: 'fast/y' is no endpoint",
        ),
    ],
)
def test_names_that_the_policy_does_not_have_are_mistakes(
    tmp_path: Path, expect: str, more: str, said: str
) -> None:
    with pytest.raises(PolicyError) as error:
        problems(tmp_path, "{model: m}", expect, more=more)

    assert said in str(error.value)


def test_the_policy_is_found_beside_the_cases_or_given(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(BASE)
    with pytest.raises(PolicyError, match="no policy is named"):
        run_cases(path, None)
    path.write_text(BASE + "policy: gone.yaml\n")
    with pytest.raises(SetupError, match=r"gone\.yaml"):
        run_cases(path, None)
    given = tmp_path / "elsewhere.yaml"
    given.write_text(POLICY)
    assert run_cases(path, given)[0].chosen


def test_the_page_names_every_field() -> None:
    page = (DEPLOY.parent / "docs/policy-testing.md").read_text()
    structs = (CasesFile, Case, RequestCase, EndpointCase, Expect)
    fields = {name for struct in structs for name in struct.__struct_fields__}

    assert sorted(name for name in fields if f"`{name}`" not in page) == []
