"""LLMPerf's measured requests (2023): how far single answers lie from their provider's median.

ray-project/llmperf-leaderboard, `raw_data/individual/*.json`, Apache-2.0: 150 requests a file, five
at once, 550 tokens in and 150 out. The world `llmperf` draws its noise from these shapes. The
providers' ranking is of 2023 and means nothing now, so nothing here keeps it but the file's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from gateway.simulator.routing.workloads.traces import TraceError, read_text

FOLDER = Path("llmperf-2023") / "individual"
TOO_SHORT = -100  # the benchmark's own mark: a whole answer, of fewer tokens than it asked for
SPAN_MIN_S = 0.25  # a shorter stream shows a flush, not decoding
SAMPLES_MIN = 16  # fewer answers have no shape


class _Request(msgspec.Struct):
    error_code: int | str | None = None
    ttft_s: float | None = None
    end_to_end_latency_s: float | None = None
    number_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """One provider's spread about its own median, and its failures."""

    name: str  # as the file is called: "together_70b"
    ttft_median_s: float
    rate_median: float  # tokens/s, between the first and the last token
    ttft_residuals: tuple[float, ...]  # ln(ttft/median), in order of the requests
    rate_residuals: tuple[float, ...]  # ln(rate/median), likewise
    failed_share: float
    failed_run_mean: float  # mean length of failures in a row; 0 = none failed


def llmperf(traces_dir: Path) -> tuple[Shape, ...]:
    """The shapes of all files that hold enough answers, by name."""
    folder = traces_dir / FOLDER
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise TraceError(folder, "holds no *.json")
    shapes = (read_shape(path) for path in paths)
    return tuple(shape for shape in shapes if shape is not None)


@lru_cache(maxsize=64)
def read_shape(path: Path) -> Shape | None:
    """One file; None where too few requests were answered to show a spread."""
    try:
        requests = msgspec.json.decode(read_text(path), type=list[_Request])
    except msgspec.DecodeError as error:
        raise TraceError(path, f"not a list of measured requests ({error})") from error
    if not requests:
        raise TraceError(path, "holds no request")
    has_failed = [request.error_code not in (None, TOO_SHORT) for request in requests]
    runs = [len(list(run)) for failed, run in groupby(has_failed) if failed]
    ttfts: list[float] = []
    rates: list[float] = []
    for request, failed in zip(requests, has_failed, strict=True):
        ttft_s, whole_s = request.ttft_s, request.end_to_end_latency_s
        if failed or not ttft_s or not whole_s or not request.number_output_tokens:
            continue
        ttfts.append(ttft_s)
        if whole_s - ttft_s >= SPAN_MIN_S and request.number_output_tokens > 1:
            rates.append((request.number_output_tokens - 1) / (whole_s - ttft_s))
    if min(len(ttfts), len(rates)) < SAMPLES_MIN:
        return None
    return Shape(
        name=path.stem,
        ttft_median_s=float(np.median(ttfts)),
        rate_median=float(np.median(rates)),
        ttft_residuals=_residuals(ttfts),
        rate_residuals=_residuals(rates),
        failed_share=sum(has_failed) / len(requests),
        failed_run_mean=sum(runs) / len(runs) if runs else 0.0,
    )


def _residuals(values: list[float]) -> tuple[float, ...]:
    return tuple(np.log(np.array(values) / np.median(values)).tolist())


# Without the files: quantiles of the residuals of twelve steady providers together, and of the one
# whose first tokens had the longest tail. One more answered 429 for most of its run.
QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_STEADY_TTFT = (-0.58, -0.42, -0.29, -0.08, 0.0, 0.10, 0.49, 0.84, 1.19)
_STEADY_RATE = (-1.04, -0.40, -0.19, -0.05, 0.0, 0.03, 0.13, 0.21, 0.40)
_TAILED_TTFT = (-0.20, -0.19, -0.17, -0.15, 0.0, 0.36, 3.02, 3.98, 4.10)
_TAILED_RATE = (-0.26, -0.17, -0.06, -0.04, 0.0, 0.02, 0.02, 0.07, 0.16)
EMBEDDED_SAMPLES = 401


def embedded_shapes() -> tuple[Shape, ...]:
    """Three shapes like the measured ones. Their residuals ascend: draw from them, in no order."""
    return (
        _embedded("steady", (0.4, 70.0), (_STEADY_TTFT, _STEADY_RATE), (0.0, 0.0)),
        _embedded("tailed", (1.2, 12.0), (_TAILED_TTFT, _TAILED_RATE), (0.0, 0.0)),
        _embedded("failing", (0.9, 41.0), (_STEADY_TTFT, _STEADY_RATE), (0.87, 43.0)),
    )


def _embedded(
    name: str,
    medians: tuple[float, float],
    quantiles: tuple[tuple[float, ...], tuple[float, ...]],
    failures: tuple[float, float],
) -> Shape:
    at = np.linspace(0.0, 1.0, EMBEDDED_SAMPLES)
    ttft, rate = (tuple(np.interp(at, QUANTILES, each).tolist()) for each in quantiles)
    return Shape(name, *medians, ttft, rate, *failures)
