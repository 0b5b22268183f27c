"""What another policy would have done with a request of the past, and what that comes to. Pure.

Where it would have tried the same endpoint first, the outcome is the real one. Elsewhere it is
predicted from the beliefs of that moment, by the formula of `gateway.policy.score`, for the answer
length that was really seen. Nothing here knows where records come from: `looprouter policy
simulate` reads the request log, the simulator hands over its own, and shadow mode asks at once.

Left out, and to be said wherever this is shown: other choices would have changed the load, the
caches and what was learned afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import expm1, hypot, sqrt

import msgspec
from msgspec import structs

from gateway.core import Endpoint, FleetSnapshot, FleetView, Plan, PriceRow, RequestFacts
from gateway.errors import ApiError, NoEligibleEndpoint
from gateway.policy.decide import decide
from gateway.policy.filter import row_of
from gateway.policy.policy import Policy
from gateway.policy.score import NOT_MEASURED, WITHOUT_OUTPUT, Want, Weighed, rates_of, weigh
from gateway.prices.book import OPERATORS
from gateway.prices.rows import UNPRICED
from gateway.stats.seeded import Seeded

Z_90 = 1.6448536269514722  # half the width of a normal's central 90 %
_RESIDUAL = 0x5EED_0F_7E51_D0A1  # so that residuals do not follow the draws of decisions

PriceRows = Callable[[Endpoint, float], tuple[PriceRow, ...]]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What one request is expected to take and cost at one endpoint."""

    time_s: float  # T of the score formula, dispatch to last token
    time_p5_s: float
    time_p95_s: float  # nine in ten requests end between the two
    cost_nanos: int  # C of the score formula
    success_p: float

    def time_at(self, z: float) -> float:
        """
        The time at a standard normal `z`: −1.64 gives `time_p5_s`, 0 `time_s`, 1.64 `time_p95_s`;
        log-normal on either side.
        """
        end_s = self.time_p95_s if z > 0.0 else self.time_p5_s
        return float(self.time_s * (end_s / self.time_s) ** abs(z / Z_90))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What really became of a request that was answered."""

    time_s: float  # accepted to last byte
    cost_nanos: int  # what the providers charge, every attempt
    output_tokens: float  # of one choice
    prompt_tokens: int | None = None  # as counted by the provider
    wait_s: float = 0.0  # of `time_s`, before dispatch
    num_attempts: int = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the past: what it was taken on, and what came of it."""

    facts: RequestFacts
    view: FleetView
    seed: int
    chosen: str  # the endpoint that was tried first
    outcome: Outcome | None = None  # None: it failed, or its client left


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy makes of one record."""

    endpoint_id: str = ""  # "" = refused
    route: str = ""
    refusal: str = ""  # the rules behind it: "price_max", "capacity, breaker", "unknown_model"
    is_predicted: bool = False  # not what really happened
    was_unseen: bool = False  # the record does not say how busy this endpoint was: taken as idle
    time_s: float | None = None  # None: refused, or the record has no outcome
    expected_s: float | None = None  # of a predicted one, without the residual drawn for `time_s`
    cost_nanos: int | None = None


def predict(
    facts: RequestFacts,
    view: FleetView,
    policy: Policy,
    endpoint_id: str,
    output_tokens: float,
) -> Predicted:
    """
    Time and cost of one request at an endpoint of `policy`, whether or not it would be chosen.

    `output_tokens` is of one choice. The interval is that of one request, not of the mean: the
    spread of TTFT and decode rate, widened by how little the belief rests on. The deviations of two
    log-normals from their medians add as the root of their squares, each side for itself: 85 to
    91 % lie inside where sigmas are 0.1 to 1.2. Raises KeyError for an unknown endpoint.
    """
    one = policy.pools[endpoint_id][0]
    has_output = facts.surface not in WITHOUT_OUTPUT
    rates = rates_of(
        one,
        view.snapshot.stats.get(one.id, NOT_MEASURED),
        row_of(one, view.snapshot, facts),
        is_whole=not facts.stream,
        has_output=has_output,
    )
    want = Want(
        facts.prompt_tokens,
        output_tokens if has_output else 0.0,
        facts.num_choices,
        view.output_tokens_expected,
        output_tokens,
        0.0,
    )
    (entry,), _ = weigh((rates,), view.live, want, is_forced=True)
    time_s = entry.ttft_s + entry.decode_s
    return Predicted(
        time_s=entry.load * time_s,
        time_p5_s=entry.load * (time_s - _deviation_s(entry, -Z_90)),
        time_p95_s=entry.load * (time_s + _deviation_s(entry, Z_90)),
        cost_nanos=round(entry.cost_nanos),
        success_p=rates.success_p,
    )


def _deviation_s(entry: Weighed, z: float) -> float:
    """How far ttft + decode of one request lies from its median at `z` sigma of both parts."""
    stats, rates = entry.rates.stats, entry.rates
    of_first = sqrt(stats.ttft_sigma**2 + rates.first_width**2)
    if rates.is_end_to_end:  # one measurement of the whole
        return abs((entry.ttft_s + entry.decode_s) * expm1(z * of_first))
    of_token = sqrt(stats.rate_sigma**2 + rates.token_width**2)
    return hypot(entry.ttft_s * expm1(z * of_first), entry.decode_s * expm1(z * of_token))


def priced_by(
    snapshot: FleetSnapshot,
    policy: Policy,
    price_rows: PriceRows | None = None,
    moved: Collection[str] = (),
) -> FleetSnapshot:
    """
    A snapshot of another policy's fleet as `policy` would have seen it.

    Prices that either policy states are not the other's; `price_rows` gives the listed ones of
    endpoints that the snapshot does not have. `moved` endpoints led elsewhere then, so their
    beliefs are those of an endpoint never measured.
    """
    prices: dict[str, tuple[PriceRow, ...]] = {}
    for endpoint_id, endpoint in policy.endpoints.items():
        stated = endpoint.prices
        if stated and stated[0].source == OPERATORS:
            prices[endpoint_id] = stated
            continue
        kept = snapshot.prices.get(endpoint_id, ()) if endpoint_id not in moved else ()
        if kept and kept[0].source not in (OPERATORS, UNPRICED.source):
            prices[endpoint_id] = kept
        elif price_rows is not None:
            prices[endpoint_id] = price_rows(endpoint, snapshot.at_unix_s)
        else:
            prices[endpoint_id] = stated or (UNPRICED,)
    stats = snapshot.stats
    if moved:
        stats = {key: value for key, value in stats.items() if key not in moved}
    return FleetSnapshot(id=snapshot.id, at_unix_s=snapshot.at_unix_s, stats=stats, prices=prices)


def moved_between(then: Policy, now: Policy) -> frozenset[str]:
    """Endpoints of both whose id leads to another address or model in `now`."""
    return frozenset(
        endpoint_id
        for endpoint_id, endpoint in now.endpoints.items()
        if endpoint_id in then.endpoints
        and then.endpoints[endpoint_id].state_key != endpoint.state_key
    )


def seen_by(view: FleetView, snapshot: FleetSnapshot, moved: Collection[str] = ()) -> FleetView:
    """`view` over the snapshot that `priced_by` made of its own."""
    live = view.live
    if moved:
        live = {key: value for key, value in live.items() if key not in moved}
    return structs.replace(view, snapshot=snapshot, live=live)


def judge(
    record: Record, policy: Policy, view: FleetView | None = None, moved: Collection[str] = ()
) -> Judged:
    """
    Decide a record again under `policy`, with the seed it had.

    `view` is what `seen_by` made of the record's; left out, the record's own. A predicted time has
    a residual of the belief's own spread, always the same for a record, so that the p95 of many
    is that of requests and not of their expectations.
    """
    view = view if view is not None else record.view
    facts = record.facts
    try:
        plan = decide(facts, view, policy, Seeded(record.seed), seed=record.seed)
    except ApiError as error:
        return Judged(refusal=refusal_of(error))
    first = plan.order[0]
    outcome = record.outcome
    if first == record.chosen and first not in moved:
        return Judged(
            endpoint_id=first,
            route=plan.route,
            time_s=outcome.time_s if outcome is not None else None,
            cost_nanos=outcome.cost_nanos if outcome is not None else None,
        )
    judged = Judged(
        endpoint_id=first,
        route=plan.route,
        is_predicted=True,
        was_unseen=first not in view.live,
    )
    if outcome is None:
        return judged
    found = predict_record(record, policy, view, first)
    z = Seeded(record.seed ^ _RESIDUAL).gauss(0.0, 1.0)
    return structs.replace(
        judged,
        time_s=outcome.wait_s + found.time_at(z),
        expected_s=outcome.wait_s + found.time_s,
        cost_nanos=found.cost_nanos,
    )


def predict_record(record: Record, policy: Policy, view: FleetView, endpoint_id: str) -> Predicted:
    """`predict` for a record's own answer length, and its own prompt length where it was told."""
    facts, outcome = record.facts, record.outcome
    if outcome is None:
        return predict(facts, view, policy, endpoint_id, view.output_tokens_expected)
    if outcome.prompt_tokens:
        facts = structs.replace(facts, prompt_tokens=outcome.prompt_tokens)
    return predict(facts, view, policy, endpoint_id, outcome.output_tokens)


