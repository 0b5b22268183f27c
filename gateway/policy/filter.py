"""Which endpoints may take a request at all. Each exclusion names its rule in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gateway.core import (
    EndpointLive,
    FleetSnapshot,
    FleetView,
    Lane,
    PriceRow,
    ProviderPreferences,
    RequestFacts,
)
from gateway.policy.policy import Indexed, Policy
from gateway.policy.routes import Preference
from gateway.policy.score import NOT_SEEN
from gateway.policy.units import PICOS_OF_USD_PER_MTOK
from gateway.prices.rows import (
    STANDARD,
    UNPRICED,
    bucket_picos,
    pick_row,
    tier_at_once,
    tier_of,
)

# Needs that an endpoint whose capabilities are known must have; the rest pass through as they are.
HARD_NEEDS = frozenset({"tools", "json_schema", "json_object", "vision", "audio"})
CAPACITY_RULES = frozenset({"capacity", "pause"})  # a short wait may help against these
HELD: dict[str, str] = {
    "paused": "an operator paused it; it takes requests again once it is resumed",
    "draining": "an operator drains it: what runs there finishes, nothing new is sent",
}
_NO_PREFERENCES = ProviderPreferences()

# Names in OpenRouter's `max_price` → our buckets; `request` is dollars a request.
_PRICE_BUCKETS: dict[str, str] = {
    "prompt": "input",
    "completion": "output",
    "image": "image_input",
    "audio": "audio_input",
}
_NANOS_OF_USD = 1e9


def row_of(one: Indexed, snapshot: FleetSnapshot, facts: RequestFacts) -> PriceRow:
    """The price that holds for this request there."""
    rows = snapshot.prices.get(one.id) or one.endpoint.prices
    if len(rows) == 1 and not rows[0].context_tokens_min:
        return rows[0]
    tier = tier_at_once(tier_of(facts.service_tier), one.endpoint.tier)
    return pick_row(rows, tier=tier, context_tokens=facts.prompt_tokens)


def lasting_reason(
    one: Indexed, row: PriceRow, facts: RequestFacts, policy: Policy, preference: Preference
) -> str | None:
    """What keeps this endpoint from such a request whatever its live state; None: nothing does.

    It may read only what `gateway.policy.asked` takes for the kind of a request.
    """
    needs = facts.needs & HARD_NEEDS
    reason = _static_reason(one, facts, needs, tier_of(facts.service_tier))
    if reason is None and facts.preferences != _NO_PREFERENCES:
        reason = _preference_reason(one, facts)
    if reason is None and row.source == UNPRICED.source and policy.unpriced != "cap":
        reason = _unpriced_reason(policy, facts)
    return reason or _price_reason(row, preference, facts)


def live_reason(live: EndpointLive, *, is_batch: bool) -> str:
    """Why an endpoint that `weigh` found shut is so, with its numbers."""
    if live.held:
        return f"held: {HELD[live.held]}"
    if live.is_cooling:
        return f"pause: it asked not to be called for {live.reopens_in_s:.1f} s more"
    if live.breaker == "open":
        return f"breaker: open, may be tried again in {live.reopens_in_s:.0f} s"
    if not (live.is_silent or (is_batch and live.is_full)):
        return (
            f"capacity: {live.in_flight} requests in flight, learned limit {live.capacity:.1f}"
            + (", less a place kept free of batch" * is_batch)
        )
    said = "capacity: it is silent of late" if live.is_silent else "capacity: it says it is full"
    load = live.machine
    if load is None:
        return said
    return f"{said} ({load.num_waiting} wait there, {load.cache_use:.0%} of its cache is in use)"


def free_in_s(shut: Iterable[EndpointLive]) -> float | None:
    """When the first may be sent to that lacks only capacity, or asked for a pause.

    0 = as soon as a request ends; None = there is no such endpoint.
    """
    soonest_s: float | None = None
    for live in shut:
        if live.held:
            continue
        if live.is_cooling:
            wait_s = live.reopens_in_s
        elif live.breaker == "open":
            continue
        else:
            wait_s = 0.0
        soonest_s = wait_s if soonest_s is None else min(soonest_s, wait_s)
    return soonest_s


def excluded(
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    preference: Preference,
    *,
    kept: Collection[str],
    tried: Collection[str],
) -> list[tuple[str, str]]:
    """(id, reason) of every endpoint of the models wanted that is not among `kept`."""
    listed = []
    for one, _ in pool_of(facts, policy):
        if one.id in kept:
            continue
        row = row_of(one, view.snapshot, facts)
        reason = lasting_reason(one, row, facts, policy, preference)
        if reason is None and one.id in tried:
            reason = "tried: this request was already sent there"
        if reason is None:
            live = view.live.get(one.id, NOT_SEEN)
            reason = live_reason(live, is_batch=facts.lane is Lane.BATCH)
        listed.append((one.id, reason))
    return listed


def is_only_silent(live: EndpointLive) -> bool:
    """It told its load and has not for a while, and nothing else is against it."""
    return (
        live.is_silent
        and not live.held
        and not live.is_cooling
        and live.breaker != "open"
        and live.in_flight < live.capacity
    )


def pool_of(facts: RequestFacts, policy: Policy) -> list[tuple[Indexed, int]]:
    """Every endpoint of every model wanted, each once, with the index of its model."""
    models = facts.models
    if len(models) == 1:
        return [(one, 0) for one in policy.pools.get(models[0], ())]
    seen: set[str] = set()
    pool: list[tuple[Indexed, int]] = []
    # `partition: none` sorts across the fallback models, as if they were one.
    is_one_pool = facts.preferences.partition == "none"
    for index, model in enumerate(models):
        for one in policy.pools.get(model, ()):
            if one.id not in seen:
                seen.add(one.id)
                pool.append((one, 0 if is_one_pool else index))
    return pool


def _static_reason(
    one: Indexed, facts: RequestFacts, needs: frozenset[str], asked_tier: str
) -> str | None:
    """What does not change while a policy is in force."""
    endpoint = one.endpoint
    if facts.surface not in one.serves:
        return f"surface: does not serve {facts.surface.value}"
    if not one.has_key:
        return f"key: {endpoint.key_env} is not set"
    if endpoint.tier != STANDARD and not _may_use_tier(endpoint.tier, facts, asked_tier):
        return f"tier: {endpoint.tier} endpoints are used only when asked for"
    if one.can is not None and not needs <= one.can:
        return f"capability: lacks {', '.join(sorted(needs - one.can))}"
    context = endpoint.context_tokens_max
    if context is not None and facts.prompt_tokens > context:
        return f"context: the prompt is about {facts.prompt_tokens} tokens, its window is {context}"
    longest = endpoint.output_tokens_max
    if longest is not None and facts.max_tokens is not None and facts.max_tokens > longest:
        return f"max_output: answers at most {longest} tokens, {facts.max_tokens} are asked for"
    return None


def _may_use_tier(tier: str, facts: RequestFacts, asked_tier: str) -> bool:
    if tier == asked_tier:
        return True
    if tier == "priority":
        return facts.suffix == "nitro"
    is_patient = facts.lane == Lane.BATCH
    return is_patient or (tier == "flex" and facts.suffix == "floor")


def _preference_reason(one: Indexed, facts: RequestFacts) -> str | None:
    """The hard parts of OpenRouter's `provider` object."""
    wants, endpoint = facts.preferences, one.endpoint
    if wants.only and not _is_named(one, wants.only):
        return "only: not in the request's provider.only"
    if wants.ignore and _is_named(one, wants.ignore):
        return "ignore: in the request's provider.ignore"
    if wants.order and not wants.allow_fallbacks and not _is_named(one, wants.order):
        return "order: not in provider.order, and allow_fallbacks is false"
    if wants.quantizations and endpoint.quantisation not in wants.quantizations:
        return f"quantizations: serves {endpoint.quantisation}"
    if wants.data_collection == "deny" and endpoint.stores_data is not False:
        known = "stores prompts" if endpoint.stores_data else "is not known not to store prompts"
        return f"data_collection: {known}"
    if wants.zdr and endpoint.zero_retention is not True:
        return "zdr: is not known to retain nothing"
    if wants.enforce_distillable_text and endpoint.distillable is not True:
        return "enforce_distillable_text: its terms are not known to allow it"
    if wants.require_parameters and endpoint.parameters is not None:
        missing = facts.parameters - endpoint.parameters
        if missing:
            return f"require_parameters: does not support {', '.join(sorted(missing))}"
    return None


