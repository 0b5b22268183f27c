"""What was played at one level, as figures with their spread, their number and their interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from backend.cli.measuring.asking import Answer
from backend.cli.measuring.load import Played
from gateway.stats.bootstrap import bootstrap_interval, row_quantiles
from gateway.stats.intervals import Measured
from gateway.stats.timeline import decode_sample

LEVEL = 0.95
REASONS_MAX = 5
_GAP_RESAMPLES = 400  # of whole answers; each resample sorts all their gaps


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of a level. No interval from fewer than two values."""

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    level: float = LEVEL

    @classmethod
    def of(cls, found: Measured) -> Figure:
        return cls(value=found.value, n=round(found.n), low=found.low, high=found.high)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table. Times in seconds; None where nothing could be measured."""

    load: str
    concurrency: int
    rate: float
    num_requests: int
    num_failed: int
    failures: dict[str, int]
    wall_s: float
    output_tokens: int
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int
    is_usage_known: bool  # else tokens are counted as events with text
    events_per_token: float | None
    decode_per_s: Figure | None  # median over streams
    decode_quartiles_per_s: tuple[float, float] | None
    decode_refused: dict[str, int]  # streams without a rate, by reason
    ttft_p50_s: Figure | None
    ttft_p95_s: Figure | None
    gap_p50_s: Figure | None  # between one read with tokens and the next, of one stream
    gap_p95_s: Figure | None


def summarize(played: Played, seed: int) -> Summary:
    """Intervals by bootstrap over answers (gaps of one answer stay together)."""
    rng = np.random.default_rng(seed)
    good = [each for each in played.answers if not each.failure]
    failures = Counter(each.failure for each in played.answers if each.failure)
    rates, refused = _decode_rates(good)
    waits = [each.stamps.ttft_any_s for each in good if each.stamps.ttft_any_s is not None]
    gaps = [found for each in good if len(found := _gaps(each)) > 0]
    tokens = sum(each.num_tokens for each in good)
    frames = sum(each.stamps.num_frames for each in good)
    quartiles = np.quantile(rates, (0.25, 0.75)) if rates else None
    return Summary(
        load=played.level.label,
        concurrency=played.level.concurrency,
        rate=played.level.rate,
        num_requests=len(played.answers),
        num_failed=sum(failures.values()),
        failures=dict(failures.most_common(REASONS_MAX)),
        wall_s=played.wall_s,
        output_tokens=tokens,
        output_tokens_per_s=tokens / played.wall_s,
        prompt_tokens=sum(each.usage.input_total for each in good if each.usage is not None),
        cached_tokens=sum(each.usage.cached_read for each in good if each.usage is not None),
        is_usage_known=all(each.usage is not None for each in good),
        events_per_token=frames / tokens if tokens else None,
        decode_per_s=_quantile(rates, 0.5, rng),
        decode_quartiles_per_s=(
            (float(quartiles[0]), float(quartiles[1])) if quartiles is not None else None
        ),
        decode_refused=refused,
        ttft_p50_s=_quantile(waits, 0.5, rng),
        ttft_p95_s=_quantile(waits, 0.95, rng),
        gap_p50_s=_pooled_quantile(gaps, 0.5, rng),
        gap_p95_s=_pooled_quantile(gaps, 0.95, rng),
    )


def decode_rate(answer: Answer) -> float | None:
    """Tokens a second after the first; None where the stamps show none."""
    sample = decode_sample(answer.stamps, answer.num_tokens)
    return None if sample.refused is not None else sample.tokens_per_s


def _decode_rates(answers: Sequence[Answer]) -> tuple[list[float], dict[str, int]]:
    samples = [decode_sample(each.stamps, each.num_tokens) for each in answers]
    refused = Counter(str(each.refused) for each in samples if each.refused is not None)
    return [each.tokens_per_s for each in samples if each.refused is None], dict(refused)


def _gaps(answer: Answer) -> NDArray[np.float64]:
    """Seconds between reads that brought tokens; several events of one read are one."""
    return np.diff(np.unique(np.asarray(answer.stamps.frame_stamps_s, dtype=np.float64)))


def _quantile(values: Sequence[float], q: float, rng: np.random.Generator) -> Figure | None:
    if not values:
        return None
    if len(values) < 2:
        return Figure(value=values[0], n=1)
    statistic = row_quantiles(q)
    return Figure.of(bootstrap_interval(values, rng, statistic=statistic, level=LEVEL))


def _pooled_quantile(
    groups: Sequence[NDArray[np.float64]], q: float, rng: np.random.Generator
) -> Figure | None:
    """The quantile of all values; what is drawn anew is groups, because a group's are alike."""
    if not groups:
        return None
    num_values = sum(len(each) for each in groups)
    if len(groups) < 2:
        return Figure(value=float(np.quantile(groups[0], q)), n=num_values)
    found = bootstrap_interval(
        np.arange(len(groups)),
        rng,
        statistic=_quantile_of_groups(groups, q),
        num_resamples=_GAP_RESAMPLES,
        level=LEVEL,
    )
    return Figure(value=found.value, n=num_values, low=found.low, high=found.high)


def _quantile_of_groups(
    groups: Sequence[NDArray[np.float64]], q: float
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    def statistic(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        drawn = (np.concatenate([groups[int(idx)] for idx in row]) for row in rows)
        return np.asarray([np.quantile(each, q) for each in drawn])

    return statistic
