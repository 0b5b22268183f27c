"""OpenRouter's soft wishes, fallback models, and the explanation of a plan."""

from __future__ import annotations

import json

import pytest

from gateway.core import ProviderPreferences
from gateway.policy.explain import DRAWN, explain_in_header
from tests.support.deciding import decide_on, facts_of, order_of, policy_of, reason_of, view_of


def prefer(**fields: object) -> dict[str, object]:
    return {"preferences": ProviderPreferences(**fields)}


def test_order_goes_first_and_turns_balancing_off() -> None:
    policy = policy_of("a", "b", "c")
    view = view_of(policy, {"a": {"rate": 100}}, {"c": {"is_last_used": True}})
    facts = facts_of(session_key="s", **prefer(order=("c", "B/x")))

    assert order_of(decide_on(policy, view, facts)) == ["c", "b", "a"]


def test_no_fallbacks_leaves_the_chosen_one_alone() -> None:
    policy = policy_of("a", "b")
    view = view_of(policy, {"a": {"rate": 100}})
    plan = decide_on(policy, view, facts_of(**prefer(allow_fallbacks=False)))

    assert order_of(plan) == ["a"]
    assert [c.outcome for c in plan.candidates] == ["chosen", "lost"]


def test_no_fallbacks_with_an_order_keeps_the_listed_ones() -> None:
    policy = policy_of("a", "b", "c")
    facts = facts_of(**prefer(order=("c", "a"), allow_fallbacks=False))

    assert order_of(decide_on(policy, view_of(policy), facts)) == ["c", "a"]


@pytest.mark.parametrize(
    "wish",
    [
        {"preferred_min_throughput": (("p50", 60.0),)},
        {"preferred_min_throughput": (("p90", 45.0),)},
        {"preferred_max_latency": (("p50", 0.4),)},
        {"preferred_max_latency": (("p99", 1.0),)},
    ],
)
def test_endpoint_below_a_preferred_speed_comes_last_but_stays(wish: dict) -> None:
    policy = policy_of("a, price: {input: 0.1, output: 0.1}", "b",
                       routes="[{name: r, prefer: {by: price}}]")  # fmt: skip
    view = view_of(policy, {"a": {"rate": 50, "ttft_s": 0.6},
                            "b": {"rate": 100, "ttft_s": 0.2}})  # fmt: skip
    plan = decide_on(policy, view, facts_of(**prefer(**wish)))

    assert order_of(plan) == ["b", "a"]
    assert reason_of(plan, "a").startswith("preferred: ")


def test_preferred_speed_is_judged_by_measured_percentiles_where_there_are_any() -> None:
    policy = policy_of("a", "b")
    measured = {"rate": 500, "rate_p50_p75_p90_p99": (80.0, 60.0, 30.0, 10.0)}
    view = view_of(policy, {"a": measured, "b": {"rate": 100}})
    wish = prefer(preferred_min_throughput=(("p90", 40.0),))

    assert order_of(decide_on(policy, view)) == ["a", "b"]
    assert order_of(decide_on(policy, view, facts_of(**wish))) == ["b", "a"]


TWO_MODELS = "  n:\n    - {provider: b, model: y, price: {input: 0.1, output: 0.1}}"


def test_fallback_models_come_after_the_model_asked_for() -> None:
    policy = policy_of("a", "b", others=TWO_MODELS)
    view = view_of(policy)
    plan = decide_on(policy, view, facts_of(models=("m", "n"), suffix="floor"))

    assert list(plan.order) == ["a/x", "b/x", "b/y"]
    assert plan.model == "m"
    assert plan.models == ("m", "m", "n")
    assert plan.model_of("b/y") == "n"


def test_partition_none_sorts_across_the_fallback_models() -> None:
    policy = policy_of("a", "b", others=TWO_MODELS)
    facts = facts_of(models=("m", "n"), **prefer(sort="price", partition="none"))
    plan = decide_on(policy, view_of(policy), facts)

    assert plan.order[0] == "b/y"
    assert plan.model == "n"


def test_unknown_first_model_falls_back_to_a_known_one() -> None:
    policy = policy_of("a", "b", others=TWO_MODELS)
    plan = decide_on(policy, view_of(policy), facts_of(models=("gone", "n")))

    assert plan.model == "n"


def test_endpoint_id_as_model_pins_that_endpoint() -> None:
    policy = policy_of("a", "b")
    plan = decide_on(policy, view_of(policy), facts_of(models=("b/x",)))

    assert list(plan.order) == ["b/x"]


def test_explanation_in_a_header_stays_json_however_many_candidates_there_are() -> None:
    policy = policy_of(*"abcdefghij")
    plan = decide_on(policy, view_of(policy))
    whole = json.loads(explain_in_header(plan.shown, 100_000))
    cut = explain_in_header(plan.shown, 2_000)
    shown = json.loads(cut)

    assert whole == plan.shown
    assert len(cut) <= 2_000
    assert shown["candidates"] == whole["candidates"][: len(shown["candidates"])]
    assert 0 < shown["num_left_out"] == 10 - len(shown["candidates"])


def test_operator_says_whether_answers_may_be_trained_on() -> None:
    policy = policy_of("a, distillable: true", "b, distillable: false", "c")
    plan = decide_on(policy, view_of(policy), facts_of(**prefer(enforce_distillable_text=True)))

    assert order_of(plan) == ["a"]


def test_explanation_lists_every_endpoint_and_puts_numbers_to_the_loss() -> None:
    policy = policy_of("a", "b", "c, surfaces: [embeddings]")
    view = view_of(policy, {"a": {"rate": 100}})
    shown = decide_on(policy, view).shown

    assert [c["endpoint"] for c in shown["candidates"]] == ["a/x", "b/x", "c/x"]
    assert "against" in shown["candidates"][1]["reason"]
    assert shown["candidates"][0]["terms"]["cost_usd"] == "0.000500000"
    assert shown["candidates"][2]["outcome"] == "excluded"


def test_who_only_lost_the_draw_is_not_said_to_finish_later() -> None:
    policy = policy_of("a", "b", "c")
    view = view_of(policy, {"c": {"rate": 1}})
    candidates = decide_on(policy, view).shown["candidates"]

    assert candidates[1]["terms"]["score_s"] == candidates[0]["terms"]["score_s"]
    assert candidates[1]["reason"].startswith(f"{DRAWN} (score ")
    assert candidates[2]["reason"].startswith("fallback: predicted to finish later (score ")
