"""How one endpoint counts tokens: characters and prompt bytes a token, hidden and wasted ones."""

from __future__ import annotations

import math

import msgspec

from gateway.core import REFERENCE_CHARACTERS, AttemptOutcome
from gateway.fleet.sample import Sample
from gateway.stats.quantiles import ALPHA, HistogramState, LogHistogram

HALF_LIFE_S = 6 * 3600.0
CHARACTERS_START = REFERENCE_CHARACTERS
CHARACTERS_N0 = 200.0  # tokens
CHARACTERS_LEARNED = 2_000.0  # tokens from which on the ratio is trusted to find hidden ones
CHARACTERS_MIN_SHARE = 0.35  # of the usual characters a token
CHARACTERS_MIN_START = 0.5
BYTES_MIN = 256  # of prompt: below, the chat template outweighs the text
PER_BYTE_START = 0.5
PER_BYTE_MIN = 0.1
PER_BYTE_LEARNED = 100.0  # samples
PROMPTS_MIN = 20.0  # samples that an estimate of a bill rests on
QUANTILE_EVERY_S = 1.0
OUTPUT_PRICE_WEIGHT = 4.0  # an output token costs about four input tokens
RATIO_MAX = 20.0
RATIO_N0 = 2_000.0  # weighted tokens


class TokensState(msgspec.Struct, frozen=True):
    sums: tuple[float, float, float, float, float, float]
    per_byte: HistogramState
    age_s: float
    per_byte_short: HistogramState = HistogramState({}, 0.0)


class TokenRatios:
    """Decayed ratios (half-life 6 h) of what was counted, seen and billed."""

    __slots__ = (
        "_at_s", "_billed", "_characters", "_counted", "_generated", "_most", "_streamed",
        "_useful", "per_byte", "per_byte_short",
    )  # fmt: skip

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._characters = 0.0
        self._counted = 0.0
        self._generated = 0.0
        self._streamed = 0.0
        self._billed = 0.0
        self._useful = 0.0
        self.per_byte = LogHistogram(0.005, 20.0, half_life_s=HALF_LIFE_S, start_s=now_s)
        # Of prompts below BYTES_MIN, whose chat template outweighs the text.
        self.per_byte_short = LogHistogram(0.005, 200.0, half_life_s=HALF_LIFE_S, start_s=now_s)
        self._most: dict[bool, tuple[float, float]] = {}  # (when looked up, tokens a byte)

    @property
    def characters_per_token(self) -> float:
        return (self._characters + CHARACTERS_N0 * CHARACTERS_START) / (
            self._counted + CHARACTERS_N0
        )

    @property
    def characters_min(self) -> float:
        """Fewer characters a billed token than this, and tokens were hidden."""
        if self._counted < CHARACTERS_LEARNED:
            return CHARACTERS_MIN_START
        return CHARACTERS_MIN_SHARE * self.characters_per_token

    @property
    def hidden_ratio(self) -> float:
        """Tokens generated over tokens streamed, ≥ 1."""
        return _ratio(self._generated, self._streamed)

    @property
    def waste(self) -> float:
        """
        Billed over useful tokens, output counted at four times input, ≥ 1.

        Useful is the prompt and what was streamed, of attempts that succeeded. Hidden reasoning
        and attempts billed for nothing make the difference.
        """
        return _ratio(self._billed, self._useful)

    def per_byte_p99(self) -> float:
        """Prompt tokens a byte of text that 99 % of requests stay under."""
        known = self.per_byte.quantile(0.99)
        if known is None:
            return PER_BYTE_START
        if self.per_byte.n < PER_BYTE_LEARNED:
            return max(PER_BYTE_START, known)
        return max(PER_BYTE_MIN, known)

    def prompt_tokens_most(self, text_bytes: int, now_s: float) -> int:
        """
        What 99 % of prompts of such a size stay under, with their template.

        For the bill of an attempt that nobody lived to settle; at most a second old.
        """
        is_short = text_bytes < BYTES_MIN
        at_s, per_byte = self._most.get(is_short, (-math.inf, 0.0))
        if not 0.0 <= now_s - at_s < QUANTILE_EVERY_S:
            seen = self.per_byte_short if is_short else self.per_byte
            found = seen.quantile(0.99) if seen.n >= PROMPTS_MIN else None
            per_byte = PER_BYTE_START if found is None else found * (1.0 + 2.0 * ALPHA)
            self._most[is_short] = (now_s, per_byte)
        return math.ceil(text_bytes * per_byte)

    def observe(self, outcome: AttemptOutcome, sample: Sample, now_s: float) -> None:
        self._decay(now_s)
        usage = outcome.usage
        if usage is None or not sample.has_exact_tokens:
            return
        is_useful = sample.failure is None
        self._billed += usage.input_total + OUTPUT_PRICE_WEIGHT * usage.output_total
        if not is_useful:
            return
        self._useful += usage.input_total + OUTPUT_PRICE_WEIGHT * sample.stream_tokens
        self._generated += sample.total_tokens
        self._streamed += sample.stream_tokens
        chars = outcome.visible_chars + outcome.reasoning_chars
        if not sample.is_hidden_reasoning and outcome.tool_chars == 0 and chars > 0:
            self._characters += chars
            self._counted += sample.stream_tokens
        has_images = outcome.num_images > 0 or usage.image_input > 0 or usage.audio_input > 0
        if outcome.text_bytes > 0 and usage.input_total > 0 and not has_images:
            is_short = outcome.text_bytes < BYTES_MIN
            seen = self.per_byte_short if is_short else self.per_byte
            seen.add(usage.input_total / outcome.text_bytes, now_s)

    def _decay(self, now_s: float) -> None:
        fade = 2.0 ** (-max(0.0, now_s - self._at_s) / HALF_LIFE_S)
        self._at_s = max(self._at_s, now_s)
        self._characters *= fade
        self._counted *= fade
        self._generated *= fade
        self._streamed *= fade
        self._billed *= fade
        self._useful *= fade

    def export(self, now_s: float) -> TokensState:
        return TokensState(
            (
                self._characters, self._counted, self._generated,
                self._streamed, self._billed, self._useful,
            ),
            self.per_byte.export(now_s),
            max(0.0, now_s - self._at_s),
            self.per_byte_short.export(now_s),
        )  # fmt: skip

    def load(self, state: TokensState, now_s: float, away_s: float) -> None:
        sums = (max(0.0, value) for value in state.sums)
        (
            self._characters, self._counted, self._generated,
            self._streamed, self._billed, self._useful,
        ) = sums  # fmt: skip
        self._at_s = now_s - away_s - state.age_s
        self.per_byte.load(state.per_byte, now_s, away_s)
        self.per_byte_short.load(state.per_byte_short, now_s, away_s)


def _ratio(whole: float, part: float) -> float:
    """Shrunk to 1 and kept within reason."""
    return min(RATIO_MAX, max(1.0, (whole + RATIO_N0) / (part + RATIO_N0)))
