"""The choice among those who may serve: score, draws, affinity, sorts (reliability B.3, B.4)."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.core import Lane, ProviderPreferences
from gateway.wire.pieces import Surface
from tests.support.deciding import decide_on, facts_of, order_of, policy_of, view_of

BATCH = "[{name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 60s}}]"


def prefer(**fields: object) -> dict[str, object]:
    return {"preferences": ProviderPreferences(**fields)}


def test_short_answer_goes_to_the_quick_starter_and_long_answer_to_the_fast_decoder() -> None:
    policy = policy_of("a", "b")
    speeds = {"a": {"ttft_s": 0.2, "rate": 30}, "b": {"ttft_s": 2.0, "rate": 300}}

    short = decide_on(policy, view_of(policy, speeds, output_tokens_expected=10))
    long = decide_on(policy, view_of(policy, speeds, output_tokens_expected=2_000))

    assert order_of(short) == ["a", "b"]
    assert order_of(long) == ["b", "a"]


def test_max_tokens_caps_the_expected_output() -> None:
    policy = policy_of("a", "b")
    speeds = {"a": {"ttft_s": 0.2, "rate": 30}, "b": {"ttft_s": 2.0, "rate": 300}}
    view = view_of(policy, speeds, output_tokens_expected=2_000)

    assert order_of(decide_on(policy, view, facts_of(max_tokens=10))) == ["a", "b"]


def test_terms_add_up_to_the_score() -> None:
    policy = policy_of("a", routes="[{name: r, prefer: {by: balanced, usd_per_second: 0.001}}]")
    view = view_of(
        policy,
        {"a": {"ttft_s": 0.4, "rate": 40, "success_p": 0.8, "failure_lost_s": 3.0, "waste": 1.5}},
        {"a": {"in_flight": 9, "capacity": 5.0 + 15.0, "cached_tokens": 60}},
        output_tokens_expected=100,
    )
    terms = decide_on(policy, view).candidates[0].terms

    assert terms is not None
    assert (terms.cached_tokens, terms.uncached_tokens) == (60, 40)
    assert terms.load == 1.0
    assert terms.ttft_s == pytest.approx(0.4 * (1 + 40 / (7_000 * 0.5)))
    assert terms.decode_s == pytest.approx(100 / 40)
    assert terms.failure_s == pytest.approx(0.2 / 0.8 * 3.0)
    assert terms.cost_nanos == int((40 * 1_000 + 60 * 1_000 + 100 * 2_000) * 1.5)
    assert terms.cost_s == pytest.approx(terms.cost_nanos / (0.001 * 1e9))
    assert terms.score_s == pytest.approx(
        terms.load * (terms.ttft_s + terms.decode_s) + terms.failure_s + terms.cost_s
    )


def test_load_beyond_capacity_stretches_the_time() -> None:
    policy = policy_of("a", "b")
    speeds = {"a": {"rate": 100}, "b": {"rate": 60}}
    idle = view_of(policy, speeds, {"a": {"in_flight": 3, "capacity": 4}})
    busy = view_of(policy, speeds, {"a": {"in_flight": 3, "capacity": 3.5}})

    assert order_of(decide_on(policy, idle)) == ["a", "b"]
    assert decide_on(policy, busy).candidates[0].terms.load == pytest.approx(4 / 3.5)


def test_unreliable_endpoint_pays_for_its_failures_in_seconds() -> None:
    policy = policy_of("a", "b")
    view = view_of(
        policy, {"a": {"rate": 100, "success_p": 0.5, "failure_lost_s": 10.0}, "b": {"rate": 50}}
    )

    assert order_of(decide_on(policy, view)) == ["b", "a"]


def test_embeddings_cost_and_take_no_output_and_use_end_to_end_times() -> None:
    policy = policy_of("a", "b")
    view = view_of(
        policy,
        {
            "a": {"ttft_s": 0.1, "e2e_base_s": 3.0, "e2e_s_per_token": 0.0, "e2e_n": 20.0},
            "b": {"ttft_s": 1.0},
        },
    )
    plan = decide_on(policy, view, facts_of(surface=Surface.EMBEDDINGS, stream=False))

    assert order_of(plan) == ["b", "a"]
    assert plan.candidates[1].terms.time_s == pytest.approx(3.0)
    assert plan.candidates[0].terms.decode_s == 0.0
    assert plan.candidates[0].terms.cost_nanos == 100 * 1_000


def test_endpoint_that_the_snapshot_does_not_know_is_scored_by_the_prior() -> None:
    policy = policy_of("a")
    view = view_of(policy)
    view.snapshot.stats.clear()
    terms = decide_on(policy, view).candidates[0].terms

    assert terms.ttft_s == pytest.approx(0.5 * (1 + 100 / 3_500))


def test_endpoints_within_ten_percent_share_the_traffic() -> None:
    policy = policy_of("a", "b")
    view = view_of(policy, {n: {"rate": r, "rate_n": 4.0} for n, r in (("a", 100), ("b", 96))})
    firsts = Counter(order_of(decide_on(policy, view, seed=s))[0] for s in range(400))

    assert 100 < firsts["b"] < 300


def test_nothing_beyond_ten_percent_is_taken_without_a_credit() -> None:
    policy = policy_of("a", "b")
    view = view_of(policy, {"a": {"rate": 100}, "b": {"rate": 60, "rate_n": 3.0, "ttft_n": 3.0}})
    plans = [decide_on(policy, view, seed=s) for s in range(300)]

    assert {order_of(p)[0] for p in plans} == {"a"}
    assert not any(p.explored for p in plans)


def explorable():  # type: ignore[no-untyped-def]
    policy = policy_of("a", "b")
    speeds = {"a": {"rate": 100}, "b": {"rate": 80, "rate_n": 1.0, "rate_sigma": 0.6}}
    return policy, view_of(policy, speeds, exploration_credits=3.0)


def test_uncertain_endpoint_is_explored_for_a_credit() -> None:
    policy, view = explorable()
    plans = [decide_on(policy, view, seed=s) for s in range(300)]
    explored = [p for p in plans if p.explored]

    assert 20 < len(explored) < 200
    assert {order_of(p)[0] for p in explored} == {"b"}
    assert all("credit" in p.candidates[0].reason for p in explored)


@pytest.mark.parametrize("case", ["no_explore", "retry", "order", "sort"])
def test_nothing_is_explored_for(case: str) -> None:
    policy, view = explorable()
    facts, tried = facts_of(), ()
    if case == "no_explore":
        facts = facts_of(no_explore=True)
    elif case == "retry":
        tried = ("other/x",)
    elif case == "order":
        facts = facts_of(**prefer(order=("a",)))
    else:
        facts = facts_of(suffix="nitro")
    plans = [decide_on(policy, view, facts, seed=s, tried=tried) for s in range(200)]

    assert not any(p.explored for p in plans)
    assert {order_of(p)[0] for p in plans} == {"a"}


def test_exploration_share_of_zero_explores_nothing() -> None:
    policy = policy_of("a", "b", more="exploration: {share: 0}")
    _, view = explorable()

    assert not any(decide_on(policy, view, seed=s).explored for s in range(200))


def test_batch_request_probes_the_endpoint_unmeasured_for_ten_minutes() -> None:
    policy = policy_of("a", "b, price: {input: 2, output: 3}", routes=BATCH)
    view = view_of(policy, {"b": {"sample_age_s": 601.0}}, exploration_credits=1.0)
    plan = decide_on(policy, view, facts_of(lane=Lane.BATCH))

    assert order_of(plan) == ["b", "a"]
    assert plan.explored


@pytest.mark.parametrize(
    ("stats", "live", "price"),
    [
        ({"sample_age_s": 599.0}, {}, "{input: 2, output: 3}"),
        ({"sample_age_s": 601.0}, {"in_flight": 1}, "{input: 2, output: 3}"),
        ({"sample_age_s": 601.0}, {}, "{input: 2, output: 3000}"),
        ({"sample_age_s": 601.0}, {"was_probed": True}, "{input: 2, output: 3}"),
    ],
    ids=["measured lately", "a probe is under way", "dearer than a cent an hour", "probed lately"],
)
def test_batch_request_does_not_probe(stats: dict, live: dict, price: str) -> None:
    policy = policy_of("a", f"b, price: {price}", routes=BATCH)
    view = view_of(policy, {"b": stats}, {"b": live}, exploration_credits=5.0)
    plan = decide_on(policy, view, facts_of(lane=Lane.BATCH))

    assert order_of(plan) == ["a", "b"]
    assert not plan.explored


def test_last_used_endpoint_is_kept_within_ten_percent() -> None:
    policy = policy_of("a", "b")
    facts = facts_of(session_key="ab" * 16)
    live = {"b": {"is_last_used": True}}
    near = view_of(policy, {"a": {"rate": 100}, "b": {"rate": 96}}, live)
    far = view_of(policy, {"a": {"rate": 100}, "b": {"rate": 70}}, live)

    assert order_of(decide_on(policy, near, facts)) == ["b", "a"]
    assert "affinity" in decide_on(policy, near, facts).candidates[0].reason
    assert order_of(decide_on(policy, far, facts)) == ["a", "b"]


def test_home_of_a_prefix_is_stable_and_spreads_over_prefixes() -> None:
    policy = policy_of("a", "b", "c", "d")
    view = view_of(policy)
    homes = Counter()
    for prefix in range(400):
        key = f"{prefix * 0x9E3779B97F4A7C15 % 2**128:032x}"
        plans = {order_of(decide_on(policy, view, facts_of(affinity_key=key), seed=s))[0]
                 for s in range(2)}  # fmt: skip
        assert len(plans) == 1
        homes[plans.pop()] += 1

    assert min(homes.values()) > 60


def test_home_moves_on_when_it_holds_more_than_its_fair_share() -> None:
    policy = policy_of("a", "b")
    key = "0123456789abcdef" * 2
    home = order_of(decide_on(policy, view_of(policy), facts_of(affinity_key=key)))[0]
    crowded = view_of(policy, live={home: {"in_flight": 20}})

    assert order_of(decide_on(policy, crowded, facts_of(affinity_key=key)))[0] != home


def test_expected_cache_hit_is_cheaper_and_quicker() -> None:
    price = "price: {input: 10, output: 1, cached_read: 1}"
    policy = policy_of(f"a, {price}", f"b, {price}")
    view = view_of(policy, live={"b": {"cached_tokens": 50_000}})
    plan = decide_on(policy, view, facts_of(prompt_tokens=60_000))
    b, a = plan.candidates[0].terms, plan.candidates[1].terms

    assert order_of(plan) == ["b", "a"]
    assert b.cost_nanos == 10_000 * 10_000 + 50_000 * 1_000 + 200 * 1_000
    assert a.cost_nanos == 60_000 * 10_000 + 200 * 1_000
    assert b.ttft_s < a.ttft_s


def test_cheapest_keeps_the_deadline_at_its_95_percent_time() -> None:
    policy = policy_of("slow, price: {input: 1, output: 1}", "b, price: {input: 5, output: 5}",
                       routes=BATCH)  # fmt: skip
    mean_s = 0.5 * (1 + 100 / 3_500) + 200 / 4
    in_time = view_of(policy, {"slow": {"rate": 4.0, "rate_sigma": 0.01, "ttft_sigma": 0.01}})
    unsure = view_of(policy, {"slow": {"rate": 4.0, "rate_sigma": 0.2}})
    batch = facts_of(lane=Lane.BATCH)

    assert mean_s < 60
    assert order_of(decide_on(policy, in_time, batch)) == ["slow", "b"]
    assert order_of(decide_on(policy, unsure, batch)) == ["b", "slow"]


def test_cheapest_takes_the_fastest_when_none_keeps_the_deadline() -> None:
    policy = policy_of("a, price: {input: 1, output: 1}", "b, price: {input: 5, output: 5}",
                       routes=BATCH)  # fmt: skip
    view = view_of(policy, {"a": {"rate": 1.0}, "b": {"rate": 2.0}})

    assert order_of(decide_on(policy, view, facts_of(lane=Lane.BATCH))) == ["b", "a"]


def test_request_may_state_its_own_deadline() -> None:
    policy = policy_of("a, price: {input: 1, output: 1}", "b, price: {input: 5, output: 5}",
                       routes=BATCH)  # fmt: skip
    view = view_of(policy, {"a": {"rate": 20.0}, "b": {"rate": 200.0}})
    hurried = facts_of(lane=Lane.BATCH, deadline_s=5.0)

    assert order_of(decide_on(policy, view, facts_of(lane=Lane.BATCH))) == ["a", "b"]
    assert order_of(decide_on(policy, view, hurried)) == ["b", "a"]


def test_balanced_weighs_seconds_against_dollars() -> None:
    dear = "dear, price: {input: 0, output: 20}"
    cheap = "cheap, price: {input: 0, output: 1}"
    speeds = {"dear": {"rate": 100}, "cheap": {"rate": 50}}
    orders = {}
    for worth in ("0.00001", "0.1"):
        route = f"[{{name: r, prefer: {{by: balanced, usd_per_second: {worth}}}}}]"
        policy = policy_of(dear, cheap, routes=route)
        orders[worth] = order_of(decide_on(policy, view_of(policy, speeds)))

    assert orders == {"0.00001": ["cheap", "dear"], "0.1": ["dear", "cheap"]}


@pytest.mark.parametrize(
    ("facts", "first"),
    [
        (prefer(sort="price"), "cheap"),
        (prefer(sort="throughput"), "quick"),
        (prefer(sort="latency"), "early"),
        ({"suffix": "floor"}, "cheap"),
        ({"suffix": "nitro"}, "quick"),
    ],
    ids=["price", "throughput", "latency", "floor", "nitro"],
)
def test_sort_and_suffix_order_strictly(facts: dict, first: str) -> None:
    policy = policy_of("cheap, price: {input: 0.1, output: 0.1}", "quick", "early")
    view = view_of(policy, {"quick": {"rate": 500, "ttft_s": 3}, "early": {"ttft_s": 0.1},
                            "cheap": {"rate": 10, "ttft_s": 9}})  # fmt: skip

    assert order_of(decide_on(policy, view, facts_of(**facts)))[0] == first


def test_default_routes_send_streams_fast_batches_cheap_and_the_rest_balanced() -> None:
    policy = policy_of("a", routes="[]")
    view = view_of(policy)

    assert decide_on(policy, view).preference == "fastest"
    assert decide_on(policy, view, facts_of(lane=Lane.BATCH)).preference == "cheapest"
    assert decide_on(policy, view, facts_of(stream=False)).preference == "balanced"
