"""The estimator of one endpoint: attempts in, beliefs about speed, success and price base out."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from gateway.core import AttemptOutcome, EndpointStats
from gateway.errors import FailureClass
from gateway.fleet.belief import Belief, BeliefState
from gateway.fleet.lines import MEMORY_SAMPLES, RATE_START, TTFT_START_S, PrefillLine, WholeLine
from gateway.fleet.sample import Sample, read_sample
from gateway.fleet.slowdown import Slowdown
from gateway.fleet.tokens import TokenRatios, TokensState
from gateway.stats.beta import DecayedBeta
from gateway.stats.decayed import DecayedSums
from gateway.stats.intervals import Measured, lognormal_interval
from gateway.stats.quantiles import HistogramState, LogHistogram
from gateway.stats.timeline import Expected, NoRate, decode_sample, is_buffered

TTFT_SIGMA_START, TTFT_SIGMA_MIN = 0.45, 0.30
RATE_SIGMA_START, RATE_SIGMA_MIN = 0.35, 0.20
QUANTILE_HALF_LIFE_S = 600.0
QUANTILES_EVERY_S = 1.0
SUCCESS_HALF_LIFE_S = 60.0
LOST_START_S, LOST_N0, LOST_HALF_LIFE_S = 3.0, 2.0, 600.0
WHOLE_SAMPLES_MIN = 8  # before the end-to-end line may stand in for streams never seen
STREAM_WEIGHT_MIN = 1.0
HELD_BACK_LINE_MIN = 16  # end-to-end samples before the line may say that a stream was held back
HELD_BACK_DOUBT = 0.9  # what a held-back stream leaves of the beliefs

TIMEOUT_MIN_S, TIMEOUT_MAX_S = 10.0, 120.0
TIMEOUT_REASONING_MAX_S = 300.0  # hidden reasoning runs before the first token
TIMEOUT_COLD_S, TIMEOUT_COLD_REASONING_S = 30.0, 120.0
TIMEOUT_FACTOR = 3.0
TIMEOUT_SAMPLES_MIN = 20.0  # below, the p99 is that of the log-normal belief
COLD_WEIGHT = 5.0
_Z_P99 = 2.326
_LEVELS = (0.5, 0.75, 0.9, 0.99)
_RATE_LEVELS = (0.5, 0.25, 0.1, 0.01)

Quantiles = tuple[float, float, float, float]


class EstimatorState(msgspec.Struct, frozen=True):
    """All of an estimator that a restart should not forget."""

    ttft: BeliefState
    ttft_hidden: BeliefState
    rate: BeliefState
    prefill: Annotated[list[float], msgspec.Meta(min_length=9, max_length=9)]
    whole: Annotated[list[float], msgspec.Meta(min_length=6, max_length=6)]
    answers: Annotated[list[float], msgspec.Meta(min_length=6, max_length=6)]
    answers_n: float
    tokens: TokensState
    histograms: dict[str, HistogramState]
    num_samples: int
    sample_age_s: float | None


class EndpointEstimator:
    """
    Reliability B.2 for one endpoint. `observe` is the only way in; reads never change beliefs.

    Streams with hidden reasoning have a TTFT belief of their own; what is published is that of
    the class the endpoint mostly serves.
    """

    def __init__(self, now_s: float) -> None:
        start, floor = TTFT_SIGMA_START, TTFT_SIGMA_MIN
        self.ttft = Belief(math.log(TTFT_START_S), start, floor, now_s)
        self.ttft_hidden = Belief(math.log(TTFT_START_S), start, floor, now_s)
        self.rate = Belief(math.log(RATE_START), RATE_SIGMA_START, RATE_SIGMA_MIN, now_s)
        self.success = DecayedBeta(SUCCESS_HALF_LIFE_S, now_s)
        self.slowdown = Slowdown()
        self.prefill = PrefillLine()
        self.whole = WholeLine()  # of all answers: for time-outs, and to see what was held back
        self.answers = WholeLine()  # of those asked for whole: published
        self._answers_n = DecayedSums(now_s)
        self.tokens = TokenRatios(now_s)
        self.histograms = {
            "ttft_any": _seconds(now_s),
            "ttft_visible": _seconds(now_s),
            "ttft_base": _seconds(now_s),  # freed of prompt length: for time-outs
            "whole_ratio": _seconds(now_s),  # end-to-end over what the line expects
            "rate": LogHistogram(
                0.1, 100_000.0, half_life_s=QUANTILE_HALF_LIFE_S, start_s=now_s
            ),
        }  # fmt: skip
        self.num_refused_rates: dict[NoRate, int] = {}
        self.num_samples = 0
        self._gave_sample = False  # the outcome at hand
        self.sampled_at_s: float | None = None
        self._lost = DecayedSums(now_s)
        self._timeouts_in_row = 0
        self.whole_rounds_late = 0  # in a row in which whole answers were cut as too late …
        self._timed_out_at_s = -math.inf  # … and when the last one was
        self._shown: dict[str, tuple[int, float, Quantiles]] = {}

    def observe(
        self, outcome: AttemptOutcome, now_s: float
    ) -> tuple[Sample, float | None, list[tuple[str, int]]]:
        """Learn from one attempt: (the sample, its TTFT residual, change points as (what, ±1))."""
        ratios = self.tokens
        self._gave_sample = False
        sample = read_sample(outcome, ratios.characters_per_token, ratios.characters_min)
        ratios.observe(outcome, sample, now_s)
        self._observe_success(sample, outcome, now_s)
        alarms: list[tuple[str, int]] = []
        in_flight = float(max(1, outcome.in_flight))
        is_held_back = sample.may_give_rate and self._observe_rate(sample, outcome, now_s, alarms)
        residual = None if is_held_back else self._observe_ttft(sample, in_flight, now_s, alarms)
        self._keep_times(sample, in_flight, now_s)
        self.num_samples += self._gave_sample  # not by stamps: replicas tell many at once
        return sample, residual, alarms

    def _count_sample(self, now_s: float) -> None:
        self._gave_sample = True
        self.sampled_at_s = now_s

    def _observe_success(self, sample: Sample, outcome: AttemptOutcome, now_s: float) -> None:
        if sample.failure is FailureClass.TIMEOUT_FIRST_TOKEN:
            self._timeouts_in_row += 1
            # Answers that ran side by side are late together: a round of them tells one thing.
            if not outcome.stream and outcome.dispatched_at_s >= self._timed_out_at_s:
                self.whole_rounds_late += 1
                self._timed_out_at_s = now_s
        elif sample.ttft_s is not None or sample.whole_s is not None:
            self._timeouts_in_row = self.whole_rounds_late = 0
        if sample.is_success is None:
            return
        self.success.add(sample.is_success, now_s)
        if not sample.is_success:
            ended_s = outcome.ended_at_s if outcome.ended_at_s is not None else now_s
            self._lost.decay(now_s, LOST_HALF_LIFE_S)
            self._lost.add(max(0.0, ended_s - outcome.dispatched_at_s))

    def _observe_ttft(
        self, sample: Sample, in_flight: float, now_s: float, alarms: list[tuple[str, int]]
    ) -> float | None:
        if sample.ttft_s is None:
            return None
        # Beliefs are of an endpoint that is not loaded; the score puts the load back in.
        self._slow(math.log(max(sample.ttft_s, 1e-4)), sample, in_flight)
        ttft_s = max(sample.ttft_s * math.exp(-self.slowdown.ln_load(in_flight)), 1e-4)
        is_hidden = sample.is_hidden_reasoning
        belief = self.ttft_hidden if is_hidden else self.ttft
        y = math.log(ttft_s) - self.prefill.ln_stretch(sample.uncached_tokens)
        residual = y - belief.at(now_s).mu
        direction = belief.observe(y, 1.0, now_s)
        if direction:
            alarms.append(("ttft_hidden" if is_hidden else "ttft", direction))
        if belief is self._ttft_published():
            shift = self.prefill.add(ttft_s, sample.uncached_tokens)
            if shift:
                self.ttft.shift(shift)
                self.ttft_hidden.shift(shift)
        return residual

    def _slow(self, ln_ttft: float, sample: Sample, in_flight: float) -> None:
        stretch = self.prefill.ln_stretch(sample.uncached_tokens)
        self.slowdown.observe(ln_ttft - stretch, in_flight, is_decode=False)

    def _keep_times(self, sample: Sample, in_flight: float, now_s: float) -> None:
        """
        Times for quantiles, clipped by nothing: also of streams that were held back.

        Whole times are freed of their load, which the score and the time-outs put back in.
        """
        if sample.ttft_s is not None:
            self.histograms["ttft_any"].add(sample.ttft_s, now_s)
            stretch = self.prefill.ln_stretch(sample.uncached_tokens)
            self.histograms["ttft_base"].add(sample.ttft_s * math.exp(-stretch), now_s)
            visible_s = sample.stamps.ttft_visible_s
            if visible_s is not None:
                self.histograms["ttft_visible"].add(visible_s, now_s)
            self._count_sample(now_s)
        if sample.whole_s is not None:
            whole_s = sample.whole_s / self.load_at(in_flight)
            relative = self.whole.add(whole_s, sample.total_tokens)
            self.histograms["whole_ratio"].add(relative, now_s)
            self._count_sample(now_s)
            if not sample.may_give_rate:
                self.answers.add(whole_s, sample.total_tokens)
                self._answers_n.decay(now_s, QUANTILE_HALF_LIFE_S)
                self._answers_n.add(1.0)

    def _observe_rate(
        self, sample: Sample, outcome: AttemptOutcome, now_s: float, alarms: list[tuple[str, int]]
    ) -> bool:
        """
        True when the stream was generated first and sent afterwards.

        Neither its TTFT nor its rate then means what the two-part model takes it for, though
        their sum does. The end-to-end line sees that even where every stream is held back; then
        each such stream takes back some of what earlier ones seemed to show.
        """
        load = self.load_at(outcome.in_flight)
        believed = None
        if not sample.is_hidden_reasoning:  # there a long wait and then speed is no trick
            rate = math.exp(self.rate.at(now_s).mu)
            believed = Expected(self.ttft_at(sample.uncached_tokens, now_s) * load, rate / load)
        paused_s = outcome.reading_paused_s
        found = decode_sample(sample.stamps, sample.stream_tokens, believed, paused_s)
        refused = found.refused
        if refused is None and believed is not None and self.whole.n >= HELD_BACK_LINE_MIN:
            line = Expected(self.whole.base_s * load, 1.0 / (self.whole.per_token_s * load))
            if is_buffered(sample.stamps, sample.stream_tokens, line):
                refused = NoRate.BUFFERED
                self.rate.doubt(HELD_BACK_DOUBT)
                self._ttft_published().doubt(HELD_BACK_DOUBT)
        if refused is not None:
            self.num_refused_rates[refused] = self.num_refused_rates.get(refused, 0) + 1
            return refused is NoRate.BUFFERED
        ln_rate = math.log(found.tokens_per_s)
        self.slowdown.observe(-ln_rate, float(max(1, outcome.in_flight)), is_decode=True)
        direction = self.rate.observe(ln_rate + math.log(load), found.weight, now_s)
        if direction:
            alarms.append(("rate", direction))
        self.histograms["rate"].add(found.tokens_per_s, now_s, found.weight)
        self._count_sample(now_s)
        return False

    def _ttft_published(self) -> Belief:
        hidden = self.ttft_hidden
        return hidden if hidden.slow.s0 > self.ttft.slow.s0 else self.ttft

    def load_at(self, in_flight: float) -> float:
        """The factor on all times with so many in flight, as far as it was learned."""
        return math.exp(self.slowdown.ln_load(max(1.0, float(in_flight))))

    @property
    def hides_reasoning(self) -> bool:
        """Whether most streams think before their first token, unseen."""
        return self._ttft_published() is self.ttft_hidden

    def ttft_at(self, uncached_tokens: float, now_s: float) -> float:
        """Expected seconds to the first token of a prompt with so many uncached tokens."""
        return math.exp(
            self._ttft_published().at(now_s).mu + self.prefill.ln_stretch(uncached_tokens)
        )

    def set_peers(self, ttft_mu: float | None, rate_mu: float | None) -> None:
        """
        What to believe before own streams: the end-to-end line if whole answers gave one, else
        the median of the model's peers, else the generic start.
        """
        has_line = self.whole.n >= WHOLE_SAMPLES_MIN
        ttft_centre = ttft_mu if ttft_mu is not None else math.log(TTFT_START_S)
        rate_centre = rate_mu if rate_mu is not None else math.log(RATE_START)
        if has_line and self._ttft_published().slow.s0 < STREAM_WEIGHT_MIN:
            ttft_centre = math.log(self.whole.base_s)
        if has_line and self.rate.slow.s0 < STREAM_WEIGHT_MIN:
            rate_centre = -math.log(self.whole.per_token_s)
        self.ttft.set_centre(ttft_centre)
        self.ttft_hidden.set_centre(ttft_centre)
        self.rate.set_centre(rate_centre)

    def peer_means(self) -> tuple[float | None, float | None]:
        """What this endpoint can tell its peers: slow means of TTFT and rate."""
        return self._ttft_published().slow_mean, self.rate.slow_mean

    def stats(self, endpoint_id: str, now_s: float) -> EndpointStats:
        """The belief as `decide` sees it."""
        ttft = self._ttft_published().at(now_s)
        rate = self.rate.at(now_s)
        self.success.decay(now_s)
        age_s = now_s - self.sampled_at_s if self.sampled_at_s is not None else None
        has_line = self.answers.n >= WHOLE_SAMPLES_MIN
        self._answers_n.decay(now_s, QUANTILE_HALF_LIFE_S)
        return EndpointStats(
            endpoint_id=endpoint_id,
            ttft_base_s=self.prefill.base_s,
            prefill_tokens_per_s=self.prefill.prefill,
            ttft_mu=ttft.mu,
            ttft_sigma=ttft.sigma,
            ttft_n=ttft.n,
            rate_mu=rate.mu,
            rate_sigma=rate.sigma,
            rate_n=rate.n,
            success_p=self.success.p,
            success_n=self.success.n,
            failure_lost_s=self._failure_lost_s(now_s),
            waste=self.tokens.waste,
            ttft_p50_p75_p90_p99_s=self._shown_quantiles("ttft_any", now_s),
            rate_p50_p75_p90_p99=self._shown_quantiles("rate", now_s),
            characters_per_token=self.tokens.characters_per_token,
            tokens_per_byte_p99=self.tokens.per_byte_p99(),
            num_samples=self.num_samples,
            sample_age_s=age_s,
            e2e_base_s=self.answers.base_s if has_line else None,
            e2e_s_per_token=self.answers.per_token_s if has_line else None,
            e2e_n=min(self._answers_n.s0, MEMORY_SAMPLES),
        )

    def _failure_lost_s(self, now_s: float) -> float:
        self._lost.decay(now_s, LOST_HALF_LIFE_S)
        return (self._lost.s1 + LOST_N0 * LOST_START_S) / (self._lost.s0 + LOST_N0)

    def _shown_quantiles(self, name: str, now_s: float) -> Quantiles | None:
        """Of "rate" the speeds exceeded by 50, 75, 90, 99 %. At most a second old."""
        histogram = self.histograms[name]
        cached = self._shown.get(name)
        if cached is not None and (
            cached[0] == histogram.version or 0.0 <= now_s - cached[1] < QUANTILES_EVERY_S
        ):
            return cached[2]
        found = histogram.quantiles(_RATE_LEVELS if name == "rate" else _LEVELS)
        if found is None:
            return None
        four = (found[0], found[1], found[2], found[3])
        self._shown[name] = (histogram.version, now_s, four)
        return four

    def p99(self, name: str, now_s: float) -> float | None:
        """None while it rests on less than 20 samples."""
        if self.histograms[name].n < TIMEOUT_SAMPLES_MIN:
            return None
        found = self._shown_quantiles(name, now_s)
        return found[3] if found is not None else None

    def first_token_timeout_s(
        self, prompt_tokens: float, now_s: float, *, wants_reasoning: bool = False
    ) -> float:
        """
        3 × p99 of TTFT for this prompt, within 10–120 s (300 s where reasoning is hidden).

        Cold, it is 30 s (120 s for reasoning), and every time-out in a row doubles it: a limit
        below the truth would else never see a sample that corrects it.
        """
        may_reason = self.hides_reasoning or wants_reasoning
        most_s = TIMEOUT_REASONING_MAX_S if may_reason else TIMEOUT_MAX_S
        belief = self._ttft_published()
        base_s = self.ttft_p99_s(now_s)
        least_s = TIMEOUT_MIN_S
        if belief.slow.s0 < COLD_WEIGHT:
            least_s = TIMEOUT_COLD_REASONING_S if may_reason else TIMEOUT_COLD_S
        timeout_s = TIMEOUT_FACTOR * base_s * math.exp(self.prefill.ln_stretch(prompt_tokens))
        backed_off: float = max(least_s, timeout_s) * 2.0 ** min(self._timeouts_in_row, 5)
        return min(most_s, backed_off)

    def ttft_p99_s(self, now_s: float) -> float:
        """What 99 % of first tokens come within, the prompt's own part left out."""
        seen_s = self.p99("ttft_base", now_s)
        if seen_s is not None:
            return seen_s
        return math.exp(self._ttft_published().at(now_s).sample_at(_Z_P99))

    def shown_ttft(self, name: str, level: float = 0.5) -> Measured | None:
        """A quantile of "ttft_any" or "ttft_visible" with n and interval; None without samples."""
        return self.histograms[name].measured(level)

    def shown_rate(self, now_s: float) -> Measured | None:
        """Decode rate with n and interval; None before the first sample."""
        if self.histograms["rate"].n <= 0.0:
            return None
        rate = self.rate.at(now_s)
        return lognormal_interval(rate.mu, rate.sigma, rate.n)

    def export(self, now_s: float) -> EstimatorState:
        return EstimatorState(
            ttft=self.ttft.export(now_s),
            ttft_hidden=self.ttft_hidden.export(now_s),
            rate=self.rate.export(now_s),
            prefill=self.prefill.export(),
            whole=self.whole.export(),
            answers=self.answers.export(),
            answers_n=self._answers_n.s0,
            tokens=self.tokens.export(now_s),
            histograms={name: kept.export(now_s) for name, kept in self.histograms.items()},
            num_samples=self.num_samples,
            sample_age_s=now_s - self.sampled_at_s if self.sampled_at_s is not None else None,
        )

    def load(self, state: EstimatorState, now_s: float, away_s: float) -> None:
        """Take over an export of `away_s` ago."""
        self.ttft.load(state.ttft, now_s, away_s)
        self.ttft_hidden.load(state.ttft_hidden, now_s, away_s)
        self.rate.load(state.rate, now_s, away_s)
        self.prefill.load(state.prefill)
        self.whole.load(state.whole)
        self.answers.load(state.answers)
        self._answers_n.s0, self._answers_n.at_s = max(0.0, state.answers_n), now_s - away_s
        self.tokens.load(state.tokens, now_s, away_s)
        for name, histogram in self.histograms.items():
            if name in state.histograms:
                histogram.load(state.histograms[name], now_s, away_s)
        self._shown.clear()
        self.num_samples = state.num_samples
        if state.sample_age_s is not None:
            self.sampled_at_s = now_s - away_s - state.sample_age_s


def _seconds(now_s: float) -> LogHistogram:
    """1 ms to 10 min: about 340 buckets."""
    return LogHistogram(0.001, 600.0, half_life_s=QUANTILE_HALF_LIFE_S, start_s=now_s)
