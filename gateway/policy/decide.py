"""The decision: facts, view, policy and randomness in; an ordered plan out. Pure.

Order of business (reliability B.4): route → filter → score → affinity → draw → plan. The same
arguments give the same plan, in the gateway, in the simulator and from the stored record. Reasons
and terms are not written down here: `gateway.policy.explain` works them out again when asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import exp
from operator import attrgetter

import msgspec

from gateway.core import EndpointLive, FleetView, Lane, Plan, RequestFacts, Rng
from gateway.errors import InvalidRequest, NoEligibleEndpoint
from gateway.policy.asked import FIRST_PLACE, NAMES_MAX, Asked, asked
from gateway.policy.filter import excluded, free_in_s, is_only_silent
from gateway.policy.policy import Policy
from gateway.policy.score import (
    NUM_DRAWS,
    Rates,
    Weighed,
    drawn_s,
    time_p95_s,
    want_of,
    weigh,
)

BAND = 1.10  # a mean score this close to the best may be taken for free
HOUR_S = 3_600.0
PANIC_AFTER_S = 2.0  # a pause that ends sooner is waited for, rather than try a broken endpoint
BALANCING = frozenset({"fastest", "balanced"})

AFFINITY = "affinity: its prompt cache is likely warm and it is within 10 % of best"
EXPLORED = "exploration: its belief leaves room for it to be best; one credit paid"
PROBED = "exploration: not measured for long, and this batch request can wait"
IN_ORDER = "order: first of the request's provider.order that may serve it"
ONLY_ONE = "the only endpoint that may serve this request"
PANIC = "panic: every breaker is open; this one reopens soonest"
FIRST: dict[str, str] = {
    "fastest": "predicted to finish first (best draw within 10 % of the best mean)",
    "balanced": "best of time and money (best draw within 10 % of the best mean)",
    "cheapest": "cheapest that keeps the deadline, or the fastest when none does",
    "throughput": "decodes fastest under its present load",
    "latency": "first token soonest under its present load",
    "price": "costs least",
}
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_score = attrgetter("score_s")


class Ranking(msgspec.Struct, gc=False):
    """Everyone who may serve a request, the best mean first."""

    asked: Asked
    entries: list[Weighed]
    is_panic: bool


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

    `rng` must have been seeded with `seed`, which is only recorded; at most one number is taken
    from it. `tried` makes it a retry: those endpoints are left out and nothing is explored. Raises
    UnknownModel, or NoEligibleEndpoint with each endpoint's rule in `detail` (`is_capacity` when
    waiting helps; a 400 when no endpoint of the model serves the surface or holds the prompt, else
    a 503).
    """
    ranking = rank(facts, view, policy, tried)
    kind, ranked = ranking.asked, ranking.entries
    chosen, why, explored, draw = _choose(ranking, facts, view, policy, rng, is_retry=bool(tried))
    if ranking.is_panic:
        why = PANIC
    first_id = chosen.rates.id
    wants = facts.preferences
    if wants.allow_fallbacks or wants.order:
        ids = [entry.rates.id for entry in ranked]
        if chosen is not ranked[0]:
            ids.remove(first_id)
            ids.insert(0, first_id)
    else:
        ids = [first_id]
    cached: tuple[tuple[str, int], ...] = ()
    if facts.affinity_key or facts.session_key:
        cached = tuple(
            [
                (entry.rates.id, min(entry.live.cached_tokens, facts.prompt_tokens))
                for entry in ranked
                if entry.live.cached_tokens
            ]
        )
    models = kind.models
    return Plan(
        model=models[first_id] if models else facts.models[0],
        route=kind.route,
        preference=kind.preference.by,
        order=tuple(ids),
        policy_version=policy.version,
        snapshot_id=view.snapshot.id,
        seed=seed,
        why=why,
        draw=draw,
        cost_nanos=round(chosen.cost_nanos),
        cached=cached,
        explored=explored,
        is_panic=ranking.is_panic,
        models=tuple([models[each] for each in ids]) if models else (),
    )