def rank_in_order(one: Indexed, order: tuple[str, ...]) -> int:
    """Its place in `provider.order`; behind the last when it is not named."""
    for rank, name in enumerate(order):
        if name.lower() in one.names:
            return rank
    return len(order)


def _is_named(one: Indexed, names: tuple[str, ...]) -> bool:
    return any(name.lower() in one.names for name in names)


def _unpriced_reason(policy: Policy, facts: RequestFacts) -> str | None:
    """Of an endpoint whose price nobody knows, and for which the policy assumes none."""
    if policy.unpriced == "block":
        return "unpriced: its price is unknown; state `price`, or `unpriced: cap` or `allow`"
    if facts.has_budget:
        return "unpriced: its price is unknown, so no budget can be kept; state `price`"
    return None


def _price_reason(row: PriceRow, preference: Preference, facts: RequestFacts) -> str | None:
    wanted = facts.preferences.max_price
    is_limited = preference.input_picos_max is not None or preference.output_picos_max is not None
    if not row.is_priced and (wanted or is_limited):
        return "price_max: its price is unknown, so no limit can be kept"
    for name, limit in (
        ("input", preference.input_picos_max),
        ("output", preference.output_picos_max),
    ):
        picos: int = getattr(row, name)
        if limit is not None and picos > limit:
            return _too_dear("price_max", name, picos, limit / PICOS_OF_USD_PER_MTOK)
    for name, usd in wanted:
        if name == "request":
            if row.request_nanos > usd * _NANOS_OF_USD:
                return f"max_price: costs ${row.request_nanos / _NANOS_OF_USD:g} a request"
        elif name in _PRICE_BUCKETS:
            picos = bucket_picos(row, _PRICE_BUCKETS[name])
            if picos > usd * PICOS_OF_USD_PER_MTOK * (1 + 1e-12):
                return _too_dear("max_price", name, picos, usd)
    return None


def _too_dear(rule: str, name: str, picos: int, limit_usd: float) -> str:
    price = picos / PICOS_OF_USD_PER_MTOK
    return f"{rule}: {name} costs ${price:g} a million tokens, the limit is ${limit_usd:g}"
