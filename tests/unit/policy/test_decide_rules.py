"""Every rule that keeps an endpoint from a request, breakers and capacity among them."""

from __future__ import annotations

import pytest

from gateway.core import Lane, ProviderPreferences
from gateway.errors import NoEligibleEndpoint, UnknownModel
from gateway.policy.load import load_policy
from gateway.wire.pieces import Surface
from tests.support.deciding import decide_on, facts_of, order_of, policy_of, reason_of, view_of


def rule_of(error: NoEligibleEndpoint, provider: str) -> str:
    return next(d["rule"] for d in error.detail if d["endpoint"].startswith(f"{provider}/"))


def prefer(**fields: object) -> dict[str, object]:
    return {"preferences": ProviderPreferences(**fields)}


@pytest.mark.parametrize(
    ("endpoint", "facts", "rule"),
    [
        ("b, surfaces: [embeddings]", {}, "surface"),
        ("b, capabilities: [text]", {"needs": frozenset({"tools"})}, "capability"),
        ("b, capabilities: [tools]", {"needs": frozenset({"vision"})}, "capability"),
        ("b, context: 99", {}, "context"),
        ("b, max_output: 10", {"max_tokens": 11}, "max_output"),
        ("b, tier: priority", {}, "tier"),
        ("b, tier: batch", {}, "tier"),
        ("b", prefer(only=("A",)), "only"),
        ("b", prefer(ignore=("b",)), "ignore"),
        ("b", prefer(ignore=("b/x",)), "ignore"),
        ("b", prefer(order=("a",), allow_fallbacks=False), "order"),
        ("b, quantisation: int4", prefer(quantizations=("fp8", "unknown")), "quantizations"),
        ("b, parameters: [model]", {**prefer(require_parameters=True),
                                    "parameters": frozenset({"top_k"})}, "require_parameters"),
        ("b, price: {input: 3, output: 1}", prefer(max_price=(("prompt", 2.9),)), "max_price"),
        ("b, price: {input: 1, output: 3}", prefer(max_price=(("completion", 2.9),)), "max_price"),
        ("b, price: {input: 1, output: 1, usd_per_request: 0.01}",
         prefer(max_price=(("request", 0.009),)), "max_price"),
        ("b, price: {input: 1, output: 1, image_input: 9}",
         prefer(max_price=(("image", 8.0),)), "max_price"),
        ("b, price: {input: 1, output: 1, audio_input: 9}",
         prefer(max_price=(("audio", 8.0),)), "max_price"),
    ],
)  # fmt: skip
def test_rule_excludes_and_says_so(endpoint: str, facts: dict, rule: str) -> None:
    policy = policy_of("a", endpoint)
    plan = decide_on(policy, view_of(policy), facts_of(**facts))

    assert order_of(plan) == ["a"]
    assert reason_of(plan, "b").startswith(f"{rule}: ")
    assert plan.candidates[-1].outcome == "excluded"


def test_api_that_no_endpoint_of_the_model_serves_is_the_callers_mistake() -> None:
    policy = policy_of("a, surfaces: [embeddings]", "b, surfaces: [completions]")
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy))

    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    assert rule_of(caught.value, "a") == rule_of(caught.value, "b") == "surface"


def test_none_eligible_for_more_than_the_api_is_unavailable() -> None:
    policy = policy_of("a, surfaces: [embeddings]", "b, context: 99")
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy))

    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("wish", "rule"),
    [
        ({"data_collection": "deny"}, "data_collection"),
        ({"zdr": True}, "zdr"),
        ({"enforce_distillable_text": True}, "enforce_distillable_text"),
    ],
)
def test_unknown_data_policy_does_not_pass_for_a_good_one(wish: dict, rule: str) -> None:
    policy = policy_of("a")
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy), facts_of(**prefer(**wish)))

    assert rule_of(caught.value, "a") == rule


