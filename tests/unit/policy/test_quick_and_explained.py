"""The quick decision and its explanation say the same, and the formula says what is documented."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import exp, isclose, log
from statistics import correlation, fmean, pstdev
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import (
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    Lane,
    MachineLoad,
    ProviderPreferences,
    RequestFacts,
    ScoreTerms,
)
from gateway.errors import NoEligibleEndpoint
from gateway.policy.asked import KINDS_MAX
from gateway.policy.decide import BALANCING, BAND, FIRST, decide, rank
from gateway.policy.explain import LOST, candidates_of
from gateway.policy.load import load_policy
from gateway.policy.marginal import added_seconds, cost_nanos
from gateway.policy.policy import Policy
from gateway.policy.schema import By
from gateway.policy.score import NOT_MEASURED, NUM_DRAWS, drawn_s
from gateway.prices.rows import bucket_picos
from gateway.stats.seeded import Seeded
from gateway.wire.pieces import Surface
from tests.support.deciding import decide_on, facts_of, policy_of, view_of

NUM_ENDPOINTS = 6
POLICY = load_policy(
    "\n".join(
        [
            "version: 1",
            "providers:",
            *[f"  p{i}: {{base_url: 'https://p{i}.example/v1'}}" for i in range(NUM_ENDPOINTS - 1)],
            "  own: {base_url: 'http://127.0.0.1:1/v1', network: private,",
            "        self_hosted: {usd_per_hour: 2.1, billing: on_demand}}",
            "models:",
            "  m:",
            "    - {provider: p0, model: x, price: {input: 1, output: 2, cached_read: 0.1}}",
            "    - {provider: p1, model: x, price: {input: 3, output: 15}, context: 3000}",
            "    - {provider: p2, model: x, price: {input: 0, output: 0.3}, max_output: 800}",
            "    - {provider: p3, model: x, price: {input: 9, output: 1, usd_per_request: 0.001},",
            "       capabilities: [text]}",
            "    - {provider: own, model: x}",
            "  n:",
            "    - {provider: p4, model: y, price: {input: 2, output: 2}, tier: flex}",
            "    - {provider: p0, model: x, price: {input: 1, output: 2, cached_read: 0.1}}",
            "routes:",
            "  - {name: b, match: {lane: batch}, prefer: {by: cheapest, deadline: 30s}}",
            "  - {name: k, match: {key: [k1]}, prefer: {by: latency}}",
            "  - {name: s, match: {stream: true}, prefer: {by: fastest, price_max: {input: 8}}}",
            "  - {name: long, match: {min_prompt_tokens: 2000}, prefer: {by: throughput}}",
            "  - {name: r, prefer: {by: balanced, usd_per_second: 0.001}}",
        ]
    ).encode(),
    environ=None,
)

positive = st.floats(0.05, 20.0)
beliefs = st.builds(
    EndpointStats,
    endpoint_id=st.just(""),
    ttft_base_s=positive,
    prefill_tokens_per_s=st.floats(100.0, 20_000.0),
    ttft_mu=st.floats(-3.0, 2.0),
    ttft_sigma=st.floats(0.01, 1.5),
    ttft_n=st.floats(0.5, 50.0),
    rate_mu=st.floats(1.0, 6.5),
    rate_sigma=st.floats(0.01, 1.5),
    rate_n=st.floats(0.5, 50.0),
    success_p=st.floats(0.0, 1.0),
    success_n=st.just(10.0),
    failure_lost_s=st.floats(0.0, 20.0),
    waste=st.floats(1.0, 2.0),
    sample_age_s=st.none() | st.floats(0.0, 2_000.0),
    e2e_base_s=st.none() | positive,
    e2e_s_per_token=st.none() | st.floats(0.001, 0.1),
    e2e_n=st.floats(0.0, 60.0),
)
machines = st.builds(
    MachineLoad,
    num_running=st.integers(0, 8),
    num_waiting=st.integers(0, 8),
    decode_step_s=st.sampled_from(((), ((1, 0.02), (8, 0.03)))),
    prefill_token_s=st.sampled_from((0.0, 1e-4)),
)
lives = st.builds(
    EndpointLive,
    endpoint_id=st.just(""),
    in_flight=st.integers(0, 12),
    breaker=st.sampled_from(("closed",) * 12 + ("open", "half_open")),
    reopens_in_s=st.floats(0.0, 60.0),
    cached_tokens=st.sampled_from((0, 0, 500, 9_000)),
    is_last_used=st.booleans(),
    is_home=st.booleans(),
    is_cooling=st.sampled_from((False,) * 15 + (True,)),
    was_probed=st.booleans(),
    is_full=st.sampled_from((False,) * 5 + (True,)),
    is_silent=st.sampled_from((False,) * 15 + (True,)),
    machine=st.none() | st.none() | machines,
)
wishes = st.sampled_from(
    (
        *(ProviderPreferences(),) * 8,
        ProviderPreferences(sort="latency"),
        ProviderPreferences(sort="price", partition="none"),
        ProviderPreferences(order=("p2", "p0"), ignore=("p1",)),
        ProviderPreferences(preferred_min_throughput=(("p90", 40.0),)),
        ProviderPreferences(max_price=(("prompt", 2.5),), allow_fallbacks=False),
    )
)
requests = st.builds(
    RequestFacts,
    request_id=st.just("r"),
    surface=st.sampled_from((Surface.CHAT, Surface.MESSAGES, Surface.EMBEDDINGS)),
    models=st.sampled_from((("m",), ("m",), ("n",), ("m", "n"), ("gone", "m"))),
    stream=st.booleans(),
    lane=st.sampled_from((Lane.INTERACTIVE, Lane.INTERACTIVE, Lane.BATCH)),
    key_id=st.sampled_from(("k0", "k0", "k0", "k1")),
    prompt_tokens=st.integers(1, 6_000),
    max_tokens=st.none() | st.integers(1, 2_000),
    needs=st.sampled_from((frozenset(), frozenset({"tools"}))),
    service_tier=st.sampled_from(("", "flex")),
    suffix=st.sampled_from(("",) * 6 + ("nitro", "floor")),
    affinity_key=st.sampled_from(("", "", "", "ab" * 16)),
    session_key=st.sampled_from(("", "", "", "s")),
    no_explore=st.booleans(),
    num_choices=st.integers(1, 3),
    deadline_s=st.none() | st.floats(0.1, 60.0),
    preferences=wishes,
)


@st.composite
def views(draw: st.DrawFn) -> FleetView:
    ids = list(POLICY.endpoints)
    stats = {eid: draw(beliefs) for eid in ids if draw(st.integers(0, 9))}
    if draw(st.booleans()):
        # Near equals, that a draw must decide between.
        near = {
            "ttft_mu": 0.0,
            "ttft_sigma": 0.5,
            "rate_sigma": 0.5,
            "success_p": 1.0,
            "waste": 1.0,
        }
        stats = {
            eid: msgspec.structs.replace(each, **near, rate_mu=draw(st.floats(3.9, 4.1)))
            for eid, each in stats.items()
        }
    live = {}
    for eid in ids:
        if draw(st.integers(0, 9)):
            one = draw(lives)
            # Full, with a part of a place left, and with room.
            room = draw(st.sampled_from((0.0, 0.5, 0.5, 1.0, 40.0, 40.0)))
            capacity = max(1.0, one.in_flight + room)
            live[eid] = msgspec.structs.replace(one, capacity=capacity)
    prices = {eid: endpoint.prices for eid, endpoint in POLICY.endpoints.items()}
    return FleetView(
        snapshot=FleetSnapshot(id="s", at_unix_s=0.0, stats=stats, prices=prices),
        live=live,
        output_tokens_expected=draw(st.floats(1.0, 2_000.0)),
        exploration_credits=draw(st.sampled_from((0.0, 5.0))),
    )


def test_plan_and_explanation_agree_on_order_and_scores() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=400, deadline=None, derandomize=True)
    @given(facts=requests, view=views(), seed=st.integers(0, 2**53 - 1))
    def agree(facts: RequestFacts, view: FleetView, seed: int) -> None:
        check_one(facts, view, seed, seen)

    agree()

    # The sample says something only if it is varied.
    assert min(seen["drawn"], seen["loaded"]) > 5


def check_one(facts: RequestFacts, view: FleetView, seed: int, seen: Counter[str]) -> None:
    try:
        plan = decide(facts, view, POLICY, Seeded(seed), seed=seed)
    except NoEligibleEndpoint:
        return
    candidates = candidates_of(plan, facts, view, POLICY)

    able = [each for each in candidates if each.terms is not None]
    in_order = [each.endpoint_id for each in able if each.outcome in ("chosen", "fallback")]
    assert tuple(in_order) == plan.order
    assert (able[0].outcome, able[0].reason) == ("chosen", plan.why)
    assert plan.cost_nanos == able[0].terms.cost_nanos
    for each in able:
        check_terms(each.endpoint_id, each.terms, facts, view)
    pool = {one.id for model in facts.models for one in POLICY.pools.get(model, ())}
    assert sorted(each.endpoint_id for each in candidates) == sorted(pool)
    is_one_place = len(facts.models) == 1 and not facts.preferences.preferred_min_throughput
    if plan.draw is not None and is_one_place:
        check_choice([each.terms for each in able], explored=plan.explored, view=view)
    seen["drawn"] += plan.draw is not None
    seen["loaded"] += any(each.terms.load > 1.0 for each in able)


def check_terms(endpoint_id: str, terms: ScoreTerms, facts: RequestFacts, view: FleetView) -> None:
    """Every term, by the formula as it is written down in reliability B.3."""
    endpoint = POLICY.endpoints[endpoint_id]
    stats = view.snapshot.stats.get(endpoint_id, NOT_MEASURED)
    live = view.live.get(endpoint_id, EndpointLive(endpoint_id=""))
    output = 0.0
    if facts.surface is not Surface.EMBEDDINGS:
        output = min(view.output_tokens_expected, float(facts.max_tokens or 1e9))
    cached = min(live.cached_tokens, facts.prompt_tokens)
    uncached = facts.prompt_tokens - cached
    is_whole = not facts.stream and stats.e2e_base_s is not None
    if is_whole and (not output or stats.e2e_n > stats.ttft_n):
        ttft_s, decode_s = stats.e2e_base_s, output * (stats.e2e_s_per_token or 0.0)
    else:
        prefill = 1 + uncached / (stats.prefill_tokens_per_s * stats.ttft_base_s)
        ttft_s, decode_s = exp(stats.ttft_mu) * prefill, output / exp(stats.rate_mu)
    load = max(1.0, (live.in_flight + 1) / live.capacity)
    success = max(stats.success_p, 0.01)
    row = endpoint.prices[0] if endpoint.prices else None
    nanos = 0.0
    if row is not None:
        picos = uncached * row.input + cached * bucket_picos(row, "cached_read")
        picos += output * facts.num_choices * row.output
        nanos = picos * stats.waste / 1_000 + row.request_nanos
    added_s = None
    if endpoint.usd_per_hour_nanos is not None:
        added_s = added_seconds(
            live,
            prompt_tokens=uncached,
            output_tokens=output,
            others_tokens=view.output_tokens_expected,
            num_choices=facts.num_choices,
        )
    if added_s is not None:
        added_s *= stats.waste
        nanos = cost_nanos(endpoint.usd_per_hour_nanos or 0, added_s)

    assert (terms.cached_tokens, terms.uncached_tokens) == (cached, uncached)
    assert terms.load == pytest.approx(load)
    assert terms.ttft_s == pytest.approx(ttft_s)
    assert terms.decode_s == pytest.approx(decode_s)
    assert terms.time_s == pytest.approx(load * (ttft_s + decode_s))
    assert terms.failure_s == pytest.approx((1 - success) / success * stats.failure_lost_s)
    assert terms.cost_nanos == pytest.approx(nanos, abs=0.5001)
    assert terms.machine_s == pytest.approx(added_s)
    total = terms.load * (terms.ttft_s + terms.decode_s) + terms.failure_s + terms.cost_s
    assert isclose(total, terms.score_s, rel_tol=1e-9)


def check_choice(terms: list[ScoreTerms], *, explored: bool, view: FleetView) -> None:
    """A Thompson draw inside a 10 % band, or one paid for outside it; nothing drew better."""
    limit_s = BAND * min(each.score_s for each in terms)
    chosen = terms[0]
    assert explored == (chosen.score_s > limit_s)
    rivals = [each for each in terms if each.score_s <= limit_s]
    if explored:
        assert view.exploration_credits >= 1.0
        rivals = terms
    assert chosen.drawn_score_s == min(each.drawn_score_s for each in rivals)


@given(facts=st.lists(requests, min_size=2, max_size=12), view=views())
@settings(max_examples=60, deadline=None)
def test_what_is_kept_of_one_request_changes_nothing_for_the_next(
    facts: list[RequestFacts], view: FleetView
) -> None:
    """Each against a snapshot that nothing was worked out for before."""
    for each in facts:
        fresh = msgspec.structs.replace(view, snapshot=msgspec.structs.replace(view.snapshot))
        assert not fresh.snapshot.worked_out

        assert told(each, view, POLICY) == told(each, fresh, POLICY)


def told(facts: RequestFacts, view: FleetView, policy: Policy) -> object:
    try:
        plan = decide(facts, view, policy, Seeded(5), seed=5)
    except NoEligibleEndpoint as error:
        return error.detail
    return plan, candidates_of(plan, facts, view, policy)


def test_two_policies_share_a_snapshot_without_mixing() -> None:
    cheap = policy_of("a, price: {input: 1, output: 1}", "b, price: {input: 9, output: 9}",
                      routes="[{name: r, prefer: {by: price}}]")  # fmt: skip
    view = view_of(cheap, {"b": {"rate": 900}})
    fast = replace(cheap, routes=policy_of("a").routes)

    assert decide_on(cheap, view).order[0] == "a/x"
    assert decide_on(fast, view).order[0] == "b/x"
    assert decide_on(cheap, view).order[0] == "a/x"


def test_kinds_that_clients_make_up_are_forgotten() -> None:
    policy = policy_of("a", "b")
    view = view_of(policy)
    for number in range(2 * KINDS_MAX + 7):
        decide_on(policy, view, facts_of(service_tier=f"made-up-{number}"))

    (book,) = view.snapshot.worked_out.values()
    assert 0 < len(book.kinds) <= KINDS_MAX


def test_snapshot_in_json_and_in_comparison_is_its_fields_alone() -> None:
    policy = policy_of("a", "b")
    view = view_of(policy)
    plain = msgspec.json.encode(view)
    decide_on(policy, view)

    assert msgspec.json.encode(view) == plain
    assert msgspec.json.decode(plain, type=FleetView) == view


def test_draws_are_normal_with_the_width_of_the_belief_and_independent_by_endpoint() -> None:
    policy = policy_of("a", "b")
    belief = {"ttft_n": 4.0, "ttft_sigma": 1.0, "success_p": 1.0, "rate_n": 1e12}
    view = view_of(policy, {"a": belief, "b": belief})
    entries = rank(facts_of(surface=Surface.EMBEDDINGS), view, policy).entries
    drawn = [drawn_s(entries, draw) for draw in range(NUM_DRAWS)]
    a, b = ([log(each / entries[idx].score_s) * 2.0 for each in found]
            for idx, found in enumerate(zip(*drawn, strict=True)))  # fmt: skip

    assert fmean(a) == pytest.approx(0.0, abs=1e-6)
    assert pstdev(a) == pytest.approx(1.0, abs=0.005)
    assert sum(abs(each) > 1.96 for each in a) / len(a) == pytest.approx(0.05, abs=0.001)
    assert abs(correlation(a, b)) < 0.06
    assert abs(correlation(a[1:], a[:-1])) < 0.06


def test_first_token_and_decode_are_drawn_apart_and_a_whole_answer_as_one() -> None:
    policy = policy_of("a", "b")
    belief = {"ttft_n": 1.0, "ttft_sigma": 1.0, "rate_n": 1.0, "rate_sigma": 1.0}
    whole = {**belief, "e2e_base_s": 1.0, "e2e_s_per_token": 0.01, "e2e_n": 4.0}
    pairs = []
    for facts, stats in ((facts_of(), belief), (facts_of(stream=False), whole)):
        view = view_of(policy, {"a": stats}, output_tokens_expected=50.0)
        entry = next(each for each in rank(facts, view, policy).entries if each.rates.id == "a/x")
        # One part alone: without an answer's tokens, and without a first token.
        none = msgspec.structs.replace(entry.want, output_tokens=0.0)
        first = msgspec.structs.replace(entry, score_s=entry.ttft_s, want=none)
        rates = msgspec.structs.replace(entry.rates, first_s=0.0, prompt_token_s=0.0)
        rest = msgspec.structs.replace(entry, score_s=entry.decode_s, rates=rates)
        pairs.append(
            [
                (
                    log(drawn_s([first], draw)[0] / first.score_s),
                    log(drawn_s([rest], draw)[0] / rest.score_s),
                )
                for draw in range(NUM_DRAWS)
            ]
        )

    stream, answer = pairs
    assert abs(correlation(*zip(*stream, strict=True))) < 0.06
    assert all(isclose(a, b, abs_tol=1e-9) for a, b in answer)


def test_equal_beliefs_draw_apart_and_other_snapshots_otherwise() -> None:
    policy = policy_of("a", "b")
    view = view_of(policy)
    other = msgspec.structs.replace(view.snapshot, id="snap-2")
    steps = [
        [
            (each.rates.first_step, each.rates.token_step)
            for each in rank(facts_of(), seen, policy).entries
        ]
        for seen in (view, msgspec.structs.replace(view, snapshot=other))
    ]

    assert len({step for pair in steps for both in pair for step in both}) == 8


def test_every_preference_has_its_words() -> None:
    assert set(FIRST) == set(LOST) == set(get_args(By)) > BALANCING
