"""What a request is predicted to take and to cost at one endpoint (reliability B.3).

load = max(1, (in flight + 1) / places)
T    = load · (TTFT(uncached prompt) + expected output / decode rate)
C    = (uncached · input + cached · cached_read + output · output price) · waste
J    = T + (1 − p)/p · time lost by a failure + λ · C

On a self-hosted machine that tells its load, C is what the seconds cost that the request adds.

What depends only on the snapshot is worked out once a snapshot (`Rates`); `weigh` is the formula,
the only one: a decision ranks by it, and an explanation shows what it found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, sqrt
from statistics import NormalDist

import msgspec

from gateway.core import (
    PICOS_PER_NANO,
    EndpointLive,
    EndpointStats,
    FleetView,
    PriceRow,
    RequestFacts,
    ScoreTerms,
)
from gateway.policy.marginal import added_seconds
from gateway.policy.marginal import cost_nanos as marginal_nanos
from gateway.policy.policy import Indexed
from gateway.prices.rows import bucket_picos
from gateway.wire.pieces import Surface

BATCH_HEADROOM = 0.05  # of the learned capacity, and at least one place
REFERENCE_CHARACTERS = 4.0  # a token, as lengths are learned
DRIFT_SIGMA, DRIFT_TAU_S = 0.35, 600.0
SUCCESS_FLOOR = 0.01  # below it (1 − p)/p says nothing more
Z_95 = 1.6448536269514722  # a normal's 95 % quantile
WITHOUT_OUTPUT = frozenset({Surface.EMBEDDINGS, Surface.COUNT_TOKENS})
NOT_SEEN = EndpointLive(endpoint_id="")

# A draw takes one of so many equally likely quantiles of the standard normal, made ahead once for
# all: the farthest lie 3.3 sigma out, and a thousandth is finer than any belief.
NUM_QUANTILES = 1_024
_QUANTILES = tuple(
    NormalDist().inv_cdf((place + 0.5) / NUM_QUANTILES) for place in range(NUM_QUANTILES)
)
_PLACES = NUM_QUANTILES - 1
_DRAW_BITS = 2.0**53

# The belief about an endpoint that the snapshot does not know yet: the estimator's own start.
NOT_MEASURED = EndpointStats(
    endpoint_id="",
    ttft_base_s=0.5,
    prefill_tokens_per_s=7_000.0,
    ttft_mu=-0.6931471805599453,
    ttft_sigma=0.45,
    ttft_n=3.0,
    rate_mu=4.0943445622221,
    rate_sigma=0.35,
    rate_n=3.0,
    success_p=0.95,
    success_n=10.0,
    failure_lost_s=2.0,
)


class Want(msgspec.Struct, gc=False):
    """What every endpoint is weighed for."""

    prompt_tokens: int
    output_tokens: float  # of one choice
    num_choices: int
    others_tokens: float  # what an answer of others may still have before it
    seconds_per_nano: float  # λ


class Rates(msgspec.Struct, frozen=True, gc=False):
    """One endpoint's part of the formula: a snapshot's beliefs and prices, as factors."""

    one: Indexed
    stats: EndpointStats
    row: PriceRow
    id: str
    first_s: float  # of a prompt without tokens
    prompt_token_s: float
    token_s: float
    success_p: float
    failure_s: float
    input_nanos: float  # a token, waste included; so are those below
    cached_nanos: float
    output_nanos: float
    request_nanos: float
    hour_nanos: int | None  # of its own machine
    is_end_to_end: bool  # judged by whole answers, which have no first token
    first_width: float  # sigma / √n of the belief in ln TTFT, or in ln time of a whole answer
    token_width: float  # the same of ln decode rate
    luck: float  # no draw is below this part of the score


class Weighed(msgspec.Struct, gc=False):
    """What the formula made of one endpoint for one request."""

    score_s: float
    load: float
    ttft_s: float
    decode_s: float
    cost_nanos: float
    rates: Rates
    live: EndpointLive


def want_of(
    facts: RequestFacts, view: FleetView, seconds_per_nano: float, *, has_output: bool
) -> Want:
    output = view.output_tokens_expected if has_output else 0.0
    if facts.max_tokens is not None and output > facts.max_tokens:
        output = float(facts.max_tokens)
    return Want(
        facts.prompt_tokens,
        output,
        facts.num_choices,
        view.output_tokens_expected,
        seconds_per_nano,
    )


def rates_of(
    one: Indexed, stats: EndpointStats, row: PriceRow, *, is_whole: bool, has_output: bool
) -> Rates:
    """
    The factors of one endpoint.

    `is_whole`: answered at once, so end-to-end samples count. They are measured as
    time = a + b · tokens; that has no first token in it.
    """
    base_s = stats.e2e_base_s
    is_end_to_end = (
        is_whole and base_s is not None and (not has_output or stats.e2e_n > stats.ttft_n)
    )
    if is_end_to_end and base_s is not None:
        first_s, prompt_token_s = base_s, 0.0
        token_s = stats.e2e_s_per_token or 0.0
        first_width = token_width = stats.ttft_sigma / sqrt(max(stats.e2e_n, 1.0))
    else:
        first_s = exp(stats.ttft_mu)
        prompt_token_s = first_s / (stats.prefill_tokens_per_s * stats.ttft_base_s)
        token_s = exp(-stats.rate_mu)
        drifted = _drifted(stats.sample_age_s)
        first_width = sqrt(stats.ttft_sigma**2 / stats.ttft_n + drifted)
        token_width = sqrt(stats.rate_sigma**2 / stats.rate_n + drifted)
    # Lengths are expected in tokens of four characters; this one may make more of the same text.
    own_tokens = REFERENCE_CHARACTERS / stats.characters_per_token
    token_s *= own_tokens
    success_p = max(stats.success_p, SUCCESS_FLOOR)
    waste = stats.waste / PICOS_PER_NANO
    return Rates(
        one=one,
        stats=stats,
        row=row,
        id=one.id,
        first_s=first_s,
        prompt_token_s=prompt_token_s,
        token_s=token_s,
        success_p=success_p,
        failure_s=(1.0 - success_p) / success_p * stats.failure_lost_s,
        input_nanos=row.input * waste,
        cached_nanos=bucket_picos(row, "cached_read") * waste,
        output_nanos=row.output * waste * own_tokens,
        request_nanos=float(row.request_nanos),
        hour_nanos=one.endpoint.usd_per_hour_nanos,
        is_end_to_end=is_end_to_end,
        first_width=first_width,
        token_width=token_width,
        luck=exp(_QUANTILES[0] * max(first_width, token_width)),
    )


def _drifted(age_s: float | None) -> float:
    """
    Variance of ln speed that an endpoint may have gained since its last sample.

    Speeds wander (an Ornstein-Uhlenbeck walk); without this an endpoint that was slow once would
    never be looked at again, however fast it became.
    """
    if age_s is None:
        return DRIFT_SIGMA * DRIFT_SIGMA
    return DRIFT_SIGMA * DRIFT_SIGMA * (1.0 - exp(-2.0 * age_s / DRIFT_TAU_S))


def weigh(
    pool: Iterable[Rates],
    live_of: Mapping[str, EndpointLive],
    want: Want,
    *,
    is_batch: bool = False,
    is_forced: bool = False,
) -> tuple[list[Weighed], list[tuple[Rates, EndpointLive]]]:
    """
    J at the means of all that are open to a request now, and those that are not.

    `is_forced` weighs these too. This loop is most of a decision: it calls nothing it can avoid.
    """
    weighed: list[Weighed] = []
    shut: list[tuple[Rates, EndpointLive]] = []
    prompt_tokens, output_tokens = want.prompt_tokens, want.output_tokens
    billed_tokens, seconds_per_nano = output_tokens * want.num_choices, want.seconds_per_nano
    for rates in pool:
        live = live_of.get(rates.id, NOT_SEEN)
        in_flight, capacity = live.in_flight, live.capacity
        if (
            live.breaker == "open"
            or in_flight >= capacity
            or live.is_silent
            or live.is_cooling
            or (is_batch and (live.is_full or in_flight >= batch_limit(capacity)))
        ) and not is_forced:
            shut.append((rates, live))
            continue
        taken = in_flight + 1
        places = live.places
        load = taken / places if taken > places > 0.0 else 1.0
        uncached, cached = prompt_tokens, live.cached_tokens
        if cached:
            cached = min(cached, uncached)
            uncached -= cached
        ttft_s = rates.first_s + uncached * rates.prompt_token_s
        decode_s = output_tokens * rates.token_s
        cost_nanos = (
            uncached * rates.input_nanos + billed_tokens * rates.output_nanos + rates.request_nanos
        )
        if cached:
            cost_nanos += cached * rates.cached_nanos
        if live.machine is not None and rates.hour_nanos is not None:
            seconds = machine_s(rates, live, want)
            if seconds is not None:
                cost_nanos = float(marginal_nanos(rates.hour_nanos, seconds))
        score_s = load * (ttft_s + decode_s) + rates.failure_s + seconds_per_nano * cost_nanos
        weighed.append(Weighed(score_s, load, ttft_s, decode_s, cost_nanos, rates, live))
    return weighed, shut


def batch_limit(capacity: float) -> float:
    """What batch may fill: whoever waits for an answer finds a place, or one about to be free."""
    return max(1.0, capacity - max(1.0, BATCH_HEADROOM * capacity))


def machine_s(rates: Rates, live: EndpointLive, want: Want) -> float | None:
    """Seconds that the request adds to the endpoint's own machine; None where it has or tells
    none."""
    if live.machine is None or rates.hour_nanos is None:
        return None
    seconds = added_seconds(
        live,
        prompt_tokens=max(0, want.prompt_tokens - live.cached_tokens),
        output_tokens=want.output_tokens,
        others_tokens=want.others_tokens,
        num_choices=want.num_choices,
    )
    return None if seconds is None else seconds * rates.stats.waste


def time_p95_s(entry: Weighed) -> float:
    """T that 95 of 100 requests stay under, both parts taken at their own 95 % (an upper bound)."""
    stats = entry.rates.stats
    slow_decode = stats.ttft_sigma if entry.rates.is_end_to_end else stats.rate_sigma
    return entry.load * (
        entry.ttft_s * exp(Z_95 * stats.ttft_sigma) + entry.decode_s * exp(Z_95 * slow_decode)
    )


def drawn_s(entry: Weighed, draw: float, seconds_per_nano: float) -> float:
    """
    J at one draw of ln TTFT and ln rate from the belief N(mu, sigma²/n) (reliability B.4.3).

    One uniform number serves the whole decision. Multiplied by an endpoint's own odd number its
    middle bits are a hash of it, two for each endpoint, independent of the others'.
    """
    rates = entry.rates
    bits = int(draw * _DRAW_BITS) * rates.one.rendezvous
    ttft_s = entry.ttft_s * exp(_QUANTILES[bits >> 44 & _PLACES] * rates.first_width)
    if rates.is_end_to_end:
        bits >>= 10  # one belief about both parts: one quantile
    decode_s = entry.decode_s * exp(_QUANTILES[bits >> 34 & _PLACES] * rates.token_width)
    return entry.load * (ttft_s + decode_s) + rates.failure_s + seconds_per_nano * entry.cost_nanos


def terms_of(entry: Weighed, draw: float | None, want: Want) -> ScoreTerms:
    """All terms, for whoever wants to add them up again; not drawn, the draw is the mean."""
    rates = entry.rates
    cached = min(entry.live.cached_tokens, want.prompt_tokens)
    return ScoreTerms(
        load=entry.load,
        uncached_tokens=want.prompt_tokens - cached,
        cached_tokens=cached,
        ttft_s=entry.ttft_s,
        decode_s=entry.decode_s,
        time_s=entry.load * (entry.ttft_s + entry.decode_s),
        success_p=rates.success_p,
        failure_s=rates.failure_s,
        cost_nanos=round(entry.cost_nanos),
        cost_s=want.seconds_per_nano * entry.cost_nanos,
        score_s=entry.score_s,
        drawn_score_s=entry.score_s
        if draw is None
        else drawn_s(entry, draw, want.seconds_per_nano),
        machine_s=machine_s(rates, entry.live, want),
    )
