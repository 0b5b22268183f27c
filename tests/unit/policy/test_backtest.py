"""What is predicted, what is real, and which prices a policy of another time goes by."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from gateway.core import FleetView, Lane, PriceRow, RequestFacts
from gateway.policy.backtest import (
    Outcome,
    Record,
    judge,
    moved_between,
    predict,
    priced_by,
    seen_by,
    shift,
)
from gateway.policy.decide import decide
from gateway.policy.load import load_policy
from gateway.policy.policy import Policy
from gateway.stats.seeded import Seeded
from tests.support.deciding import decide_on, facts_of, policy_of, stats_of, view_of

CHEAPEST = "[{name: all, prefer: {by: cheapest}}]"
DEAR_AND_CHEAP = ("fast, price: {input: 3, output: 15}", "slow, price: {input: 0.1, output: 0.4}")
FAST, SLOW = "fast/x", "slow/x"


def world() -> tuple[Policy, FleetView]:
    policy = policy_of(*DEAR_AND_CHEAP)
    return policy, view_of(policy, {"fast": {"rate": 150}, "slow": {"rate": 30}})


def record_of(view: FleetView, chosen: str, *, seed: int = 7, **outcome: float) -> Record:
    given = {"time_s": 2.0, "cost_nanos": 5, "output_tokens": 100.0, **outcome}
    return Record(
        facts=facts_of(),
        view=view,
        seed=seed,
        chosen=chosen,
        outcome=msgspec.convert(given, Outcome, strict=False),
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_prediction_is_the_score_formulas_own_time_and_cost(stream: bool) -> None:
    policy, _ = world()
    live: dict[str, dict[str, Any]] = {
        "fast": {"in_flight": 3, "capacity": 3.0},
        "slow": {"cached_tokens": 40},
    }
    whole = {"e2e_base_s": 0.2, "e2e_s_per_token": 0.01, "e2e_n": 9e6}
    view = view_of(policy, {"slow": {"rate": 30, **whole}}, live, output_tokens_expected=120.0)
    facts = facts_of(stream=stream, prompt_tokens=900)
    terms = {each.endpoint_id: each.terms for each in decide_on(policy, view, facts).candidates}

    found = predict(facts, view, policy, SLOW, 120.0)

    told = terms[SLOW]
    assert told is not None
    assert found.time_s == pytest.approx(told.time_s)
    assert found.cost_nanos == told.cost_nanos
    if not stream:  # judged by whole answers
        assert found.time_s == pytest.approx(0.2 + 120 * 0.01)
    # One that is full is not a candidate, and can be predicted all the same: with its queue.
    assert terms[FAST] is None
    assert predict(facts, view, policy, FAST, 120.0).time_s == pytest.approx(
        4 / 3 * (0.5 * (1 + 900 / 3500) + 120 / 50)
    )


def test_longer_answers_take_and_cost_more_and_embeddings_have_none() -> None:
    policy, view = world()
    short, long = (predict(facts_of(), view, policy, FAST, tokens) for tokens in (10.0, 1_000.0))

    assert long.time_s - short.time_s == pytest.approx(990 / 150)
    assert long.cost_nanos - short.cost_nanos == 990 * 15_000
    embeddings = facts_of(surface="embeddings", stream=False)
    assert predict(embeddings, view, policy, FAST, 500.0) == predict(
        embeddings, view, policy, FAST, 0.0
    )


@pytest.mark.parametrize(("ttft_sigma", "rate_sigma"), [(0.3, 0.2), (0.7, 0.1), (0.1, 0.6)])
def test_nine_in_ten_requests_end_inside_the_interval(ttft_sigma: float, rate_sigma: float) -> None:
    policy, _ = world()
    stats = {"ttft_sigma": ttft_sigma, "rate_sigma": rate_sigma, "ttft_s": 1.0, "rate": 50}
    view = view_of(policy, {"fast": stats})
    found = predict(facts_of(prompt_tokens=0), view, policy, FAST, 60.0)
    rng = random.Random(4)
    times = [
        rng.lognormvariate(0, ttft_sigma) + 60 / 50 * rng.lognormvariate(0, rate_sigma)
        for _ in range(20_000)
    ]

    below = sum(time_s < found.time_p5_s for time_s in times) / len(times)
    above = sum(time_s > found.time_p95_s for time_s in times) / len(times)
    assert 0.035 <= below <= 0.065
    assert 0.035 <= above <= 0.065
    assert found.time_p5_s < found.time_s < found.time_p95_s
    assert found.time_at(-1.6448536269514722) == pytest.approx(found.time_p5_s)
    assert found.time_at(1.6448536269514722) == pytest.approx(found.time_p95_s)


def test_a_belief_on_few_samples_has_a_wider_interval() -> None:
    policy, _ = world()
    sure, unsure = (
        predict(
            facts_of(), view_of(policy, {"fast": {"ttft_n": n, "rate_n": n}}), policy, FAST, 9.0
        )
        for n in (1e6, 2.0)
    )

    assert unsure.time_p95_s / unsure.time_p5_s > 1.15 * sure.time_p95_s / sure.time_p5_s
    assert unsure.time_s == sure.time_s


def test_where_the_choice_is_the_same_the_outcome_is_the_real_one() -> None:
    policy, view = world()
    judged = judge(record_of(view, FAST, time_s=9.25, cost_nanos=77), policy)

    assert (judged.endpoint_id, judged.is_predicted) == (FAST, False)
    assert (judged.time_s, judged.cost_nanos) == (9.25, 77)


def test_where_it_is_another_the_outcome_is_predicted_for_the_real_length() -> None:
    _, view = world()
    cheapest = policy_of(*DEAR_AND_CHEAP, routes=CHEAPEST)
    record = record_of(view, FAST, output_tokens=300, prompt_tokens=50, wait_s=0.25)
    judged = judge(record, cheapest)
    told = predict(facts_of(prompt_tokens=50), view, cheapest, SLOW, 300.0)

    assert (judged.endpoint_id, judged.is_predicted, judged.was_unseen) == (SLOW, True, False)
    assert judged.expected_s == pytest.approx(0.25 + told.time_s)
    assert judged.cost_nanos == told.cost_nanos == 50 * 100 + 300 * 400
    assert judged == judge(record, cheapest)  # its residual too


def test_residuals_have_the_spread_of_the_belief() -> None:
    _, view = world()
    cheapest = policy_of(*DEAR_AND_CHEAP, routes=CHEAPEST)
    told = predict(facts_of(), view, cheapest, SLOW, 100.0)
    seeds = random.Random(2)
    times = []
    for _ in range(2_000):
        judged = judge(record_of(view, FAST, seed=seeds.getrandbits(53)), cheapest)
        assert judged.time_s is not None
        times.append(judged.time_s)

    inside = sum(told.time_p5_s <= time_s <= told.time_p95_s for time_s in times) / len(times)
    assert 0.88 <= inside <= 0.92


def test_one_without_an_outcome_counts_for_shares_only() -> None:
    _, view = world()
    failed = msgspec.structs.replace(record_of(view, FAST), outcome=None)
    for routes in ("[{name: all, prefer: {by: fastest}}]", CHEAPEST):
        judged = judge(failed, policy_of(*DEAR_AND_CHEAP, routes=routes))
        assert judged.endpoint_id
        assert judged.time_s is None
        assert judged.cost_nanos is None


def test_a_refusal_names_its_rules() -> None:
    _, view = world()
    capped = policy_of(
        *DEAR_AND_CHEAP, routes="[{name: all, prefer: {by: fastest, price_max: {output: 0.1}}}]"
    )
    other_model = policy_of("other", others="  n: [{provider: other, model: y}]")
    unknown = msgspec.structs.replace(record_of(view, FAST), facts=facts_of(models=("gone",)))

    assert judge(record_of(view, FAST), capped).refusal == "price_max"
    assert judge(unknown, other_model).refusal == "model_not_found"
    assert judge(unknown, other_model).endpoint_id == ""


def test_prices_that_either_policy_states_are_not_the_others() -> None:
    then = policy_of("stated, price: {input: 3, output: 15}", "listed", "gone")
    now = policy_of(
        "stated, price: {input: 1, output: 2}", "listed, price: null", "new, price: null"
    )
    listed = PriceRow(source="genai-prices", input=9, output=9)
    view = view_of(then)
    recorded = {**view.snapshot.prices, "listed/x": (listed,)}
    snapshot = msgspec.structs.replace(view.snapshot, prices=recorded)
    looked_up = PriceRow(source="genai-prices", input=4, output=4)
    seen = priced_by(snapshot, now, lambda endpoint, at_s: (looked_up,))

    assert seen.prices["stated/x"] == now.endpoints["stated/x"].prices
    assert seen.prices["listed/x"] == (listed,)  # as it was then
    assert seen.prices["new/x"] == (looked_up,)
    assert "gone/x" not in seen.prices
    # What the policy of then stated and this one does not is looked up.
    unstated = policy_of("stated, price: null")
    assert priced_by(snapshot, unstated, lambda endpoint, at_s: (looked_up,)).prices == {
        "stated/x": (looked_up,)
    }


def test_a_price_in_the_new_policy_changes_its_own_choice() -> None:
    _, view = world()
    cheaper = policy_of("fast, price: {input: 0, output: 0}", DEAR_AND_CHEAP[1], routes=CHEAPEST)
    record = record_of(view, SLOW)
    seen = seen_by(view, priced_by(view.snapshot, cheaper))

    assert judge(record, policy_of(*DEAR_AND_CHEAP, routes=CHEAPEST)).endpoint_id == SLOW
    assert judge(record, cheaper, seen).endpoint_id == FAST


def test_an_endpoint_that_led_elsewhere_is_as_good_as_never_measured() -> None:
    then = policy_of("a", "b")
    now = load_policy(
        b"version: 1\nproviders: {a: {base_url: 'https://elsewhere.example/v1'}}\n"
        b"models: {m: [{provider: a, model: x, price: {input: 1, output: 2}}]}",
        environ=None,
    )
    moved = moved_between(then, now)
    view = view_of(then, {"a": {"rate": 9_000}}, {"a": {"in_flight": 50}})
    seen = seen_by(view, priced_by(view.snapshot, now, moved=moved), moved)
    judged = judge(record_of(view, "a/x"), now, seen, moved)

    assert moved == {"a/x"}
    assert judged.is_predicted  # the same id, but not the same endpoint
    assert judged.was_unseen
    assert predict(facts_of(), seen, now, "a/x", 60.0).time_s > 1.0
    assert moved_between(then, then) == frozenset()


def test_an_endpoint_that_the_record_does_not_know_is_taken_as_idle_and_says_so() -> None:
    _, view = world()
    more = policy_of(*DEAR_AND_CHEAP, "new, price: {input: 0, output: 0}", routes=CHEAPEST)
    judged = judge(record_of(view, FAST), more, seen_by(view, priced_by(view.snapshot, more)))

    assert judged.endpoint_id == "new/x"
    assert judged.was_unseen


def asked_many(num: int) -> list[RequestFacts]:
    rng = random.Random(8)
    return [
        facts_of(
            prompt_tokens=rng.randint(1, 4_000),
            stream=rng.random() < 0.5,
            lane=rng.choice((Lane.INTERACTIVE, Lane.BATCH)),
            max_tokens=rng.choice((None, 50)),
        )
        for _ in range(num)
    ]


def test_the_policy_of_the_time_decides_as_it_did() -> None:
    policy = policy_of("a", "b", "c")
    view = view_of(policy, {"a": {"ttft_n": 4, "rate_n": 4}, "b": {"ttft_n": 4}, "c": {}})
    seen = seen_by(view, priced_by(view.snapshot, policy))
    for seed, facts in enumerate(asked_many(300)):
        plan = decide(facts, view, policy, Seeded(seed), seed=seed)
        record = Record(facts=facts, view=view, seed=seed, chosen=plan.order[0])
        judged = judge(record, policy, seen)
        assert (judged.endpoint_id, judged.is_predicted) == (plan.order[0], False)


def test_a_shift_compares_two_predictions() -> None:
    policy, view = world()
    view = msgspec.structs.replace(view, output_tokens_expected=400.0)
    cheapest = policy_of(*DEAR_AND_CHEAP, routes=CHEAPEST)
    facts = facts_of(max_tokens=100)
    plan = decide(facts, view, policy, Seeded(3), seed=3)

    found = shift(facts, plan, view, policy, cheapest, view)
    assert (found.live, found.shadow, found.route, found.is_agreed) == (FAST, SLOW, "all", False)
    ours, theirs = (predict(facts, view, policy, each, 100.0) for each in (FAST, SLOW))
    assert (found.live_s, found.shadow_s) == (ours.time_s, theirs.time_s)
    assert found.shadow_nanos < found.live_nanos
    same = shift(facts, plan, view, policy, policy, view)
    assert same.is_agreed
    assert (same.live_s, same.live_nanos) == (same.shadow_s, same.shadow_nanos)
    none = shift(facts, plan, view, policy, policy_of("fast, surfaces: [embeddings]"), view)
    assert (none.shadow, none.refusal, none.is_agreed) == ("", "surface", False)


def test_stats_of_a_belief_without_spread_still_have_an_interval() -> None:
    policy, _ = world()
    view = view_of(policy)
    flat = stats_of(FAST, ttft_sigma=0.0, rate_sigma=0.0, sample_age_s=0.0)
    snapshot = msgspec.structs.replace(view.snapshot, stats={FAST: flat})
    found = predict(facts_of(), seen_by(view, snapshot), policy, FAST, 10.0)

    assert math.isclose(found.time_p5_s, found.time_p95_s, rel_tol=0.01)
    assert found.time_at(3.0) == pytest.approx(found.time_s, rel=0.01)