def rank(
    facts: RequestFacts, view: FleetView, policy: Policy, tried: Collection[str] = ()
) -> Ranking:
    """Those who may serve, by what the route or the request prefers. Raises as `decide` does."""
    kind = asked(facts, view.snapshot, policy)
    preference = kind.preference
    want = want_of(facts, view, preference.seconds_per_nano, has_output=kind.has_output)
    is_batch = facts.lane is Lane.BATCH
    pool: Sequence[Rates] = kind.pool
    if tried:
        pool = [rates for rates in pool if rates.id not in tried]
    entries, shut = weigh(pool, view.live, want, is_batch=is_batch)
    is_panic = False
    if not entries:
        rest, is_panic = _last_resort(shut, is_batch=is_batch)
        if not rest:
            raise _none_eligible(facts, view, policy, kind, tried, [live for _, live in shut])
        entries, _ = weigh(rest, view.live, want, is_forced=True)
    # Mostly there is nothing but the score to go by, and then a plain key will do.
    if preference.by in BALANCING and not kind.places:
        entries.sort(key=_score)
    else:
        _sort(entries, kind, facts)
    return Ranking(kind, entries, is_panic)


def _last_resort(
    shut: list[tuple[Rates, EndpointLive]], *, is_batch: bool
) -> tuple[list[Rates], bool]:
    """Whom to try when nobody is known to have room, and whether that is panic.

    Those who only do not tell are tried, but not with batch. Every breaker open: the one that
    reopens soonest, alone.
    """
    if not is_batch and (silent := [rates for rates, live in shut if is_only_silent(live)]):
        return silent, False
    broken = [
        (live.reopens_in_s, rates.id, rates)
        for rates, live in shut
        if live.breaker == "open" and not live.is_cooling and not live.held
    ]
    wait_s = free_in_s(live for _, live in shut)
    if not broken or (wait_s is not None and wait_s <= PANIC_AFTER_S):
        return [], False
    return [min(broken, key=lambda each: each[:2])[2]], True


def _sort(entries: list[Weighed], kind: Asked, facts: RequestFacts) -> None:
    by = kind.preference.by
    keys = {entry.rates.id: _key(entry, by) for entry in entries}
    deadline_s = kind.preference.deadline_s if facts.deadline_s is None else facts.deadline_s
    if by == "cheapest" and deadline_s is not None:
        # Those that may miss the deadline come after all that keep it, the fastest first.
        dearest = max(keys.values())
        for entry in entries:
            late_s = time_p95_s(entry)
            if late_s > deadline_s:
                keys[entry.rates.id] = dearest + 1.0 + late_s
    places = kind.places
    entries.sort(
        key=lambda entry: (
            places.get(entry.rates.id, FIRST_PLACE),
            keys[entry.rates.id],
            entry.score_s,
        )
    )


def _key(entry: Weighed, by: str) -> float:
    """Smaller is better."""
    if by in BALANCING:
        return entry.score_s
    if by in ("cheapest", "price"):
        return entry.cost_nanos
    if by == "throughput":
        # Seconds per token under the present load: small is fast.
        return entry.load * exp(-entry.rates.stats.rate_mu)
    return entry.load * entry.ttft_s


def peers_of(ranking: Ranking) -> list[Weighed]:
    """The best and those that nothing but the score puts behind it."""
    places = ranking.asked.places
    if not places:
        return ranking.entries
    first = places.get(ranking.entries[0].rates.id, FIRST_PLACE)
    return [each for each in ranking.entries if places.get(each.rates.id, FIRST_PLACE) == first]


def _choose(
    ranking: Ranking,
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    rng: Rng,
    *,
    is_retry: bool,
) -> tuple[Weighed, str, bool, int | None]:
    """Who goes first, why, whether that was paid with an exploration credit, and the draw."""
    best, by = ranking.entries[0], ranking.asked.preference.by
    if len(ranking.entries) == 1:
        return best, ONLY_ONE, False, None
    may_explore = (
        view.exploration_credits >= 1.0
        and policy.exploration.share > 0.0
        and not facts.no_explore
        and not is_retry
        and not facts.preferences.order
    )
    peers = peers_of(ranking)
    if may_explore and facts.lane is Lane.BATCH and (stale := _unmeasured(peers, policy)):
        return stale, PROBED, True, None
    if by not in BALANCING or facts.preferences.order:
        return best, FIRST[by] if not facts.preferences.order else IN_ORDER, False, None
    if len(peers) == 1:
        return best, FIRST[by], False, None
    limit_s = best.score_s * BAND
    if facts.affinity_key or facts.session_key:
        kept = _kept_by_affinity(peers, facts, limit_s)
        if kept is not None:
            return kept, AFFINITY, False, None
    draw = int(rng.random() * NUM_DRAWS)
    if not may_explore:
        peers = [entry for entry in peers if entry.score_s <= limit_s]
    drawn = drawn_s(peers, draw, among_best=True)
    star = peers[drawn.index(min(drawn))]
    if star.score_s <= limit_s:
        return star, FIRST[by], False, draw
    return star, EXPLORED, True, draw


