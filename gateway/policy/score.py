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
from math import exp, inf, sqrt
from statistics import NormalDist

import msgspec

from gateway.core import (
    PICOS_PER_NANO,
    REFERENCE_CHARACTERS,
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
from gateway.stats.predictive import drifted, is_end_to_end
from gateway.stats.seeded import Seeded
from gateway.wire.pieces import Surface

BATCH_HEADROOM = 0.05  # of the learned capacity, and at least one place
SUCCESS_FLOOR = 0.01  # below it (1 − p)/p says nothing more
Z_95 = 1.6448536269514722  # a normal's 95 % quantile
WITHOUT_OUTPUT = frozenset({Surface.EMBEDDINGS, Surface.COUNT_TOKENS})
NOT_SEEN = EndpointLive(endpoint_id="")

# Draws made ahead, once for all: equally likely quantiles of the standard normal in a random order.
# One number of a decision is the place in this ring from which every endpoint counts on by its own
# two steps, so what they draw has no more in common than the order has.
NUM_DRAWS = 4_096
_LAST = NUM_DRAWS - 1


def _ring() -> tuple[float, ...]:
    rng = Seeded(NUM_DRAWS)
    order = sorted(range(NUM_DRAWS), key=lambda _: rng.random())
    return tuple(NormalDist().inv_cdf((place + 0.5) / NUM_DRAWS) for place in order)


_RING = _ring()
_LOWEST = min(_RING)

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
    """
    What every endpoint is weighed for.

    Scores hold if choices and λ are those that the rates were made for.
    """

    prompt_tokens: int
    output_tokens: float  # of one choice
    num_choices: int
    others_tokens: float  # what an answer of others may still have before it
    longest_tokens: float  # what a deadline is judged by
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
    first_step: int  # from a decision's place in the ring of draws to this endpoint's own
    token_step: int
    luck: float  # no draw is below this part of the score
    start_score_s: float  # J of no tokens with room, and what each token adds to it
    prompt_score_s: float
    output_score_s: float


class Weighed(msgspec.Struct, gc=False):
    """What the formula made of one endpoint for one request; its parts are worked out if asked."""

    score_s: float
    load: float
    uncached: int
    rates: Rates
    live: EndpointLive
    want: Want

    @property
    def ttft_s(self) -> float:
        """At load 1."""
        return self.rates.first_s + self.uncached * self.rates.prompt_token_s

    @property
    def decode_s(self) -> float:
        """At load 1."""
        return self.want.output_tokens * self.rates.token_s

    @property
    def machine_s(self) -> float | None:
        """Seconds that the request adds to the endpoint's own machine; None where it has none, or
        tells nothing."""
        if self.live.machine is None or self.rates.hour_nanos is None:
            return None
        seconds = added_seconds(
            self.live,
            prompt_tokens=self.uncached,
            output_tokens=self.want.output_tokens,
            others_tokens=self.want.others_tokens,
            num_choices=self.want.num_choices,
        )
        return None if seconds is None else seconds * self.rates.stats.waste

    @property
    def cost_nanos(self) -> float:
        """C: by tokens, or by the seconds of its own machine."""
        rates, want = self.rates, self.want
        seconds = self.machine_s
        if seconds is not None:
            return float(marginal_nanos(rates.hour_nanos or 0, seconds))
        return (
            self.uncached * rates.input_nanos
            + (want.prompt_tokens - self.uncached) * rates.cached_nanos
            + want.output_tokens * want.num_choices * rates.output_nanos
            + rates.request_nanos
        )


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
        max(output, min(view.output_tokens_longest, facts.max_tokens or view.output_tokens_longest))
        if has_output
        else 0.0,
        seconds_per_nano,
    )


