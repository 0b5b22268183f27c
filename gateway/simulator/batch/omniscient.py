"""The reference: the least that any planner could pay, knowing every rate, fate and job to come.

It is the optimum of a transportation problem for each model: lines are split at will over every
lane's capacity between two times at which a job comes, must end, or a price changes. It is a bound
from below, and kinder to itself than a real omniscient planner could be:

- lines are a fluid, an answer takes no time once a lane takes it, no batch is too small;
- the native lanes hold any number of lines; it submits at the best instant of each half hour, polls
  at once, submits a job to any number of half hours side by side, and pays for a line once;
- nothing of what it does can fail.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

import msgspec
import numpy as np

from gateway.simulator.batch.transport import Floats, solve
from gateway.simulator.batch.world import SLOT_S, Job, TrueLane, World

LATE_NANOS = 1e15  # of a line that fits nowhere: dearer than any lane, so lateness is least first
_LINES_EPSILON = 1e-3


class Bound(msgspec.Struct, frozen=True):
    """
    What the reference pays for lines answered in time, and which jobs it keeps.

    Where not all fit, as few lines as can be are late; whose they are is one choice of several.
    """

    cost_nanos: float
    late_lines: dict[str, float]  # job → lines that cannot be answered in time at any price

    def keeps(self, job_id: str) -> bool:
        return self.late_lines[job_id] < _LINES_EPSILON


def lower_bound(world: World) -> Bound:
    """The reference of one world."""
    cost = 0.0
    late: dict[str, float] = {}
    for model in sorted({job.model for job in world.jobs}):
        jobs = [job for job in world.jobs if job.model == model]
        lanes = [lane for lane in world.lanes if lane.model == model]
        costs, rooms = _sinks(jobs, lanes)
        supplies = np.array([job.count * job.weight for job in jobs])
        flows = solve(costs, supplies, rooms)
        in_time = np.where(flows[:, :-1] > 0.0, costs[:, :-1], 0.0)
        cost += float((flows[:, :-1] * in_time).sum())
        late |= {job.id: float(flows[idx, -1] / job.weight) for idx, job in enumerate(jobs)}
    return Bound(cost, late)


def _sinks(jobs: list[Job], lanes: list[TrueLane]) -> tuple[Floats, Floats]:
    """
    Costs [jobs, sinks] and rooms [sinks], in lines of ordinary size; the last sink is lateness.
    """
    columns: list[list[float]] = []
    rooms: list[float] = []
    for lane in lanes:
        if lane.rate is not None:
            for from_s, until_s in pairwise(_cuts(jobs, lane)):
                fits = [job.arrives_s <= from_s and until_s <= job.deadline_s for job in jobs]
                columns.append(_column(jobs, lane, from_s, fits))
                rooms.append(lane.rate.lines(from_s, until_s))
        else:
            for idx, job in enumerate(jobs):
                room, cost = _native(job, lane)
                columns.append([cost if each == idx else inf for each in range(len(jobs))])
                rooms.append(room)
    columns.append([LATE_NANOS] * len(jobs))
    rooms.append(sum(job.count * job.weight for job in jobs) + 1.0)
    return np.array(columns).T, np.array(rooms)


def _cuts(jobs: list[Job], lane: TrueLane) -> list[float]:
    """Where eligibility or price changes, from the first arrival to the last deadline."""
    first, last = min(job.arrives_s for job in jobs), max(job.deadline_s for job in jobs)
    edges = {job.arrives_s for job in jobs} | {job.deadline_s for job in jobs}
    edges |= {window.until_s for window in lane.windows if first < window.until_s < last}
    return sorted(edges)


def _column(jobs: list[Job], lane: TrueLane, at_s: float, fits: list[bool]) -> list[float]:
    return [
        lane.line_nanos(job, at_s) / job.weight if is_fitting else inf
        for job, is_fitting in zip(jobs, fits, strict=True)
    ]


def _native(job: Job, lane: TrueLane) -> tuple[float, float]:
    """(room, cost of a line of ordinary size) of a job in a provider's batches."""
    assert lane.fates is not None
    undone, cheapest, at_s = 1.0, inf, job.arrives_s
    while at_s < job.deadline_s:
        takes_s, share = lane.fates.of(at_s)
        if share > 0.0 and at_s + takes_s <= job.deadline_s:
            undone *= 1.0 - share
            cheapest = min(cheapest, lane.line_nanos(job, at_s) / job.weight)
        at_s = (at_s // SLOT_S + 1.0) * SLOT_S
    return (1.0 - undone) * job.count * job.weight, cheapest
