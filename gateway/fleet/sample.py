"""What one finished attempt may teach: speed, success, length; and what it may not."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core import AttemptOutcome
from gateway.errors import FAILURES, FailureClass
from gateway.stats.timeline import PAUSED_SHARE_MAX, Stamps
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

HIDDEN_TOKENS_MIN = 16
LATE_CALL_TOKENS_MIN = 32
LATE_CALL_SPAN_MAX = 0.05  # of the whole time
AT_ONCE_TOKENS_MIN = 64
AT_ONCE_TOKENS_PER_S = 5_000.0  # nobody decodes one stream so fast
LENGTH_FINISHES = frozenset({"length", "max_tokens", "max_output_tokens"})

_FAILURE_BY_VALUE: dict[str, FailureClass] = {failure.value: failure for failure in FailureClass}
# Cut short by us or the client. What was seen until then counts, or only the rest is measured.
_CUT_SHORT = frozenset({FailureClass.CLIENT_GONE, FailureClass.TOO_SLOW, FailureClass.OUTPACED})
_NO_GENERATION = frozenset({Surface.COUNT_TOKENS, Surface.MODELS})


@dataclass(frozen=True, slots=True)
class Sample:
    """One attempt, judged. None means: says nothing about that."""

    stamps: Stamps
    failure: FailureClass | None
    is_success: bool | None
    uncached_tokens: float
    stream_tokens: float  # tokens that were streamed: visible, tool and shown reasoning
    total_tokens: float  # all that were generated, hidden reasoning too
    is_hidden_reasoning: bool
    has_exact_tokens: bool  # the provider counted, not we
    ttft_s: float | None
    may_give_rate: bool
    whole_s: float | None  # end to end, only when the answer came to its own end
    length_tokens: float | None
    is_length_capped: bool


def failure_of(outcome: AttemptOutcome) -> FailureClass | None:
    """The class of failure; an unknown word counts as the provider's fault."""
    if outcome.failure:
        return _FAILURE_BY_VALUE.get(outcome.failure, FailureClass.SERVER_ERROR)
    return FailureClass.CLIENT_GONE if outcome.client_gone else None


def read_sample(
    outcome: AttemptOutcome, characters_per_token: float, characters_min: float = 0.5
) -> Sample:
    """
    Judge an attempt by gateways 3 and design 4.8.

    A failed attempt gives no speed: an error frame or one early token must not crown a broken
    provider. A stream the client left still does, or only patient clients would be measured; its
    length and end-to-end time it does not give. A replayed answer gives nothing but success.
    `characters_min`: fewer characters a billed token than this, and tokens were hidden.
    """
    failure = failure_of(outcome)
    stream_tokens, total_tokens, is_hidden = _count_tokens(
        outcome, characters_per_token, characters_min
    )
    has_ended = failure is None
    is_generation = outcome.surface not in _NO_GENERATION and not outcome.is_cached_answer
    gives_speed = is_generation and (has_ended or failure in _CUT_SHORT)
    is_one_answer = gives_speed and outcome.num_choices == 1
    stamps = Stamps(
        dispatched_at_s=outcome.dispatched_at_s,
        first_generated_at_s=outcome.first_generated_at_s if outcome.stream else None,
        first_visible_at_s=outcome.first_visible_at_s if outcome.stream else None,
        last_generated_at_s=outcome.last_generated_at_s if outcome.stream else None,
        ended_at_s=outcome.ended_at_s,
        frame_stamps_s=outcome.frame_stamps_s,
        num_frames=outcome.num_frames,
    )
    whole_s = stamps.whole_s or 0.0
    was_read = outcome.reading_paused_s <= PAUSED_SHARE_MAX * whole_s
    ends_whole = is_one_answer and has_ended and was_read
    came_at_once = _came_at_once(stamps, stream_tokens) and not is_hidden
    gives_ttft = gives_speed and not (came_at_once or _is_late_call(outcome, stream_tokens))
    has_length = ends_whole and total_tokens > 0.0
    return Sample(
        stamps=stamps,
        failure=failure,
        is_success=_success(failure),
        uncached_tokens=_uncached_tokens(outcome),
        stream_tokens=stream_tokens,
        total_tokens=total_tokens,
        is_hidden_reasoning=is_hidden,
        has_exact_tokens=_exact_usage(outcome) is not None,
        ttft_s=stamps.ttft_any_s if gives_ttft else None,
        may_give_rate=is_one_answer and outcome.stream,
        whole_s=stamps.whole_s if has_length or _is_embedding(outcome, ends_whole) else None,
        length_tokens=stream_tokens if has_length and stream_tokens > 0.0 else None,
        is_length_capped=outcome.finish in LENGTH_FINISHES,
    )


def _success(failure: FailureClass | None) -> bool | None:
    if failure is None:
        return True
    return False if FAILURES[failure].counts_for_breaker else None


def _exact_usage(outcome: AttemptOutcome) -> Usage | None:
    usage = outcome.usage
    if usage is None or outcome.usage_estimated or usage.output_total + usage.input_total == 0:
        return None
    return usage


def _uncached_tokens(outcome: AttemptOutcome) -> float:
    usage = _exact_usage(outcome)
    if usage is not None and usage.input_total > 0:
        return float(usage.input_total - usage.cached_read)
    return float(max(0, outcome.prompt_tokens_expected - outcome.cached_tokens_expected))


def _count_tokens(
    outcome: AttemptOutcome, characters_per_token: float, characters_min: float
) -> tuple[float, float, bool]:
    """
    (streamed, generated, whether reasoning was hidden).

    Reasoning counts as streamed only if its text came. A provider that bills hidden tokens as
    plain output is found out by its characters.
    """
    chars = outcome.visible_chars + outcome.reasoning_chars + outcome.tool_chars
    usage = _exact_usage(outcome)
    if usage is None or usage.output_total == 0:
        counted = chars / characters_per_token
        return counted, counted, False
    total = float(usage.output_total)
    if outcome.reasoning_chars == 0 and usage.reasoning > 0:
        return float(usage.output), total, usage.reasoning >= HIDDEN_TOKENS_MIN
    if outcome.stream and 0 < chars < characters_min * (total - HIDDEN_TOKENS_MIN):
        return chars / characters_per_token, total, True
    return total, total, False


def _came_at_once(stamps: Stamps, stream_tokens: float) -> bool:
    """A stream in name: the answer was complete when its first token came."""
    is_long = stream_tokens >= AT_ONCE_TOKENS_MIN
    return is_long and stream_tokens > AT_ONCE_TOKENS_PER_S * stamps.span_s


def _is_late_call(outcome: AttemptOutcome, stream_tokens: float) -> bool:
    """Arguments held back and sent as one burst: the first token shows the whole generation."""
    has_text = outcome.visible_chars > 0 or outcome.reasoning_chars > 0
    if outcome.tool_chars == 0 or has_text or stream_tokens < LATE_CALL_TOKENS_MIN:
        return False
    first_s, last_s = outcome.first_generated_at_s, outcome.last_generated_at_s
    if first_s is None or last_s is None:
        return True
    return last_s - first_s < LATE_CALL_SPAN_MAX * (last_s - outcome.dispatched_at_s)


def _is_embedding(outcome: AttemptOutcome, ends_whole: bool) -> bool:
    return ends_whole and outcome.surface is Surface.EMBEDDINGS