def refusal_of(error: ApiError) -> str:
    """The rules that excluded every endpoint, or what else was wrong."""
    if isinstance(error, NoEligibleEndpoint) and isinstance(error.detail, list):
        rules = dict.fromkeys(str(each["rule"]) for each in error.detail)
        if rules:
            return ", ".join(rules)
    return error.code or error.type


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """How a second policy's choice differs from the one that was taken; both are predicted."""

    route: str  # of the policy in force
    live: str  # endpoint
    shadow: str  # "" = refused
    refusal: str = ""
    live_s: float = 0.0
    shadow_s: float = 0.0
    live_nanos: int = 0
    shadow_nanos: int = 0

    @property
    def is_agreed(self) -> bool:
        return self.live == self.shadow


def shift(
    facts: RequestFacts, plan: Plan, view: FleetView, policy: Policy, other: Policy,
    other_view: FleetView,
) -> Shift:  # fmt: skip
    """
    What `other` would do with a request that `policy` has just decided as `plan`.

    Both sides are predicted for the answer length expected then, so that their errors cancel where
    they are the same.
    """
    first = plan.order[0]
    length = view.output_tokens_expected
    if facts.max_tokens is not None:
        length = min(length, float(facts.max_tokens))
    try:
        wanted = decide(facts, other_view, other, Seeded(plan.seed), seed=plan.seed).order[0]
    except ApiError as error:
        return Shift(route=plan.route, live=first, shadow="", refusal=refusal_of(error))
    ours = predict(facts, view, policy, first, length)
    theirs = predict(facts, other_view, other, wanted, length)
    return Shift(
        route=plan.route,
        live=first,
        shadow=wanted,
        live_s=ours.time_s,
        shadow_s=theirs.time_s,
        live_nanos=ours.cost_nanos,
        shadow_nanos=theirs.cost_nanos,
    )
