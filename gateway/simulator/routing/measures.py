"""One run's rows → its figures. Pure arithmetic on arrays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.simulator.routing.arrivals import Workload
from gateway.simulator.routing.places import held_tokens
from gateway.simulator.routing.records import Served
from gateway.simulator.routing.world import World

FAILED_S = 60.0  # what a request without an answer counts as having taken
SLO_BASE_S, SLO_TOKENS_PER_S = 2.0, 30.0  # done within 2 s and the answer at 30 tok/s
LEFT_SHARE = 0.05
LEFT_WINDOW_S = 30.0
USED_SHARE = 0.30
BIN_S = 30.0
SWING_MIN = 0.10  # of the share; smaller changes are chance
NANOS = 1e9


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What is reported of one run. Seconds, dollars, shares of 1; None: not of this world."""

    num_requests: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    usd: float
    usd_per_kchar: float
    slo_share: float
    failed_share: float
    explored_share: float
    cached_share: float  # of prompt tokens
    cached_of_ideal: float | None
    load_over_fair: float  # of the busiest endpoint
    oscillations_per_10min: float
    deadline_misses: int
    leave_s: float | None = None  # until the failing endpoint got < 5 % of first attempts
    leave_requests: int | None = None  # first attempts it got within the first 30 s
    return_s: float | None = None
    adopt_s: float | None = None  # until a newcomer got > 30 %
    event_share: float | None = None  # of first attempts, between 30 s after the event and its end
    event_share_before: float | None = None
    # Of the first minutes without any measurement, over the same minutes of a warm twin.
    cold_minute: float | None = None  # mean of the first minute alone
    cold_mean: float | None = None
    cold_p95: float | None = None
    cold_usd: float | None = None  # per useful 1k characters
    cold_for_s: float | None = None  # until a window of 30 s is within 10 % of the twin's mean
    # Ours only: shares of real times within the 50 and 90 % intervals predicted before, and the
    # mean of ln(real / predicted); of what length made unsure, "completion", and of the rest.
    coverage_50: float | None = None
    coverage_90: float | None = None
    bias_ln: float | None = None
    speed_coverage_90: float | None = None
    ttft_coverage_90: float | None = None


def figures_of(served: Sequence[Served], world: World, workload: Workload) -> Figures:
    """All figures of one run."""
    done_s = np.array([FAILED_S if one.has_failed else one.done_s for one in served])
    ttft_s = np.array([one.ttft_s for one in served if not one.has_failed])
    outputs = np.array([arrival.output_tokens for arrival in workload.arrivals])
    first = np.array([one.first for one in served])
    at_s = np.array([one.at_s for one in served])
    prompts = max(1, sum(one.prompt_tokens for one in served))
    cached = sum(one.cached_tokens for one in served)
    characters = sum(one.useful_characters for one in served)
    usd = sum(one.cost_nanos for one in served) / NANOS
    shares = np.bincount(first[first >= 0], minlength=len(world.specs)) / max(1, len(served))
    ideal = ideal_cached_tokens(workload)
    event = _event_figures(first, at_s, world, workload.duration_s)
    return Figures(
        num_requests=len(served),
        mean_s=float(done_s.mean()),
        p50_s=float(np.quantile(done_s, 0.50)),
        p95_s=float(np.quantile(done_s, 0.95)),
        p99_s=float(np.quantile(done_s, 0.99)),
        ttft_p50_s=float(np.quantile(ttft_s, 0.50)) if len(ttft_s) else 0.0,
        ttft_p95_s=float(np.quantile(ttft_s, 0.95)) if len(ttft_s) else 0.0,
        usd=usd,
        usd_per_kchar=usd / characters * 1000.0 if characters else 0.0,
        slo_share=float(np.mean(done_s <= SLO_BASE_S + outputs / SLO_TOKENS_PER_S)),
        failed_share=float(np.mean([one.has_failed for one in served])),
        explored_share=float(np.mean([one.explored for one in served])),
        cached_share=cached / prompts,
        cached_of_ideal=cached / ideal if ideal else None,
        load_over_fair=float(shares.max() * len(world.specs)),
        oscillations_per_10min=_oscillations(first, at_s, workload.duration_s),
        deadline_misses=_misses(served, workload),
        **event,  # type: ignore[arg-type]  # counts are int, times float, by name
    )


