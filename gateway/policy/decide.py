"""The decision: facts, view, policy and randomness in; an ordered plan with its reasons out. Pure.

Order of business (reliability B.4): route → filter → score → affinity → draw → plan. The same
arguments give the same plan, in the gateway, in the simulator and from the stored record.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import exp
from operator import attrgetter

import msgspec

from gateway.core import (
    Candidate,
    EndpointLive,
    FleetView,
    Lane,
    Plan,
    PriceRow,
    ProviderPreferences,
    RequestFacts,
    Rng,
)
from gateway.errors import InvalidRequest, NoEligibleEndpoint, UnknownModel
from gateway.policy.filter import Filtered, filter_endpoints, rank_in_order
from gateway.policy.policy import Indexed, Policy
from gateway.policy.routes import Preference, find_route
from gateway.policy.score import (
    NOT_MEASURED,
    Score,
    draw,
    expected_of,
    frozen,
    score_endpoint,
    time_p95_s,
)
from gateway.policy.thresholds import is_below_preferred

BAND = 1.10  # a mean score this close to the best may be taken for free
HOUR_S = 3_600.0
PANIC_AFTER_S = 2.0  # a pause that ends sooner is waited for, rather than try a broken endpoint
NAMES_MAX = 8  # endpoints or models named in an error message; `detail` has them all
_BALANCING = frozenset({"fastest", "balanced"})
_SORTS: dict[str, str] = {"price": "price", "throughput": "throughput", "latency": "latency"}
_SUFFIXES: dict[str, str] = {"nitro": "throughput", "floor": "price"}
_LOST: dict[str, str] = {
    "fastest": "fallback: predicted to finish later",
    "balanced": "fallback: time and money together are worse",
    "cheapest": "fallback: costs more, or may miss the deadline",
    "throughput": "fallback: decodes slower",
    "latency": "fallback: first token later",
    "price": "fallback: costs more",
}
_FIRST_GROUP = (0, 0, 0)
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class Ranked(msgspec.Struct):
    """An eligible endpoint with its score and its place."""

    one: Indexed
    live: EndpointLive
    row: PriceRow
    score: Score
    group: tuple[int, int, int]  # deprioritised, model, rank in provider.order
    key: float  # smaller is better within a group


def decide(
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    rng: Rng,
    *,
    seed: int,
    tried: Collection[str] = (),
) -> Plan:
    """
    The plan for one request.

    `rng` must have been seeded with `seed`, which is only recorded. `tried` makes it a retry:
    those endpoints are left out and nothing is explored. Raises UnknownModel, or
    NoEligibleEndpoint with each endpoint's rule in `detail` (`is_capacity` when waiting helps;
    a 400 when no endpoint of the model serves the surface or holds the prompt, else a 503).
    """
    if facts.models[0] not in policy.pools and not any(m in policy.pools for m in facts.models):
        raise _unknown_model(facts, policy)
    wants = facts.preferences
    route = find_route(policy.routes, facts)
    preference = _preference(facts, route.preference)
    found = filter_endpoints(facts, view, policy, preference, tried)
    panic = ""
    if not found.eligible:
        found, panic = _panic(found, facts)
    ranked = _rank(found, facts, view, preference)
    # Mostly there is nothing but the score to go by, and then a plain key will do.
    is_plain = preference.by in _BALANCING and not (len(facts.models) > 1 or _has_places(wants))
    ranked.sort(key=_key if is_plain else _place)
    chosen, why, explored = _choose(
        ranked, facts, view, policy, preference, rng, is_retry=bool(tried)
    )
    if panic:
        why = panic
    if chosen is not ranked[0]:
        ranked.remove(chosen)
        ranked.insert(0, chosen)
    is_alone = not wants.allow_fallbacks and not wants.order
    order = (chosen.one.id,) if is_alone else tuple([r.one.id for r in ranked])
    return Plan(
        model=_model_of(chosen.one.id, facts, policy),
        route=route.name,
        preference=preference.by,
        order=order,
        candidates=_candidates(ranked, found, preference, why, is_alone),
        policy_version=policy.version,
        snapshot_id=view.snapshot.id,
        seed=seed,
        explored=explored,
        is_panic=bool(panic),
        models=tuple([_model_of(eid, facts, policy) for eid in order])
        if len(facts.models) > 1
        else (),
    )


def _model_of(endpoint_id: str, facts: RequestFacts, policy: Policy) -> str:
    """The first model wanted that this endpoint serves."""
    if len(facts.models) > 1:
        for model in facts.models:
            if any(one.id == endpoint_id for one in policy.pools.get(model, ())):
                return model
    return facts.models[0]


def _preference(facts: RequestFacts, of_route: Preference) -> Preference:
    """The request's own `sort` or suffix goes before the route; the route's limits stay."""
    by = _SORTS.get(facts.preferences.sort) or _SUFFIXES.get(facts.suffix)
    if by is not None:
        return replace(of_route, by=by, seconds_per_nano=0.0)
    if facts.deadline_s is not None and of_route.by == "cheapest":
        return replace(of_route, deadline_s=facts.deadline_s)
    return of_route


def _rank(
    found: Filtered, facts: RequestFacts, view: FleetView, preference: Preference
) -> list[Ranked]:
    want = expected_of(facts, view, preference.seconds_per_nano)
    stats_of = view.snapshot.stats
    wants = facts.preferences
    has_thresholds = bool(wants.preferred_min_throughput or wants.preferred_max_latency)
    by, order = preference.by, wants.order
    ranked = []
    for one, live, row, model_idx in found.eligible:
        stats, hour_nanos = stats_of.get(one.id, NOT_MEASURED), one.endpoint.usd_per_hour_nanos
        score = score_endpoint(stats, live, row, want, hour_nanos)
        if by in _BALANCING:
            key = score.score_s
        elif by == "cheapest" or by == "price":
            key = float(score.cost_nanos)
        elif by == "throughput":
            # Seconds per token under the present load: small is fast.
            key = score.load * exp(-score.stats.rate_mu)
        else:
            key = score.load * score.ttft_s
        group = _FIRST_GROUP
        if has_thresholds or order or model_idx:
            is_slow = has_thresholds and is_below_preferred(score.stats, wants)
            group = (int(is_slow), model_idx, rank_in_order(one, order) if order else 0)
        ranked.append(Ranked(one, live, row, score, group, key))
    if by == "cheapest" and preference.deadline_s is not None:
        _apply_deadline(ranked, preference.deadline_s)
    return ranked


def _apply_deadline(ranked: list[Ranked], deadline_s: float) -> None:
    """Endpoints that may miss the deadline come after all that keep it, the fastest first."""
    for entry in ranked:
        entry.score.time_p95_s = time_p95_s(entry.score)
    dearest = max(entry.key for entry in ranked)
    for entry in ranked:
        if entry.score.time_p95_s > deadline_s:
            entry.key = dearest + 1.0 + entry.score.time_p95_s


_key = attrgetter("key")


def _has_places(wants: ProviderPreferences) -> bool:
    """True when something else than the score puts endpoints before others."""
    return bool(wants.order or wants.preferred_min_throughput or wants.preferred_max_latency)


def _place(entry: Ranked) -> tuple[tuple[int, int, int], float, float]:
    return entry.group, entry.key, entry.score.score_s


def _choose(
    ranked: list[Ranked],
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    preference: Preference,
    rng: Rng,
    *,
    is_retry: bool,
) -> tuple[Ranked, str, bool]:
    """Who goes first, why, and whether that was paid with an exploration credit."""
    best = ranked[0]
    if len(ranked) == 1:
        return best, "the only endpoint that may serve this request", False
    may_explore = (
        view.exploration_credits >= 1.0
        and policy.exploration.share > 0.0
        and not facts.no_explore
        and not is_retry
        and not facts.preferences.order
    )
    peers = ranked
    if ranked[-1].group != best.group:  # sorted by group, so the last differs if any does
        peers = [entry for entry in ranked if entry.group == best.group]
    if may_explore and facts.lane == Lane.BATCH and (stale := _unmeasured(peers, policy)):
        return stale, "exploration: not measured for long, and this batch request can wait", True
    if preference.by not in _BALANCING or facts.preferences.order:
        return best, _FIRST[preference.by] if not facts.preferences.order else _IN_ORDER, False
    if len(peers) == 1:
        return best, _FIRST[preference.by], False
    limit = best.key * BAND
    kept = _kept_by_affinity(peers, facts, limit)
    if kept is not None:
        return (
            kept,
            "affinity: its prompt cache is likely warm and it is within 10 % of best",
            False,
        )
    star = best
    for entry in peers:
        entry.score.drawn_s = draw(entry.score, rng)
        if entry.score.drawn_s < star.score.drawn_s:
            star = entry
    if star.key <= limit:
        return star, _FIRST[preference.by], False
    if may_explore:
        return star, "exploration: its belief leaves room for it to be best; one credit paid", True
    within = [entry for entry in peers if entry.key <= limit]
    return min(within, key=_drawn), _FIRST[preference.by], False


def _drawn(entry: Ranked) -> float:
    return entry.score.drawn_s


_IN_ORDER = "order: first of the request's provider.order that may serve it"
_FIRST: dict[str, str] = {
    "fastest": "predicted to finish first (best draw within 10 % of the best mean)",
    "balanced": "best of time and money (best draw within 10 % of the best mean)",
    "cheapest": "cheapest that keeps the deadline, or the fastest when none does",
    "throughput": "decodes fastest under its present load",
    "latency": "first token soonest under its present load",
    "price": "costs least",
}


def _unmeasured(peers: list[Ranked], policy: Policy) -> Ranked | None:
    """The cheapest endpoint without a fresh sample, if one probe of it is within the budget."""
    after_s = policy.exploration.probe_after_s
    nanos_max = policy.exploration.nanos_per_hour * min(1.0, after_s / HOUR_S)
    for entry in sorted(peers, key=lambda e: (e.score.cost_nanos, e.one.id)):
        age_s = entry.score.stats.sample_age_s
        is_stale = (age_s is None or age_s > after_s) and not entry.live.was_probed
        if is_stale and entry.live.in_flight == 0 and entry.score.cost_nanos <= nanos_max:
            return entry
    return None


def _kept_by_affinity(peers: list[Ranked], facts: RequestFacts, limit: float) -> Ranked | None:
    """Who served this prefix last, else its home, if the score allows it (reliability B.4.2)."""
    if not facts.affinity_key and not facts.session_key:
        return None
    for entry in peers:
        if entry.live.is_last_used and entry.key <= limit:
            return entry
    home = next((entry for entry in peers if entry.live.is_home), None)
    if home is None and facts.affinity_key:
        home = _home(peers, facts.affinity_key)
    return home if home is not None and home.key <= limit else None


def _home(peers: list[Ranked], affinity_key: str) -> Ranked | None:
    """Rendezvous hashing over the allowed endpoints, load bounded to 1.25 of the fair share."""
    key = int(affinity_key[:16], 16)
    in_flight, capacity = 1, 0.0
    for entry in peers:
        in_flight += entry.live.in_flight
        capacity += entry.live.capacity
    # Multiplying by an endpoint's own odd number is a hash of the key, independent of the others.
    weighed = [((key * entry.one.rendezvous) & _MASK, entry) for entry in peers]
    weighed.sort(key=_weight, reverse=True)
    for _, entry in weighed:
        fair = 1.25 * in_flight * entry.live.capacity / capacity if capacity else 1.0
        if entry.live.in_flight + 1 <= max(1.0, -(-fair // 1)):
            return entry
    return None


def _weight(weighed: tuple[int, Ranked]) -> int:
    return weighed[0]


def _candidates(
    ranked: list[Ranked], found: Filtered, preference: Preference, why: str, is_alone: bool
) -> tuple[Candidate, ...]:
    lost = _LOST[preference.by]
    if is_alone:
        lost = "allow_fallbacks: the request forbids falling over"
    outcome = "lost" if is_alone else "fallback"
    listed = [
        Candidate(
            endpoint_id=ranked[0].one.id,
            outcome="chosen",
            reason=why,
            terms=frozen(ranked[0].score),
        )
    ]
    for entry in ranked[1:]:
        reason = lost if not entry.group[0] else "preferred: below the request's preferred speed"
        terms = frozen(entry.score)
        listed.append(
            Candidate(endpoint_id=entry.one.id, outcome=outcome, reason=reason, terms=terms)
        )
    for endpoint_id, reason in found.excluded:
        listed.append(Candidate(endpoint_id=endpoint_id, outcome="excluded", reason=reason))
    return tuple(listed)


def _panic(found: Filtered, facts: RequestFacts) -> tuple[Filtered, str]:
    """Every breaker open: the one that reopens soonest, alone. Anything else: the error."""
    if not found.open_breakers or found.free_in_s <= PANIC_AFTER_S:
        raise _none_eligible(found, facts)
    soonest = min(found.open_breakers, key=lambda each: (each[1].reopens_in_s, each[0].id))
    excluded = [each for each in found.excluded if each[0] != soonest[0].id]
    why = "panic: every breaker is open; this one reopens soonest"
    return Filtered([soonest], excluded, [], 0), why


def _none_eligible(found: Filtered, facts: RequestFacts) -> NoEligibleEndpoint:
    listed = [f"{eid} ({reason})" for eid, reason in found.excluded[:NAMES_MAX]]
    more = len(found.excluded) - len(listed)
    error = NoEligibleEndpoint(
        f"no endpoint of {facts.models[0]!r} can take this request: {'; '.join(listed)}"
        + (f"; and {more} more" if more else ""),
        retry_after_s=max(1.0, found.free_in_s) if found.num_full else None,
        detail=[
            {"endpoint": eid, "rule": reason.split(":", 1)[0], "reason": reason}
            for eid, reason in found.excluded
        ],
    )
    error.is_capacity = found.num_full > 0
    error.free_in_s = found.free_in_s if found.num_full else 0.0
    rules = {reason.split(":", 1)[0] for _, reason in found.excluded}
    if rules in ({"surface"}, {"context"}):
        # The wrong API of this model, or a prompt beyond its window: no time and no other state
        # would help. Clients that shorten a prompt by themselves look for this code.
        error.status, error.type = InvalidRequest.status, InvalidRequest.type
        if rules == {"context"}:
            error.code = "context_length_exceeded"
    return error


def _unknown_model(facts: RequestFacts, policy: Policy) -> UnknownModel:
    wanted = ", ".join(repr(model) for model in facts.models[:NAMES_MAX])
    known = sorted(policy.models)
    shown = ", ".join(known[:NAMES_MAX]) or "none"
    more = f" and {len(known) - NAMES_MAX} more" if len(known) > NAMES_MAX else ""
    return UnknownModel(
        f"the model {wanted} does not exist here; known: {shown}{more}. GET /v1/models lists all",
        param="model",
    )
