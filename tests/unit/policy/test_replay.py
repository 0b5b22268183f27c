"""A decision repeats exactly from its stored record: facts, view, policy text and seed."""

from __future__ import annotations

import random
from math import log

import msgspec

from gateway.core import (
    Candidate,
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    Lane,
    Plan,
    ProviderPreferences,
    RequestFacts,
)
from gateway.errors import NoEligibleEndpoint
from gateway.policy.decide import decide
from gateway.policy.explain import candidates_of
from gateway.policy.load import load_policy
from gateway.policy.policy import Policy
from gateway.stats.seeded import Seeded
from gateway.wire.pieces import Surface

NUM_CASES = 1_000
NAMES = "abcdefgh"
ROUTES = (
    "[{name: b, match: {lane: batch}, prefer: {by: cheapest, deadline: 30s}}, "
    "{name: s, match: {stream: true}, prefer: {by: fastest, price_max: {input: 8}}}, "
    "{name: r, prefer: {by: balanced}}]"
)


def random_policy_text(rng: random.Random) -> str:
    lines = ["version: 1", "providers:"]
    lines += [f"  {n}: {{base_url: 'https://{n}.example/v1'}}" for n in NAMES]
    lines += ["models:"]
    for model in ("m", "n"):
        lines.append(f"  {model}:")
        for name in rng.sample(NAMES, rng.randint(2, len(NAMES))):
            scale = rng.choice((10, 1_000))
            price = (
                f"{{input: {rng.randint(0, 100) / scale}, output: {rng.randint(1, 200) / scale}}}"
            )
            tier = rng.choice(("standard", "standard", "standard", "priority", "flex"))
            lines.append(
                f"    - {{provider: {name}, model: {model}, price: {price}, tier: {tier}}}"
            )
    return "\n".join([*lines, f"routes: {ROUTES}"])


def random_view(rng: random.Random, policy: Policy) -> FleetView:
    stats, live = {}, {}
    for eid in policy.endpoints:
        if rng.random() < 0.9:
            stats[eid] = EndpointStats(
                endpoint_id=eid,
                ttft_base_s=rng.uniform(0.1, 2),
                prefill_tokens_per_s=rng.uniform(500, 20_000),
                ttft_mu=log(rng.uniform(0.1, 5)),
                ttft_sigma=rng.uniform(0.3, 0.9),
                ttft_n=rng.uniform(1, 20),
                rate_mu=log(rng.uniform(5, 500)),
                rate_sigma=rng.uniform(0.2, 0.8),
                rate_n=rng.uniform(1, 20),
                success_p=rng.uniform(0.3, 1),
                success_n=10.0,
                failure_lost_s=rng.uniform(0, 20),
                sample_age_s=rng.choice((None, 5.0, 900.0)),
                e2e_base_s=rng.choice((None, rng.uniform(0.1, 4))),
                e2e_s_per_token=rng.uniform(0.001, 0.1),
                e2e_n=rng.uniform(0, 60),
            )
        if rng.random() < 0.9:
            live[eid] = EndpointLive(
                endpoint_id=eid,
                in_flight=rng.randint(0, 12),
                capacity=rng.uniform(2, 20),
                breaker=rng.choice(("closed",) * 6 + ("open", "half_open")),
                reopens_in_s=rng.uniform(0, 60),
                cached_tokens=rng.choice((0, rng.randint(0, 4_000))),
                is_last_used=rng.random() < 0.1,
            )
    prices = {eid: endpoint.prices for eid, endpoint in policy.endpoints.items()}
    snapshot = FleetSnapshot(id=f"s{rng.random()}", at_unix_s=1.5e9, stats=stats, prices=prices)
    return FleetView(
        snapshot=snapshot,
        live=live,
        output_tokens_expected=rng.uniform(1, 2_000),
        exploration_credits=rng.choice((0.0, 0.5, 7.0)),
    )


