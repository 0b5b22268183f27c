"""Predicted against real times of one endpoint: how often its intervals hold, and how far off.

Each successful answer is held against the snapshot that `decide` saw last, before that answer
taught anything. Three figures:

- `ttft`: first token of a stream; the prompt's uncached tokens are taken as they were billed;
- `speed`: T = load · (TTFT + n / rate) for the n tokens that really came, so only speed is judged;
- `completion`: the same for what could be known beforehand: the expected length and cached tokens.

Each is a log-normal (`stats.predictive`); the unknown length counts as one more log-normal factor
of decode, with the variance that the 5 and 95 % of its kind's lengths imply. Real tails are
heavier and lengths have other shapes, so the interval that is published runs between learned ends
(`Ends`). Counted is how often that interval held, next to how often the belief's own would have.
Thompson draws keep the belief.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Annotated

import msgspec

from gateway.core import REFERENCE_CHARACTERS, AttemptOutcome, EndpointStats, RequestFacts
from gateway.fleet.lengths import Length
from gateway.fleet.sample import Sample
from gateway.stats.predictive import (
    NORMAL_ENDS,
    Calibrated,
    Ends,
    completion_law,
    is_end_to_end,
    spread_of,
)
from gateway.wire.pieces import Surface

HALF_LIFE_S = 3600.0
TTFT, SPEED, COMPLETION = "ttft", "speed", "completion"
_TIME_MIN_S = 1e-4
_GROWN_MAX = 1e6
_Z_90 = NORMAL_ENDS[3]

TallyState = Annotated[list[float], msgspec.Meta(min_length=12, max_length=12)]
CalibrationState = dict[str, dict[str, TallyState]]


class Tally:
    """One figure of one class: decayed counts of what held, and the learned ends."""

    __slots__ = ("believed_90", "ends", "in_50", "in_90", "n", "off")

    def __init__(self) -> None:
        self.n = self.in_50 = self.in_90 = self.believed_90 = 0.0
        self.off = 0.0  # sum of ln(real / predicted)
        self.ends = Ends()

    def scale(self, factor: float) -> None:
        self.n *= factor
        self.in_50 *= factor
        self.in_90 *= factor
        self.believed_90 *= factor
        self.off *= factor

    def add(self, z: float, off: float, weight: float) -> None:
        """`z`: the residual in sigmas of the belief; `off`: ln(real / point prediction)."""
        low_90, low_50, high_50, high_90 = self.ends.ends
        self.n += weight
        self.off += weight * off
        if low_90 <= z <= high_90:
            self.in_90 += weight
            if low_50 <= z <= high_50:
                self.in_50 += weight
        if -_Z_90 <= z <= _Z_90:
            self.believed_90 += weight
        self.ends.add(z)

    def shown(self, aged: float) -> dict[str, float]:
        """Shares of 1, bias as ln, n as decayed samples. `aged`: what a count of 1 is worth now."""
        n = self.n
        return {
            "n": round(n * aged, 2),
            "coverage_50": self.in_50 / n,
            "coverage_90": self.in_90 / n,
            "belief_coverage_90": self.believed_90 / n,
            "bias_ln": self.off / n,
            "width": self.ends.width,
        }

    def export(self, aged: float) -> TallyState:
        counts = (self.n, self.in_50, self.in_90, self.believed_90, self.off)
        return [*(each * aged for each in counts), *self.ends.export()]

    @classmethod
    def load(cls, state: TallyState) -> Tally:
        made = cls()
        made.n, made.in_50, made.in_90, made.believed_90 = (max(0.0, each) for each in state[:4])
        made.off = state[4]
        made.ends.load(state[5:])
        return made


class _Class:
    """The tallies of one class. Weights grow by 2^(dt/H) instead of all counts shrinking."""

    __slots__ = ("completion", "origin_s", "speed", "ttft")

    def __init__(self, now_s: float) -> None:
        self.origin_s = now_s
        self.ttft, self.speed, self.completion = Tally(), Tally(), Tally()

    @property
    def tallies(self) -> tuple[tuple[str, Tally], ...]:
        return (TTFT, self.ttft), (SPEED, self.speed), (COMPLETION, self.completion)

    def weight(self, now_s: float) -> float:
        """Of a sample of now."""
        grown: float = 2.0 ** (max(0.0, now_s - self.origin_s) / HALF_LIFE_S)
        if grown > _GROWN_MAX:
            for _, tally in self.tallies:
                tally.scale(1.0 / grown)
            self.origin_s, grown = now_s, 1.0
        return grown


class Calibration:
    """All of one endpoint. A class is a surface, as a stream or whole: a dozen at most."""

    __slots__ = ("_classes",)

    def __init__(self) -> None:
        self._classes: dict[tuple[Surface, bool], _Class] = {}

    def judge(
        self,
        told: EndpointStats,
        sample: Sample,
        outcome: AttemptOutcome,
        length: Length,
        load: float,
        now_s: float,
    ) -> None:
        """
        Hold one answer that ended well against what was told of its endpoint.

        `load` is the factor on all times that was to be expected with what was in flight.
        """
        ttft_s, whole_s = sample.ttft_s, sample.whole_s
        if ttft_s is None and whole_s is None:
            return
        is_stream = outcome.stream
        key = outcome.surface, is_stream
        counted = self._classes.get(key)
        if counted is None:
            counted = self._classes[key] = _Class(now_s)
        weight = counted.weight(now_s)
        has_output = sample.total_tokens > 0.0
        is_line = is_end_to_end(told, is_whole=not is_stream, has_output=has_output)
        spread = spread_of(told, is_line=is_line)
        base_s, token_s, prompt_token_s = _times(told, load, is_line=is_line)
        first_s = base_s + sample.uncached_tokens * prompt_token_s
        if ttft_s is not None:
            off = log(max(ttft_s, _TIME_MIN_S) / first_s)
            counted.ttft.add(off / sqrt(spread.first), off, weight)
        if whole_s is None:
            return
        ln_whole = log(max(whole_s, _TIME_MIN_S))
        decode_s = (sample.stream_tokens if is_stream else sample.total_tokens) * token_s
        mu, total = completion_law(first_s, decode_s, spread)
        off = ln_whole - log(first_s + decode_s)
        counted.speed.add((ln_whole - mu) / sqrt(total), off, weight)

        uncached = max(0, outcome.prompt_tokens_expected - outcome.cached_tokens_expected)
        first_s = base_s + uncached * prompt_token_s
        if has_output:
            decode_s = length.tokens * REFERENCE_CHARACTERS / told.characters_per_token * token_s
        mu, total = completion_law(first_s, decode_s, spread, length.variance)
        off = ln_whole - log(first_s + decode_s)
        counted.completion.add((ln_whole - mu) / sqrt(total), off, weight)

    def calibrated(self, facts: RequestFacts, length_variance: float, now_s: float) -> Calibrated:
        """For the completion time of a request like this."""
        counted = self._classes.get((facts.surface, facts.stream))
        if counted is None:
            return Calibrated(length_variance=length_variance)
        tally = counted.completion
        return Calibrated(
            ends=tally.ends.ends,
            length_variance=length_variance,
            coverage_90=tally.in_90 / tally.n if tally.n > 0.0 else None,
            n=tally.n / counted.weight(now_s),
        )

    def summary(self, now_s: float) -> dict[str, dict[str, dict[str, float]]]:
        """JSON-able: class → figure → what held. Figures without samples are left out."""
        return {
            _class_name(*key): {
                figure: tally.shown(1.0 / counted.weight(now_s))
                for figure, tally in counted.tallies
                if tally.n > 0.0
            }
            for key, counted in self._classes.items()
        }

    def export(self, now_s: float) -> CalibrationState:
        """For `load` after a restart."""
        return {
            _class_name(*key): {
                figure: tally.export(1.0 / counted.weight(now_s))
                for figure, tally in counted.tallies
            }
            for key, counted in self._classes.items()
        }

    def load(self, state: CalibrationState, now_s: float, away_s: float) -> None:
        """Take over an export of `away_s` ago; what there is no class or figure of is dropped."""
        for surface in Surface:
            for is_stream in (False, True):
                found = state.get(_class_name(surface, is_stream), {})
                if found.keys() >= {TTFT, SPEED, COMPLETION}:
                    made = self._classes[surface, is_stream] = _Class(now_s - away_s)
                    made.ttft = Tally.load(found[TTFT])
                    made.speed = Tally.load(found[SPEED])
                    made.completion = Tally.load(found[COMPLETION])


def _class_name(surface: Surface, is_stream: bool) -> str:
    return f"{surface.value}/{'stream' if is_stream else 'whole'}"


def _times(told: EndpointStats, load: float, *, is_line: bool) -> tuple[float, float, float]:
    """(seconds to the first token of an empty prompt, an output token, a prompt token)."""
    if is_line:
        return load * (told.e2e_base_s or _TIME_MIN_S), load * (told.e2e_s_per_token or 0.0), 0.0
    first_s = load * exp(told.ttft_mu)
    prompt_token_s = first_s / (told.prefill_tokens_per_s * told.ttft_base_s)
    return first_s, load * exp(-told.rate_mu), prompt_token_s