def test_own_machine_stores_nothing_and_satisfies_both_data_wishes() -> None:
    policy = load_policy(
        b"version: 1\nproviders: {own: {base_url: 'http://10.0.0.1/v1', network: private, "
        b"self_hosted: {usd_per_hour: 1}}}\nmodels: {m: [{provider: own, model: x}]}",
        environ=None,
    )
    wishes = facts_of(**prefer(data_collection="deny", zdr=True))

    assert order_of(decide_on(policy, view_of(policy), wishes)) == ["own"]


def test_unknown_capabilities_context_and_parameters_do_not_exclude() -> None:
    policy = policy_of("a")
    facts = facts_of(
        needs=frozenset({"tools", "vision"}),
        prompt_tokens=10**6,
        parameters=frozenset({"odd"}),
        **prefer(require_parameters=True),
    )

    assert order_of(decide_on(policy, view_of(policy), facts)) == ["a"]


def test_json_schema_implies_json_object_but_not_the_other_way() -> None:
    policy = policy_of("a, capabilities: [json_schema]", "b, capabilities: [json_object]")
    view = view_of(policy)
    both = decide_on(policy, view, facts_of(needs=frozenset({"json_object"})))
    one = decide_on(policy, view, facts_of(needs=frozenset({"json_schema"})))

    assert sorted(order_of(both)) == ["a", "b"]
    assert order_of(one) == ["a"]


def test_chat_and_messages_are_served_by_translation_and_nothing_else_is() -> None:
    policy = policy_of("a, surfaces: [chat]", "b, surfaces: [messages]")
    view = view_of(policy)

    assert len(decide_on(policy, view, facts_of(surface=Surface.CHAT)).order) == 2
    assert len(decide_on(policy, view, facts_of(surface=Surface.MESSAGES)).order) == 2
    with pytest.raises(NoEligibleEndpoint):
        decide_on(policy, view, facts_of(surface=Surface.RESPONSES))
    with pytest.raises(NoEligibleEndpoint):
        decide_on(policy, view, facts_of(surface=Surface.COUNT_TOKENS))


def test_special_tiers_open_only_to_those_who_ask() -> None:
    policy = policy_of("std", "pri, tier: priority", "flx, tier: flex", "bat, tier: batch")
    view = view_of(policy)

    def tiers(**facts: object) -> set[str]:
        return set(order_of(decide_on(policy, view, facts_of(**facts))))

    assert tiers() == {"std"}
    assert tiers(suffix="nitro") == {"std", "pri"}
    assert tiers(service_tier="priority") == {"std", "pri"}
    assert tiers(suffix="floor") == {"std", "flx"}
    assert tiers(lane=Lane.BATCH) == {"std", "flx", "bat"}


def test_key_that_is_not_set_excludes_its_endpoints() -> None:
    text = (
        b"version: 1\nproviders: {a: {base_url: 'https://a.example/v1', key_env: A_KEY}}\n"
        b"models: {m: [{provider: a, model: x, price: {input: 1, output: 1}}]}"
    )
    without, with_key = (load_policy(text, environ=e) for e in ({}, {"A_KEY": "v"}))
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(without, view_of(without))

    assert rule_of(caught.value, "a") == "key"
    assert "A_KEY is not set" in caught.value.message
    assert order_of(decide_on(with_key, view_of(with_key))) == ["a"]


@pytest.mark.parametrize(
    ("more", "limit", "is_used"),
    [
        ("", "", False),
        ("unpriced: allow", "", True),
        ("unpriced: {rule: cap, usd_per_million_tokens: 30}", "", True),
        ("unpriced: allow", ", price_max: {input: 100}", False),
    ],
)
def test_unpriced_endpoint_is_used_only_where_the_policy_allows(
    more: str, limit: str, is_used: bool
) -> None:
    text = (
        "version: 1\nproviders: {a: {base_url: 'https://a.example/v1'}}\n"
        f"models: {{m: [{{provider: a, model: x}}]}}\n{more}\n"
        f"routes: [{{name: r, prefer: {{by: fastest{limit}}}}}]"
    )
    policy = load_policy(text.encode(), environ=None)
    if is_used:
        assert order_of(decide_on(policy, view_of(policy))) == ["a"]
    else:
        with pytest.raises(NoEligibleEndpoint):
            decide_on(policy, view_of(policy))