def ideal_cached_tokens(workload: Workload) -> int:
    """Tokens that one endless cache with the world's time to live would have had ready."""
    seen: dict[int, float] = {}
    total = 0
    for arrival in workload.arrivals:
        total += held_tokens(seen, arrival, arrival.at_s)
        for block in arrival.blocks:
            seen[block] = arrival.at_s
    return total


def _misses(served: Sequence[Served], workload: Workload) -> int:
    return sum(
        arrival.deadline_s is not None and (one.has_failed or one.done_s > arrival.deadline_s)
        for one, arrival in zip(served, workload.arrivals, strict=True)
    )


def _oscillations(first: NDArray[np.int64], at_s: NDArray[np.float64], duration_s: float) -> float:
    """Turns of the most used endpoint's share (in bins of 30 s, swings of 10 % and more)."""
    sent = first >= 0
    if not sent.any():
        return 0.0
    top = np.bincount(first[sent]).argmax()
    bins = (at_s / BIN_S).astype(int)
    total = np.bincount(bins[sent])
    used = np.bincount(bins[sent & (first == top)], minlength=len(total))
    share = used[total > 0] / total[total > 0]
    turns, anchor, direction = 0, share[0] if len(share) else 0.0, 0
    for value in share[1:]:
        if abs(value - anchor) < SWING_MIN:
            continue
        now = 1 if value > anchor else -1
        turns += direction not in (0, now)
        anchor, direction = value, now
    return turns / (duration_s / 600.0)


def _event_figures(
    first: NDArray[np.int64], at_s: NDArray[np.float64], world: World, duration_s: float
) -> dict[str, float | int | None]:
    """How soon the router left, came back or took up what the world's event is about."""
    if world.event_s is None:
        return {}
    ids = [idx for idx, spec in enumerate(world.specs) if spec.id in world.event_ids]
    is_theirs = np.isin(first, ids)
    end_s = world.event_end_s if world.event_end_s is not None else duration_s
    within = (at_s >= world.event_s) & (at_s < end_s)
    after = within & (at_s >= world.event_s + LEFT_WINDOW_S)
    before = at_s < world.event_s
    found: dict[str, float | int | None] = {
        "event_share": float(is_theirs[after].mean()) if after.any() else None,
        "event_share_before": float(is_theirs[before].mean()) if before.any() else None,
    }
    if world.name in ("newcomer", "improves"):
        found["adopt_s"] = _first_window(is_theirs, at_s, world.event_s, end_s, above=USED_SHARE)
        return found
    if world.event_end_s is None:
        return found
    found["leave_s"] = _first_window(is_theirs, at_s, world.event_s, end_s, below=LEFT_SHARE)
    at_once = within & (at_s < world.event_s + LEFT_WINDOW_S)
    found["leave_requests"] = int(is_theirs[at_once].sum())
    usual = found["event_share_before"] or 0.0
    if usual > 0.0:
        found["return_s"] = _first_window(is_theirs, at_s, end_s, duration_s, above=usual / 2.0)
    return found


def _first_window(
    is_theirs: NDArray[np.bool_],
    at_s: NDArray[np.float64],
    begin_s: float,
    end_s: float,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float | None:
    """Seconds from `begin_s` to the first window of 30 s whose share passes the bound."""
    for start_s in np.arange(begin_s, max(begin_s, end_s - LEFT_WINDOW_S), 1.0):
        low, high = np.searchsorted(at_s, (start_s, start_s + LEFT_WINDOW_S))
        if high - low < 5:
            continue
        share = float(is_theirs[low:high].mean())
        if (above is not None and share > above) or (below is not None and share < below):
            return float(start_s - begin_s)
    return None