def _unmeasured(peers: list[Weighed], policy: Policy) -> Weighed | None:
    """The cheapest endpoint without a fresh sample, if one probe of it is within the budget."""
    after_s = policy.exploration.probe_after_s
    nanos_max = policy.exploration.nanos_per_hour * min(1.0, after_s / HOUR_S)
    by_cost = sorted((each.cost_nanos, each.rates.id, each) for each in peers)
    for nanos, _, entry in by_cost:
        age_s = entry.rates.stats.sample_age_s
        is_stale = (age_s is None or age_s > after_s) and not entry.live.was_probed
        if is_stale and entry.live.in_flight == 0 and nanos <= nanos_max:
            return entry
    return None


def _kept_by_affinity(peers: list[Weighed], facts: RequestFacts, limit_s: float) -> Weighed | None:
    """Who served this prefix last, else its home, if the score allows it (reliability B.4.2)."""
    home = None
    for entry in peers:
        live = entry.live
        if live.is_last_used and entry.score_s <= limit_s:
            return entry
        if live.is_home and home is None:
            home = entry
    if home is None and facts.affinity_key:
        home = _home(peers, facts.affinity_key)
    return home if home is not None and home.score_s <= limit_s else None


def _home(peers: list[Weighed], affinity_key: str) -> Weighed | None:
    """Rendezvous hashing over the allowed endpoints, load bounded to 1.25 of the fair share."""
    key = int(affinity_key[:16], 16)
    in_flight, capacity = 1, 0.0
    for entry in peers:
        in_flight += entry.live.in_flight
        capacity += entry.live.capacity
    found, highest = None, -1
    for entry in peers:
        # Multiplying by an endpoint's own odd number hashes the key, independent of the others.
        weight = (key * entry.rates.one.rendezvous) & _MASK
        if weight > highest:
            live = entry.live
            fair = 1.25 * in_flight * live.capacity / capacity if capacity else 1.0
            if live.in_flight + 1 <= max(1.0, -(-fair // 1)):
                found, highest = entry, weight
    return found


def _none_eligible(
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    kind: Asked,
    tried: Collection[str],
    shut: list[EndpointLive],
) -> NoEligibleEndpoint:
    reasons = excluded(facts, view, policy, kind.preference, kept=(), tried=tried)
    listed = [f"{eid} ({reason})" for eid, reason in reasons[:NAMES_MAX]]
    more = len(reasons) - len(listed)
    wait_s = free_in_s(shut)
    error = NoEligibleEndpoint(
        f"no endpoint of {facts.models[0]!r} can take this request: {'; '.join(listed)}"
        + (f"; and {more} more" if more else ""),
        retry_after_s=None if wait_s is None else max(1.0, wait_s),
        detail=[
            {"endpoint": eid, "rule": reason.split(":", 1)[0], "reason": reason}
            for eid, reason in reasons
        ],
    )
    error.is_capacity = wait_s is not None
    error.free_in_s = wait_s or 0.0
    rules = {reason.split(":", 1)[0] for _, reason in reasons}
    if "held" in rules and not error.is_capacity:
        error.code = "endpoint_held"  # nothing but an operator's word is against it
    if rules in ({"surface"}, {"context"}):
        # The wrong API of this model, or a prompt beyond its window: no time and no other state
        # would help. Clients that shorten a prompt by themselves look for this code.
        error.status, error.type = InvalidRequest.status, InvalidRequest.type
        if rules == {"context"}:
            error.code = "context_length_exceeded"
    return error