def random_facts(rng: random.Random) -> RequestFacts:
    return RequestFacts(
        request_id="r",
        surface=rng.choice((Surface.CHAT, Surface.MESSAGES, Surface.EMBEDDINGS)),
        models=rng.choice((("m",), ("n",), ("m", "n"))),
        stream=rng.random() < 0.6,
        lane=rng.choice((Lane.INTERACTIVE, Lane.INTERACTIVE, Lane.BATCH)),
        prompt_tokens=rng.randint(1, 5_000),
        max_tokens=rng.choice((None, rng.randint(1, 3_000))),
        suffix=rng.choice(("", "", "", "nitro", "floor")),
        affinity_key=rng.choice(("", f"{rng.getrandbits(128):032x}")),
        session_key=rng.choice(("", "s")),
        no_explore=rng.random() < 0.2,
        num_choices=rng.randint(1, 3),
        preferences=rng.choice(
            (
                ProviderPreferences(),
                ProviderPreferences(sort="price", partition="none"),
                ProviderPreferences(order=("c", "a"), ignore=("b",)),
                ProviderPreferences(preferred_min_throughput=(("p90", 40.0),)),
                ProviderPreferences(max_price=(("prompt", 5.0),), allow_fallbacks=False),
            )
        ),
    )


def outcome(
    facts: RequestFacts, view: FleetView, policy: Policy, seed: int
) -> tuple[Plan, tuple[Candidate, ...]] | object:
    """The plan with its candidates, or why there is none."""
    try:
        plan = decide(facts, view, policy, Seeded(seed), seed=seed)
    except NoEligibleEndpoint as error:
        return error.detail
    return plan, candidates_of(plan, facts, view, policy)


def test_a_thousand_decisions_repeat_exactly_from_json() -> None:
    """Also: a plan survives JSON itself, and its terms add up."""
    rng = random.Random(20_261_129)
    num_explored = num_refused = 0
    kinds = set()
    for case in range(NUM_CASES):
        if case % 50 == 0:
            text = random_policy_text(rng)
            policy = load_policy(text.encode(), environ=None)
        view, facts, seed = random_view(rng, policy), random_facts(rng), rng.getrandbits(60)
        first = outcome(facts, view, policy, seed)

        again = outcome(
            msgspec.json.decode(msgspec.json.encode(facts), type=RequestFacts),
            msgspec.json.decode(msgspec.json.encode(view), type=FleetView),
            load_policy(text.encode(), environ=None) if case % 100 == 0 else policy,
            seed,
        )

        assert again == first
        if not isinstance(first, tuple):
            num_refused += 1
            continue
        plan, candidates = first
        num_explored += plan.explored
        kinds.add((plan.preference, candidates[0].reason.split(":")[0]))
        assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
        check_plan(plan, candidates, facts, policy)

    assert num_explored > 5
    assert 0 < num_refused < NUM_CASES / 2
    assert len(kinds) > 8


def check_plan(
    plan: Plan, candidates: tuple[Candidate, ...], facts: RequestFacts, policy: Policy
) -> None:
    pool = {one.id for model in facts.models for one in policy.pools[model]}
    listed = [candidate.endpoint_id for candidate in candidates]
    assert set(listed) == pool
    assert len(listed) == len(set(listed))
    assert plan.order[0] == candidates[0].endpoint_id
    assert candidates[0].outcome == "chosen"
    for candidate in candidates:
        terms = candidate.terms
        assert (terms is None) == (candidate.outcome == "excluded")
        assert (candidate.outcome in ("chosen", "fallback")) == (
            candidate.endpoint_id in plan.order
        )
        if terms is not None:
            total = terms.load * (terms.ttft_s + terms.decode_s) + terms.failure_s + terms.cost_s
            assert abs(total - terms.score_s) < 1e-9 * max(1.0, total)
            assert terms.cached_tokens + terms.uncached_tokens == facts.prompt_tokens
