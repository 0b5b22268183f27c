"""One attempt's stamps and token count → its times, and what of them may count as a sample."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub

TOKENS_MIN = 16
SPAN_MIN_S = 0.25
ARRIVALS_MIN = 8  # distinct socket reads: twenty tokens in two packets show no speed
FULL_WEIGHT_TOKENS = 128
BURST_SHARE = 0.8  # of frames …
BURST_WINDOW = 0.1  # … within this part of the span
BUFFERED_SPAN_MAX = 0.2  # of the span expected
BUFFERED_WAIT_MIN = 0.5  # of the span expected, found in front of the first token instead
PAUSED_SHARE_MAX = 0.02  # of the span; reading always waits a few microseconds
SAME_READ_S = 0.0005  # frames this close came out of one read of the socket


class NoRate(enum.StrEnum):
    """Why a stream gives no decode sample."""

    NO_STREAM = "no_stream"  # nothing generated arrived, or the answer came whole
    TOO_FEW_TOKENS = "too_few_tokens"
    TOO_SHORT = "too_short"
    TOO_FEW_ARRIVALS = "too_few_arrivals"
    BURST = "burst"  # most frames at once: the stamps show a flush, not decoding
    BUFFERED = "buffered"  # generated before the first token, then sent at line speed
    PAUSED = "paused"  # a slow client held up our reading


@dataclass(frozen=True, slots=True)
class Stamps:
    """Monotonic seconds at the upstream socket, before any parsing."""

    dispatched_at_s: float
    first_generated_at_s: float | None = None
    first_visible_at_s: float | None = None
    last_generated_at_s: float | None = None
    ended_at_s: float | None = None
    frame_stamps_s: Sequence[float] = ()  # of generated frames, perhaps only the first ones
    num_frames: int = 0

    @property
    def ttft_any_s(self) -> float | None:
        """Dispatch → first generated token of any kind, reasoning included."""
        return _since(self.dispatched_at_s, self.first_generated_at_s)

    @property
    def ttft_visible_s(self) -> float | None:
        """Dispatch → first token the user sees."""
        return _since(self.dispatched_at_s, self.first_visible_at_s)

    @property
    def span_s(self) -> float:
        """First → last generated token. A usage trailer or end mark is not part of it."""
        if self.first_generated_at_s is None or self.last_generated_at_s is None:
            return 0.0
        return max(0.0, self.last_generated_at_s - self.first_generated_at_s)

    @property
    def whole_s(self) -> float | None:
        """Dispatch → last generated token, or the end of a body that came whole."""
        if self.last_generated_at_s is not None:
            return _since(self.dispatched_at_s, self.last_generated_at_s)
        return _since(self.dispatched_at_s, self.ended_at_s)


def _since(start_s: float, stamp_s: float | None) -> float | None:
    return max(0.0, stamp_s - start_s) if stamp_s is not None else None


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """Tokens per second between first and last token, or why there is none."""

    tokens_per_s: float = 0.0
    weight: float = 0.0
    refused: NoRate | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What is believed of the endpoint; needed to see that a stream was held back."""

    ttft_s: float
    tokens_per_s: float


def decode_sample(
    stamps: Stamps, num_tokens: float, expected: Expected | None = None, paused_s: float = 0.0
) -> DecodeSample:
    """
    The decode rate of one stream of `num_tokens` streamed tokens (visible, or streamed reasoning).

    The rate is (n − c)/(t_last − t_first), c being the tokens that arrived in the first read:
    (n − 1) for one token an event, and still unbiased when events carry several.
    """
    if stamps.first_generated_at_s is None or stamps.last_generated_at_s is None:
        return DecodeSample(refused=NoRate.NO_STREAM)
    if num_tokens < TOKENS_MIN:
        return DecodeSample(refused=NoRate.TOO_FEW_TOKENS)
    span_s = stamps.span_s
    if span_s < SPAN_MIN_S:
        return DecodeSample(refused=NoRate.TOO_SHORT)
    if paused_s > PAUSED_SHARE_MAX * span_s:
        return DecodeSample(refused=NoRate.PAUSED)
    if not _has_arrivals(stamps):
        return DecodeSample(refused=NoRate.TOO_FEW_ARRIVALS)
    if is_burst(stamps.frame_stamps_s, stamps.num_frames, stamps.last_generated_at_s):
        return DecodeSample(refused=NoRate.BURST)
    if expected is not None and is_buffered(stamps, num_tokens, expected):
        return DecodeSample(refused=NoRate.BUFFERED)
    tokens_after_first = num_tokens * (1.0 - _first_share(stamps, num_tokens))
    return DecodeSample(tokens_after_first / span_s, min(1.0, num_tokens / FULL_WEIGHT_TOKENS))


def _has_arrivals(stamps: Stamps) -> bool:
    times = stamps.frame_stamps_s
    if not times:
        return stamps.num_frames == 0 or stamps.num_frames >= ARRIVALS_MIN
    arrivals = 0
    previous_s = float("-inf")
    for stamp_s in times:
        if stamp_s - previous_s > SAME_READ_S:
            arrivals += 1
            previous_s = stamp_s
            if arrivals >= ARRIVALS_MIN:
                return True
    return False


def _first_share(stamps: Stamps, num_tokens: float) -> float:
    """Share of the stream's tokens that the first read brought, frames being of like size."""
    times = stamps.frame_stamps_s
    if not times:
        return 1.0 / (stamps.num_frames or num_tokens)
    num_first = bisect_right(times, times[0] + SAME_READ_S)
    return num_first / max(stamps.num_frames, len(times))


def is_burst(times: Sequence[float], num_frames: int, last_s: float) -> bool:
    """
    Whether more than 80 % of the frames lie within 10 % of the span.

    `times` may hold only the first frames of `num_frames`; the rest lie between the last stamp
    kept and `last_s`, so a flush at the end is still seen.
    """
    if len(times) < 2:
        return False
    num_frames = max(num_frames, len(times))
    num_inside = int(BURST_SHARE * num_frames) + 1
    window_s = BURST_WINDOW * (last_s - times[0])
    tail_idx = min(num_frames - num_inside, len(times) - 1)
    if last_s - times[tail_idx] < window_s:
        return True
    if num_inside > len(times):
        return False
    return bool(min(map(sub, times[num_inside - 1 :], times)) < window_s)


def is_buffered(stamps: Stamps, num_tokens: float, expected: Expected) -> bool:
    """
    Whether generation happened before the first token came, and then a flush at line speed.

    A short span alone may be an endpoint that became faster. Held back, the missing time turns
    up in front of the first token.
    """
    span_expected_s = num_tokens / expected.tokens_per_s
    waited_s = (stamps.ttft_any_s or 0.0) - expected.ttft_s
    return (
        stamps.span_s < BUFFERED_SPAN_MAX * span_expected_s
        and waited_s > BUFFERED_WAIT_MIN * span_expected_s
    )