def rates_of(
    one: Indexed,
    stats: EndpointStats,
    row: PriceRow,
    *,
    is_whole: bool,
    has_output: bool,
    num_choices: int = 1,
    seconds_per_nano: float = 0.0,
    salt: int = 0,
) -> Rates:
    """
    The factors of one endpoint.

    `is_whole`: answered at once, so end-to-end samples count. They are measured as
    time = a + b · tokens; that has no first token in it. `salt` is the snapshot's own: endpoints
    that happen to draw alike do so no longer than it lives.
    """
    base_s = stats.e2e_base_s
    is_line = is_end_to_end(stats, is_whole=is_whole, has_output=has_output)
    if is_line and base_s is not None:
        first_s, prompt_token_s = base_s, 0.0
        token_s = stats.e2e_s_per_token or 0.0
        first_width = token_width = stats.ttft_sigma / sqrt(max(stats.e2e_n, 1.0))
    else:
        first_s = exp(stats.ttft_mu)
        prompt_token_s = first_s / (stats.prefill_tokens_per_s * stats.ttft_base_s)
        token_s = exp(-stats.rate_mu)
        drift = drifted(stats.sample_age_s)
        first_width = sqrt(stats.ttft_sigma**2 / stats.ttft_n + drift)
        token_width = sqrt(stats.rate_sigma**2 / stats.rate_n + drift)
    # Lengths are expected in tokens of four characters; this one may make more of the same text.
    own_tokens = REFERENCE_CHARACTERS / stats.characters_per_token
    token_s *= own_tokens
    steps = one.rendezvous * (2 * salt + 1)
    first_step, token_step = steps >> 16 & _LAST, steps >> 32 & _LAST
    if is_line:
        token_step = first_step  # one belief about both parts: one draw
    success_p = max(stats.success_p, SUCCESS_FLOOR)
    failure_s = (1.0 - success_p) / success_p * stats.failure_lost_s
    nanos = stats.waste / PICOS_PER_NANO  # of a pico-dollar a useful token
    input_nanos, output_nanos = row.input * nanos, row.output * nanos * own_tokens
    return Rates(
        one=one,
        stats=stats,
        row=row,
        id=one.id,
        first_s=first_s,
        prompt_token_s=prompt_token_s,
        token_s=token_s,
        success_p=success_p,
        failure_s=failure_s,
        input_nanos=input_nanos,
        cached_nanos=bucket_picos(row, "cached_read") * nanos,
        output_nanos=output_nanos,
        request_nanos=float(row.request_nanos),
        hour_nanos=one.endpoint.usd_per_hour_nanos,
        is_end_to_end=is_line,
        first_width=first_width,
        token_width=token_width,
        first_step=first_step,
        token_step=token_step,
        luck=exp(_LOWEST * max(first_width, token_width)),
        start_score_s=first_s + failure_s + seconds_per_nano * row.request_nanos,
        prompt_score_s=prompt_token_s + seconds_per_nano * input_nanos,
        output_score_s=token_s + seconds_per_nano * output_nanos * num_choices,
    )


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
    for rates in pool:
        try:
            live = live_of[rates.id]
        except KeyError:
            live = NOT_SEEN
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
        is_easy = taken <= live.places and taken <= capacity
        if is_easy and not live.cached_tokens and live.machine is None:
            # Mostly J is linear in the tokens of prompt and answer.
            score_s = (
                rates.start_score_s
                + prompt_tokens * rates.prompt_score_s
                + output_tokens * rates.output_score_s
            )
            weighed.append(Weighed(score_s, 1.0, prompt_tokens, rates, live, want))
        else:
            weighed.append(_weigh_busy(rates, live, want))
    return weighed, shut


def _weigh_busy(rates: Rates, live: EndpointLive, want: Want) -> Weighed:
    """The same where load, a cached prefix or its own machine make one endpoint special."""
    taken = live.in_flight + 1
    room = min(live.places, live.capacity)
    load = taken / room if taken > room > 0.0 else 1.0
    uncached = want.prompt_tokens - min(live.cached_tokens, want.prompt_tokens)
    entry = Weighed(0.0, load, uncached, rates, live, want)
    time_s = load * (entry.ttft_s + entry.decode_s)
    entry.score_s = time_s + rates.failure_s + want.seconds_per_nano * entry.cost_nanos
    return entry


def batch_limit(capacity: float) -> float:
    """What batch may fill: whoever waits for an answer finds a place, or one about to be free."""
    return max(1.0, capacity - max(1.0, BATCH_HEADROOM * capacity))


def time_p95_s(entry: Weighed) -> float:
    """
    T that 95 of 100 requests stay under: an upper bound.

    Both parts are taken at their own 95 %, and the answer at the 99 % of its model's lengths: the
    long ones are those that miss a deadline.
    """
    stats = entry.rates.stats
    decode_s = entry.rates.token_s * entry.want.longest_tokens
    slow_decode = stats.ttft_sigma if entry.rates.is_end_to_end else stats.rate_sigma
    return entry.load * (
        entry.ttft_s * exp(Z_95 * stats.ttft_sigma) + decode_s * exp(Z_95 * slow_decode)
    )


def drawn_s(entries: Iterable[Weighed], draw: int, *, among_best: bool = False) -> list[float]:
    """
    J at a draw of ln TTFT and ln rate from the belief N(mu, sigma²/n) (reliability B.4.3), of each.

    `draw` is a place in the ring. `among_best` leaves at infinity those that no draw could make the
    best of the entries so far, which saves most of the work.
    """
    found: list[float] = []
    best_s = inf
    for entry in entries:
        rates, score_s = entry.rates, entry.score_s
        if among_best and score_s * rates.luck >= best_s:
            found.append(inf)
            continue
        first = exp(_RING[draw + rates.first_step & _LAST] * rates.first_width)
        token = exp(_RING[draw + rates.token_step & _LAST] * rates.token_width)
        # J moves by what its two times move.
        score_s += entry.load * (
            (rates.first_s + entry.uncached * rates.prompt_token_s) * (first - 1.0)
            + entry.want.output_tokens * rates.token_s * (token - 1.0)
        )
        found.append(score_s)
        if score_s < best_s:
            best_s = score_s
    return found


def terms_of(entry: Weighed, draw: int | None) -> ScoreTerms:
    """All terms, for whoever wants to add them up again; not drawn, the draw is the mean."""
    ttft_s, decode_s, cost_nanos = entry.ttft_s, entry.decode_s, entry.cost_nanos
    return ScoreTerms(
        load=entry.load,
        uncached_tokens=entry.uncached,
        cached_tokens=entry.want.prompt_tokens - entry.uncached,
        ttft_s=ttft_s,
        decode_s=decode_s,
        time_s=entry.load * (ttft_s + decode_s),
        success_p=entry.rates.success_p,
        failure_s=entry.rates.failure_s,
        cost_nanos=round(cost_nanos),
        cost_s=entry.want.seconds_per_nano * cost_nanos,
        score_s=entry.score_s,
        drawn_score_s=entry.score_s if draw is None else drawn_s([entry], draw)[0],
        machine_s=entry.machine_s,
    )
