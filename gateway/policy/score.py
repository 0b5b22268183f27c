"""What a request is predicted to take and to cost at one endpoint (reliability B.3).

load = max(1, (in flight + 1) / capacity)
T    = load · (TTFT(uncached prompt) + expected output / decode rate)
C    = (uncached · input + cached · cached_read + output · output price) · waste
J    = T + (1 − p)/p · time lost by a failure + λ · C

On a self-hosted machine that tells its load, C is what the seconds cost that the request adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, exp, log, sin, sqrt
from math import tau as TAU

import msgspec

from gateway.core import (
    PICOS_PER_NANO,
    EndpointLive,
    EndpointStats,
    FleetView,
    PriceRow,
    RequestFacts,
    Rng,
    ScoreTerms,
)
from gateway.policy.marginal import added_seconds
from gateway.policy.marginal import cost_nanos as marginal_nanos
from gateway.prices.rows import bucket_picos
from gateway.wire.pieces import Surface

SUCCESS_FLOOR = 0.01  # below it (1 − p)/p says nothing more
Z_95 = 1.6448536269514722  # a normal's 95 % quantile
WITHOUT_OUTPUT = frozenset({Surface.EMBEDDINGS, Surface.COUNT_TOKENS})

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


@dataclass(frozen=True, slots=True)
class Expected:
    """What every endpoint is scored for."""

    prompt_tokens: int
    output_tokens: float
    seconds_per_nano: float  # λ
    others_tokens: float  # what an answer of others may still have before it
    is_whole: bool  # answered at once: no stream, end-to-end samples count
    has_output: bool
    num_choices: int


class Score(msgspec.Struct, gc=False):
    """One endpoint's terms, before they are frozen for the record. (A Struct is built in C.)"""

    stats: EndpointStats
    load: float
    uncached: int
    cached: int
    ttft_s: float
    decode_s: float
    time_s: float
    success_p: float
    failure_s: float
    cost_nanos: int
    cost_s: float
    score_s: float
    drawn_s: float
    time_p95_s: float
    is_end_to_end: bool
    machine_s: float | None


def expected_of(facts: RequestFacts, view: FleetView, seconds_per_nano: float) -> Expected:
    has_output = facts.surface not in WITHOUT_OUTPUT
    output = view.output_tokens_expected if has_output else 0.0
    if facts.max_tokens is not None and output > facts.max_tokens:
        output = float(facts.max_tokens)
    return Expected(
        prompt_tokens=facts.prompt_tokens,
        output_tokens=output,
        seconds_per_nano=seconds_per_nano,
        others_tokens=view.output_tokens_expected,
        is_whole=not facts.stream,
        has_output=has_output,
        num_choices=facts.num_choices,
    )


def score_endpoint(
    stats: EndpointStats,
    live: EndpointLive,
    row: PriceRow,
    want: Expected,
    hour_nanos: int | None = None,
) -> Score:
    """J at the means. The drawn score starts equal to it. `hour_nanos`: of its own machine."""
    load = (live.in_flight + 1) / live.places if live.places > 0 else 1.0
    if load < 1.0:
        load = 1.0
    cached, uncached = live.cached_tokens, want.prompt_tokens
    if cached:
        cached = min(cached, uncached)
        uncached -= cached
    base = stats.e2e_base_s
    is_end_to_end = (
        want.is_whole and base is not None and (not want.has_output or stats.e2e_n > stats.ttft_n)
    )
    if is_end_to_end and base is not None:
        # Whole answers are measured as time = a + b · tokens; that has no first token in it.
        ttft_s = base
        decode_s = (stats.e2e_s_per_token or 0.0) * want.output_tokens
    else:
        prefill = 1.0 + uncached / (stats.prefill_tokens_per_s * stats.ttft_base_s)
        ttft_s = exp(stats.ttft_mu) * prefill
        decode_s = want.output_tokens * exp(-stats.rate_mu) if want.output_tokens else 0.0
    time_s = load * (ttft_s + decode_s)
    success = stats.success_p if stats.success_p > SUCCESS_FLOOR else SUCCESS_FLOOR
    failure_s = (1.0 - success) / success * stats.failure_lost_s
    picos = uncached * row.input + want.output_tokens * want.num_choices * row.output
    if cached:
        picos += cached * bucket_picos(row, "cached_read")
    cost_nanos = int(picos * stats.waste / PICOS_PER_NANO) + row.request_nanos
    machine_s = None
    if hour_nanos is not None and live.machine is not None:
        machine_s = added_seconds(
            live,
            prompt_tokens=uncached,
            output_tokens=want.output_tokens,
            others_tokens=want.others_tokens,
            num_choices=want.num_choices,
        )
        if machine_s is not None:
            machine_s *= stats.waste
            cost_nanos = marginal_nanos(hour_nanos, machine_s)
    cost_s = want.seconds_per_nano * cost_nanos
    score_s = time_s + failure_s + cost_s
    return Score(
        stats, load, uncached, cached, ttft_s, decode_s, time_s, success, failure_s,
        cost_nanos, cost_s, score_s, score_s, 0.0, is_end_to_end, machine_s,
    )  # fmt: skip


def time_p95_s(score: Score) -> float:
    """T that 95 of 100 requests stay under, both parts taken at their own 95 % (an upper bound)."""
    stats = score.stats
    slow_decode = stats.ttft_sigma if score.is_end_to_end else stats.rate_sigma
    return score.load * (
        score.ttft_s * exp(Z_95 * stats.ttft_sigma) + score.decode_s * exp(Z_95 * slow_decode)
    )


def draw(score: Score, rng: Rng) -> float:
    """
    J at one draw of ln TTFT and ln rate from the belief N(mu, sigma²/n) (reliability B.4.3).

    Both normals come from two uniforms (Box and Muller), half the cost of two `gauss` calls.
    """
    stats = score.stats
    radius = sqrt(-2.0 * log(1.0 - rng.random()))
    angle = TAU * rng.random()
    if score.is_end_to_end:
        width = stats.ttft_sigma / sqrt(max(stats.e2e_n, 1.0))
        time_s = score.time_s * exp(radius * cos(angle) * width)
        return time_s + score.failure_s + score.cost_s
    ttft_s = score.ttft_s * exp(radius * cos(angle) * stats.ttft_sigma / sqrt(stats.ttft_n))
    decode_s = score.decode_s
    if decode_s:
        decode_s *= exp(radius * sin(angle) * stats.rate_sigma / sqrt(stats.rate_n))
    return score.load * (ttft_s + decode_s) + score.failure_s + score.cost_s


def frozen(score: Score) -> ScoreTerms:
    """The terms for the record."""
    return ScoreTerms(
        load=score.load,
        uncached_tokens=score.uncached,
        cached_tokens=score.cached,
        ttft_s=score.ttft_s,
        decode_s=score.decode_s,
        time_s=score.time_s,
        success_p=score.success_p,
        failure_s=score.failure_s,
        cost_nanos=score.cost_nanos,
        cost_s=score.cost_s,
        score_s=score.score_s,
        drawn_score_s=score.drawn_s,
        machine_s=score.machine_s,
    )