def test_unpriced_endpoint_is_not_for_keys_with_a_budget_unless_a_price_is_assumed() -> None:
    text = (
        "version: 1\nproviders: {a: {base_url: 'https://a.example/v1'}}\n"
        "models: {m: [{provider: a, model: x}]}\nunpriced: "
    )
    allowing = load_policy((text + "allow").encode(), environ=None)
    capping = load_policy((text + "{rule: cap, usd_per_million_tokens: 30}").encode(), environ=None)
    with pytest.raises(NoEligibleEndpoint, match="no budget can be kept"):
        decide_on(allowing, view_of(allowing), facts_of(has_budget=True))

    assert order_of(decide_on(capping, view_of(capping), facts_of(has_budget=True))) == ["a"]


def test_route_price_limit_is_a_hard_filter() -> None:
    route = "[{name: r, prefer: {by: fastest, price_max: {input: 3, output: 15}}}]"
    within, above = "price: {input: 3, output: 15}", "price: {input: 3, output: 15.01}"
    policy = policy_of(f"a, {within}", f"b, {above}", routes=route)

    assert order_of(decide_on(policy, view_of(policy))) == ["a"]


def test_tried_endpoint_is_left_out_of_a_retry() -> None:
    policy = policy_of("a", "b")
    plan = decide_on(policy, view_of(policy), tried=("a/x",))

    assert order_of(plan) == ["b"]
    assert reason_of(plan, "a").startswith("tried: ")


def test_open_breaker_excludes_and_half_open_may_appear() -> None:
    policy = policy_of("a", "b", "c")
    view = view_of(
        policy, live={"b": {"breaker": "open", "reopens_in_s": 7.0}, "c": {"breaker": "half_open"}}
    )
    plan = decide_on(policy, view)

    assert sorted(order_of(plan)) == ["a", "c"]
    assert reason_of(plan, "b") == "breaker: open, may be tried again in 7 s"


def test_panic_tries_the_one_that_reopens_soonest_alone() -> None:
    policy = policy_of("a", "b", "c, surfaces: [embeddings]")
    view = view_of(
        policy,
        live={
            "a": {"breaker": "open", "reopens_in_s": 9.0},
            "b": {"breaker": "open", "reopens_in_s": 4.0},
            "c": {"breaker": "open", "reopens_in_s": 1.0},
        },
    )
    plan = decide_on(policy, view)

    assert order_of(plan) == ["b"]
    assert plan.candidates[0].reason.startswith("panic: ")


def test_full_endpoints_are_left_out_and_waiting_is_advised_when_all_are_full() -> None:
    policy = policy_of("a", "b")
    full = {"in_flight": 4, "capacity": 4.0}
    plan = decide_on(policy, view_of(policy, live={"a": full}))
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy, live={"a": full, "b": {"breaker": "open"}}))

    assert order_of(plan) == ["b"]
    assert caught.value.is_capacity
    assert {rule_of(caught.value, "a"), rule_of(caught.value, "b")} == {"capacity", "breaker"}


def test_no_eligible_endpoint_names_the_rule_of_each() -> None:
    policy = policy_of("a, context: 10", "b, surfaces: [embeddings]")
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy))

    assert not caught.value.is_capacity
    assert "a/x (context: " in caught.value.message
    assert "b/x (surface: " in caught.value.message


def test_unknown_model_is_not_found_and_names_what_exists() -> None:
    policy = policy_of("a")
    with pytest.raises(UnknownModel) as caught:
        decide_on(policy, view_of(policy), facts_of(models=("gpt-9",)))

    assert "'gpt-9'" in caught.value.message
    assert "known: m" in caught.value.message


def test_a_prompt_beyond_every_window_is_the_callers_error_with_the_code_clients_look_for() -> None:
    policy = policy_of("a, context: 10", "b, context: 99")
    with pytest.raises(NoEligibleEndpoint) as caught:
        decide_on(policy, view_of(policy), facts_of(prompt_tokens=100))

    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
