"""Which endpoints may take a request at all. Each exclusion names its rule in a sentence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from gateway.core import EndpointLive, FleetView, Lane, PriceRow, ProviderPreferences, RequestFacts
from gateway.policy.policy import Indexed, Policy
from gateway.policy.routes import Preference
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
BATCH_HEADROOM = 0.05  # of the learned capacity, and at least one place
CAPACITY_RULES = frozenset({"capacity", "pause"})  # a short wait may help against these
NOT_SEEN = EndpointLive(endpoint_id="")
_NO_PREFERENCES = ProviderPreferences()

# Names in OpenRouter's `max_price` → our buckets; `request` is dollars a request.
_PRICE_BUCKETS: dict[str, str] = {
    "prompt": "input",
    "completion": "output",
    "image": "image_input",
    "audio": "audio_input",
}
_NANOS_OF_USD = 1e9


Entry = tuple[Indexed, EndpointLive, PriceRow, int]  # the last: index of the model


@dataclass(slots=True)
class Filtered:
    """Who may serve, and why the others may not."""

    eligible: list[Entry]
    excluded: list[tuple[str, str]]  # endpoint id, "rule: sentence"
    open_breakers: list[Entry]  # nothing else against them
    num_full: int  # excluded by learned capacity, or a pause it asked for, alone
    silent: list[Entry] = field(default_factory=list)  # interactive ones: nobody knows their load
    free_in_s: float = inf  # when the first of those may be sent to; 0 = as soon as a request ends


def filter_endpoints(
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    preference: Preference,
    tried: Collection[str],
) -> Filtered:
    """Every endpoint of every model wanted, in the order of the models, judged once."""
    found = Filtered([], [], [], 0)
    live_of, prices = view.live, view.snapshot.prices
    needs = facts.needs & HARD_NEEDS
    asked_tier = tier_of(facts.service_tier)
    surface, prompt_tokens = facts.surface, facts.prompt_tokens
    max_tokens = facts.max_tokens or 0
    is_picky = facts.preferences != _NO_PREFERENCES
    has_limit = preference.input_picos_max is not None or preference.output_picos_max is not None
    is_batch = facts.lane is Lane.BATCH
    for one, model_idx in _pool(facts, policy):
        # Written out, as most endpoints pass: the call that finds the reason is for the others.
        reason = None
        if not (
            one.is_plain
            and surface in one.serves
            and prompt_tokens <= one.context_max
            and max_tokens <= one.output_max
            and (not needs or one.can is None or needs <= one.can)
        ):
            reason = _static_reason(one, facts, needs, asked_tier)
        if reason is None and is_picky:
            reason = _preference_reason(one, facts)
        if reason is not None:
            found.excluded.append((one.id, reason))
            continue
        endpoint = one.endpoint
        rows = prices.get(one.id) or endpoint.prices
        if len(rows) == 1 and not rows[0].context_tokens_min:
            row = rows[0]
        else:
            tier = tier_at_once(asked_tier, endpoint.tier)
            row = pick_row(rows, tier=tier, context_tokens=prompt_tokens)
        if row.source == UNPRICED.source and policy.unpriced != "cap":
            reason = _unpriced_reason(policy, facts)
        if reason is None and (has_limit or is_picky):
            reason = _price_reason(row, preference, facts)
        if reason is None and tried and one.id in tried:
            reason = "tried: this request was already sent there"
        if reason is None:
            live = live_of.get(one.id, NOT_SEEN)
            if live.is_cooling:
                found.num_full += 1
                found.free_in_s = min(found.free_in_s, live.reopens_in_s)
                reason = f"pause: it asked not to be called for {live.reopens_in_s:.1f} s more"
            elif live.breaker == "open":
                found.open_breakers.append((one, live, row, model_idx))
                reason = f"breaker: open, may be tried again in {live.reopens_in_s:.0f} s"
            elif live.is_silent or live.in_flight >= _places(live, is_batch):
                reason = _note_full(found, (one, live, row, model_idx), is_batch)
            else:
                found.eligible.append((one, live, row, model_idx))
                continue
        found.excluded.append((one.id, reason))
    return _carry_on(found)


def _places(live: EndpointLive, is_batch: bool) -> float:
    if not is_batch:
        return live.capacity
    return 0.0 if live.is_full else batch_limit(live.capacity)


def _note_full(found: Filtered, entry: Entry, is_batch: bool) -> str:
    """Note an endpoint that is full, or may be; the reason, with its numbers."""
    live = entry[1]
    found.num_full += 1
    found.free_in_s = 0.0
    if live.is_silent and not is_batch and live.in_flight < live.capacity:
        found.silent.append(entry)
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


def _carry_on(found: Filtered) -> Filtered:
    """Nobody is known to have room: those who only do not tell are tried, but not with batch."""
    if found.silent and not found.eligible:
        found.eligible, tried = found.silent, {entry[0].id for entry in found.silent}
        found.excluded = [each for each in found.excluded if each[0] not in tried]
    return found


def batch_limit(capacity: float) -> float:
    """What batch may fill: whoever waits for an answer finds a place, or one about to be free."""
    return max(1.0, capacity - max(1.0, BATCH_HEADROOM * capacity))


def _pool(facts: RequestFacts, policy: Policy) -> list[tuple[Indexed, int]]:
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
