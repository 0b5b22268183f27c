"""How long a call takes: on a GPU by its own events, elsewhere by the clock; medians of that."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Run = Callable[[], Any]
Clock = Callable[[], float]

FLUSHED_BYTES = 768 * 1024 * 1024  # thrice the largest last-level cache (256 MB on CDNA 3)
WARM_UPS = 2  # the first call compiles
ROUNDS_MIN = 5
ROUNDS_MAX = 60


class Timer(Protocol):
    """The only way that a measurement touches a device's clock."""

    def time_s(self, run: Run) -> float:
        """One call with cold caches, in seconds."""
        ...

    def wait(self) -> None:
        """Until the device has done all it was given."""
        ...


class EventTimer:
    """By the GPU's events. Rewriting a large buffer first empties the caches, and is long enough
    that the launches of the call are queued before its first one starts.
    """

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def time_s(self, run: Run) -> float:
        started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none
        ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has none
        self._flushed.zero_()
        started.record()
        run()
        ended.record()
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize()


class ClockTimer:
    """For a device that computes while it is called."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock

    def time_s(self, run: Run) -> float:
        started_s = self._clock()
        run()
        return self._clock() - started_s

    def wait(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Times:
    """Of one contender."""

    median_s: float
    low_s: float  # quartiles
    high_s: float
    num_rounds: int


def interleaved(
    contenders: Mapping[str, Run], timer: Timer, *, budget_s: float, clock: Clock = time.monotonic
) -> dict[str, Times]:
    """Each in turn, the order reversed every other round, so that a chip that warms up or slows
    down does so for all. Ends at `budget_s` (after ROUNDS_MIN rounds, or one if a round takes more
    than the budget) or at ROUNDS_MAX rounds.
    """
    ends_s = clock() + budget_s
    for run in contenders.values():
        for _ in range(WARM_UPS):
            run()
            timer.wait()
            if clock() >= ends_s:
                break
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(1, ROUNDS_MAX + 1):
        started_s = clock()
        for name in order:
            taken[name].append(timer.time_s(contenders[name]))
        order.reverse()
        now_s = clock()
        is_slow = now_s - started_s > budget_s
        if now_s >= ends_s and (number >= ROUNDS_MIN or is_slow):
            break
    return {name: summed_up(seconds) for name, seconds in taken.items()}


def summed_up(seconds: Sequence[float]) -> Times:
    """Raises ValueError if there are none."""
    if not seconds:
        raise ValueError("nothing was timed")
    if len(seconds) == 1:
        return Times(seconds[0], seconds[0], seconds[0], 1)
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Times(median, low, high, len(seconds))
