"""A world for batch jobs: lanes as they really are, jobs as they come, all fixed in advance.

What happens never depends on who plans: a lane's rate is a function of time, a native batch's fate
a function of its lane and of the half hour it was submitted in. So a planner and the omniscient
reference live through the same day.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.policy.placement_lanes import line_nanos
from gateway.policy.placement_terms import NATIVE, LaneKind, LineGroup, PriceWindow
from gateway.prices.rows import BATCH

SLOT_S = 1_800.0
DONE_FROM = 0.8  # of a native batch's time: until then it waits, then its lines are answered
LINE_TOKENS = 300.0  # output tokens of a line of ordinary size


class Steps:
    """A rate over time, piecewise constant; the last value holds for good."""

    __slots__ = ("_rates", "_sums", "_times_s")

    def __init__(self, times_s: NDArray[np.float64], rates: NDArray[np.float64]) -> None:
        """`times_s` rise from 0; `rates` in lines a second from each of them on."""
        self._times_s: list[float] = times_s.tolist()
        self._rates: list[float] = rates.tolist()
        sums = np.concatenate([[0.0], np.cumsum(np.diff(times_s) * rates[:-1])])
        self._sums: list[float] = sums.tolist()

    def at(self, at_s: float) -> float:
        """Lines a second at that time."""
        return self._rates[bisect_right(self._times_s, at_s) - 1]

    def lines(self, from_s: float, until_s: float) -> float:
        """Lines of ordinary size answered between two times."""
        return self._total(until_s) - self._total(from_s)

    def _total(self, at_s: float) -> float:
        idx = bisect_right(self._times_s, at_s) - 1
        return self._sums[idx] + (at_s - self._times_s[idx]) * self._rates[idx]


class Fates(msgspec.Struct, frozen=True):
    """What becomes of a native batch, by the slot of its submission."""

    takes_s: tuple[float, ...]
    shares_done: tuple[float, ...]  # below 1: it expires with the rest undone; 0: it fails

    def of(self, submitted_s: float) -> tuple[float, float]:
        """(seconds until it ends, share of its lines answered)."""
        slot = min(int(submitted_s // SLOT_S), len(self.takes_s) - 1)
        return self.takes_s[slot], self.shares_done[slot]

    def done_when_cancelled(self, submitted_s: float, at_s: float) -> float:
        """Share of its lines that were answered, and are paid, when it is cancelled then."""
        takes_s, share = self.of(submitted_s)
        progress = ((at_s - submitted_s) / takes_s - DONE_FROM) / (1.0 - DONE_FROM)
        return share * min(1.0, max(0.0, progress))


class TrueLane(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as it is. `rate` of a sync or own lane, `fates` of a native one."""

    id: str
    endpoint_id: str
    model: str
    kind: LaneKind
    tier: str
    windows: tuple[PriceWindow, ...]
    rate: Steps | None = None
    fates: Fates | None = None

    def line_nanos(self, job: Job, at_s: float) -> float:
        """What a line of the job really costs here at that time."""
        tier = BATCH if self.kind == NATIVE else self.tier
        for window in self.windows:
            if window.from_s <= at_s < window.until_s:
                return line_nanos(job.group(true_size=True), window, tier)
        raise ValueError(f"{self.id}: no price window holds {at_s} s; windows must cover all time")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One batch: lines all alike. Planners see the expected output, bills the true one."""

    id: str
    model: str
    arrives_s: float
    deadline_s: float  # on the world's clock
    count: int
    prompt_tokens: float
    output_tokens: float
    true_output_tokens: float

    @property
    def weight(self) -> float:
        """Lines of ordinary size that one of its lines counts as."""
        return self.true_output_tokens / LINE_TOKENS

    def group(self, *, true_size: bool = False) -> LineGroup:
        """All its lines as one group, as expected or as they are."""
        return LineGroup(
            batch_id=self.id,
            model=self.model,
            count=self.count,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.true_output_tokens if true_size else self.output_tokens,
            deadline_at_s=self.deadline_s,
        )


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Lanes and jobs of one seed."""

    name: str
    seed: int
    lanes: tuple[TrueLane, ...]
    jobs: tuple[Job, ...]

    def list_nanos(self, job: Job) -> float:
        """All lines of a job at the moment it comes, at the cheapest standard list price."""
        return job.count * min(
            lane.line_nanos(job, job.arrives_s)
            for lane in self.lanes
            if lane.model == job.model and lane.kind == "sync" and lane.tier == "standard"
        )
