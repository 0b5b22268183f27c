"""What a kind of request comes to under one snapshot and one policy, worked out once for all of it.

Route, preference, price rows and every rule that does not look at live state depend on the kind
alone. A snapshot is a second old at most, so what is kept here needs no other invalidation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, replace
from zlib import crc32

from gateway.core import FleetSnapshot, RequestFacts
from gateway.errors import UnknownModel
from gateway.policy.filter import lasting_reason, pool_of, rank_in_order, row_of
from gateway.policy.policy import Policy
from gateway.policy.routes import Preference, find_route
from gateway.policy.score import NOT_MEASURED, WITHOUT_OUTPUT, Rates, rates_of
from gateway.policy.thresholds import is_below_preferred

KINDS_MAX = 512  # of one snapshot and policy; clients choose some of what makes a kind
NAMES_MAX = 8  # endpoints or models named in an error message; `detail` has them all
_SORTS: dict[str, str] = {"price": "price", "throughput": "throughput", "latency": "latency"}
_SUFFIXES: dict[str, str] = {"nitro": "throughput", "floor": "price"}

Place = tuple[int, int, int]  # deprioritised, model, rank in provider.order
FIRST_PLACE: Place = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """One kind of request."""

    route: str
    preference: Preference
    pool: tuple[Rates, ...]  # nothing lasting against them
    places: dict[str, Place]  # by endpoint id; absent = FIRST_PLACE
    has_output: bool
    models: dict[str, str]  # endpoint id → model, where several are wanted


class _Book:
    """The kinds of requests met under one snapshot and policy."""

    __slots__ = ("kinds", "output_steps", "policy", "prompt_steps", "reads_caller")

    def __init__(self, policy: Policy, snapshot: FleetSnapshot) -> None:
        self.policy = policy  # kept, so that its id stays its own
        self.kinds: dict[Hashable, Asked] = {}
        prompts, outputs = set(), set()
        for endpoint in policy.endpoints.values():
            if endpoint.context_tokens_max is not None:
                prompts.add(endpoint.context_tokens_max + 1)
            if endpoint.output_tokens_max is not None:
                outputs.add(endpoint.output_tokens_max + 1)
            for row in snapshot.prices.get(endpoint.id) or endpoint.prices:
                prompts.add(row.context_tokens_min)
        for route in policy.routes:
            if route.prompt_tokens_min is not None:
                prompts.add(route.prompt_tokens_min)
            if route.prompt_tokens_max is not None:
                prompts.add(route.prompt_tokens_max + 1)
        # Between two steps no rule and no price tells two prompts (or limits) apart.
        self.prompt_steps = sorted(prompts)
        self.output_steps = sorted(outputs)
        self.reads_caller = any(route.keys or route.teams or route.tags for route in policy.routes)


def asked(facts: RequestFacts, snapshot: FleetSnapshot, policy: Policy) -> Asked:
    """What this request's kind comes to. Raises UnknownModel."""
    known = snapshot.worked_out
    book: _Book | None = known.get(id(policy))
    if book is None:
        book = known[id(policy)] = _Book(policy, snapshot)
    kind: Hashable = (
        facts.models,
        facts.surface,
        facts.stream,
        facts.lane,
        facts.needs,
        facts.service_tier,
        facts.suffix,
        facts.preferences,
        facts.parameters,
        facts.has_budget,
        facts.num_choices,
        bisect_right(book.prompt_steps, facts.prompt_tokens),
        bisect_right(book.output_steps, facts.max_tokens or 0),
    )
    if book.reads_caller:
        kind = (kind, facts.key_id, facts.key_name, facts.team_id, facts.tags)
    found = book.kinds.get(kind)
    if found is None:
        if len(book.kinds) >= KINDS_MAX:
            book.kinds.clear()
        found = book.kinds[kind] = _work_out(facts, snapshot, policy)
    return found


def _work_out(facts: RequestFacts, snapshot: FleetSnapshot, policy: Policy) -> Asked:
    if not any(model in policy.pools for model in facts.models):
        raise _unknown_model(facts, policy)
    route = find_route(policy.routes, facts)
    preference = preference_of(facts, route.preference)
    has_output = facts.surface not in WITHOUT_OUTPUT
    wants = facts.preferences
    has_thresholds = bool(wants.preferred_min_throughput or wants.preferred_max_latency)
    salt = crc32(snapshot.id.encode())
    pool: list[Rates] = []
    places: dict[str, Place] = {}
    models: dict[str, str] = {}
    for one, model_idx in pool_of(facts, policy):
        row = row_of(one, snapshot, facts)
        if lasting_reason(one, row, facts, policy, preference) is not None:
            continue
        stats = snapshot.stats.get(one.id, NOT_MEASURED)
        pool.append(
            rates_of(
                one,
                stats,
                row,
                is_whole=not facts.stream,
                has_output=has_output,
                num_choices=facts.num_choices,
                seconds_per_nano=preference.seconds_per_nano,
                salt=salt,
            )
        )
        is_slow = has_thresholds and is_below_preferred(stats, wants)
        rank = rank_in_order(one, wants.order) if wants.order else 0
        if is_slow or model_idx or rank:
            places[one.id] = (int(is_slow), model_idx, rank)
        if len(facts.models) > 1:
            models[one.id] = _model_of(one.id, facts, policy)
    return Asked(route.name, preference, tuple(pool), places, has_output, models)


def preference_of(facts: RequestFacts, of_route: Preference) -> Preference:
    """The request's own `sort` or suffix goes before the route; the route's limits stay."""
    by = _SORTS.get(facts.preferences.sort) or _SUFFIXES.get(facts.suffix)
    return of_route if by is None else replace(of_route, by=by, seconds_per_nano=0.0)


def _model_of(endpoint_id: str, facts: RequestFacts, policy: Policy) -> str:
    """The first model wanted that this endpoint serves."""
    for model in facts.models:
        if any(one.id == endpoint_id for one in policy.pools.get(model, ())):
            return model
    return facts.models[0]


def _unknown_model(facts: RequestFacts, policy: Policy) -> UnknownModel:
    wanted = ", ".join(repr(model) for model in facts.models[:NAMES_MAX])
    known = sorted(policy.models)
    shown = ", ".join(known[:NAMES_MAX]) or "none"
    more = f" and {len(known) - NAMES_MAX} more" if len(known) > NAMES_MAX else ""
    return UnknownModel(
        f"the model {wanted} does not exist here; known: {shown}{more}. GET /v1/models lists all",
        param="model",
    )
