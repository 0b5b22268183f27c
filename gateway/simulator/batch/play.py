"""One day of a world with the product's planner: events on a heap, a clock that is a variable.

The planner sees what a gateway sees: rates it learned, turnarounds it learned, prices, what it has
under way. It re-plans every minute and whenever a job comes or a native batch ends. Between two
events lanes answer lines at their true rate, the earliest deadline first.
"""

from __future__ import annotations

import heapq
from itertools import count
from math import ceil, exp

import msgspec

from gateway.policy.placement import LaneOffer, LineGroup, Placement, place
from gateway.policy.turnaround import Turnaround
from gateway.simulator.batch.world import LINE_TOKENS, Job, TrueLane, World

TICK_S = 60.0
LATENCY_S = 15.0  # from a line's turn on a lane to its answer
CANCELLING_S = 90.0
SILENT_S = 30.0  # an endpoint that answered nothing for so long is known to be dead
LEARNING_S = {"sync": 600.0, "own": 21_600.0}  # time constants of learned rates
LINES_MAX = 50_000


class JobState:
    """How far one job is. Its lines are open, in native batches, being cancelled, or done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.open = job.count
        self.done = 0
        self.cost_nanos = 0.0
        self.finished_s: float | None = None
        self.late_lines = 0
        self.escalated_lines = 0
        self.moved_lines = 0
        self.open_since_s = job.arrives_s
        self.lane = ""
        self.natives: list[NativeRun] = []

    @property
    def is_over(self) -> bool:
        return self.late_lines > 0 or self.done == self.job.count


class NativeRun:
    """One batch at a provider."""

    def __init__(self, state: JobState, lane: TrueLane, num_lines: int, now_s: float) -> None:
        self.state = state
        self.lane = lane
        self.num_lines = num_lines
        self.since_s = now_s
        self.cancelled_s: float | None = None
        self.is_over = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one job fared."""

    job_id: str
    count: int
    late_lines: int
    finished_s: float | None
    deadline_s: float
    cost_nanos: float
    escalated_lines: int
    moved_lines: int

    @property
    def is_in_time(self) -> bool:
        """Whether every line was answered by its deadline."""
        return self.finished_s is not None and self.finished_s <= self.deadline_s


class Day:
    """The state of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._now_s = 0.0
        self._number = count()
        self._heap: list[tuple[float, int, str, object]] = []
        self._states: list[JobState] = []
        self._queues: dict[str, list[tuple[JobState, int]]] = {}
        self._carry: dict[str, float] = {}
        self._learned = {
            lane.id: lane.rate.at(0.0) for lane in world.lanes if lane.rate is not None
        }
        self._turnarounds = {lane.id: Turnaround() for lane in world.lanes if lane.fates}
        self._lanes = {lane.id: lane for lane in world.lanes}
        self._dead_since_s: dict[str, float] = {}
        self._next_tick_s = 0.0
        self.num_plans = 0

    def run(self) -> list[Outcome]:
        """Play until every job is over."""
        for job in self._world.jobs:
            self._at(job.arrives_s, "arrival", job)
        while self._heap:
            now_s = self._heap[0][0]
            self._advance(now_s)
            while self._heap and self._heap[0][0] <= now_s:
                _, _, kind, what = heapq.heappop(self._heap)
                self._happen(kind, what)
            if any(not state.is_over for state in self._states):
                self._plan()
                if self._next_tick_s <= now_s:
                    self._next_tick_s = (now_s // TICK_S + 1.0) * TICK_S
                    self._at(self._next_tick_s, "tick", None)
        return [_outcome(state) for state in self._states]

    def _at(self, at_s: float, kind: str, what: object) -> None:
        heapq.heappush(self._heap, (at_s, next(self._number), kind, what))

    def _happen(self, kind: str, what: object) -> None:
        if isinstance(what, Job):
            state = JobState(what)
            self._states.append(state)
            self._at(what.deadline_s - LATENCY_S, "deadline", state)
        elif isinstance(what, JobState):
            if not what.is_over:
                what.late_lines = what.job.count - what.done
                for run in what.natives:
                    self._close(run)
        elif isinstance(what, NativeRun) and not what.is_over:
            if kind == "cancelled":
                self._cancelled(what)
            elif what.cancelled_s is None:
                self._ended(what)

    # Between events: lanes answer lines.

    def _advance(self, until_s: float) -> None:
        from_s, self._now_s = self._now_s, until_s
        if until_s <= from_s:
            return
        for lane_id in self._learned:
            lane = self._lanes[lane_id]
            assert lane.rate is not None
            lines = lane.rate.lines(from_s, until_s)
            if lines or lane.kind == "own":  # a dead endpoint's rate is not unlearned
                keep = exp(-(until_s - from_s) / LEARNING_S[lane.kind])
                mean = lines / (until_s - from_s)
                self._learned[lane_id] = keep * self._learned[lane_id] + (1.0 - keep) * mean
            if queue := self._queues.get(lane_id):
                self._serve(lane, queue, lines, from_s)

    def _serve(
        self, lane: TrueLane, queue: list[tuple[JobState, int]], lines: float, from_s: float
    ) -> None:
        room = lines + self._carry.get(lane.id, 0.0)
        total, seconds = max(room, 1e-9), self._now_s - from_s
        for idx, (state, wanted) in enumerate(queue):
            weight = state.job.weight
            num = 0 if state.is_over else min(wanted, state.open, int(room / weight + 1e-9))
            if num:
                room -= num * weight
                done_s = from_s + seconds * (1.0 - room / total)
                state.open -= num
                _book(state, num, lane.line_nanos(state.job, from_s), done_s + LATENCY_S)
            queue[idx] = (state, wanted - num)
            if room < weight and num < wanted:
                break
        has_more = any(wanted and not state.is_over for state, wanted in queue)
        self._carry[lane.id] = room if has_more else 0.0

    # Planning.

    def _plan(self) -> None:
        groups: list[LineGroup] = []
        owners: dict[int, JobState | NativeRun] = {}
        for state in self._states:
            if state.is_over:
                continue
            if state.open:
                groups.append(self._open_group(state))
                owners[id(groups[-1])] = state
            for run in state.natives:
                if run.cancelled_s is None:
                    groups.append(self._native_group(run))
                    owners[id(groups[-1])] = run
        self.num_plans += 1
        self._carry_out(place(groups, self._offers(), self._now_s), owners)

    def _open_group(self, state: JobState) -> LineGroup:
        return msgspec.structs.replace(
            state.job.group(),
            count=state.open,
            lane=state.lane,
            waiting_since_s=state.open_since_s,
            spent_nanos=round(state.cost_nanos),
        )

    def _native_group(self, run: NativeRun) -> LineGroup:
        return msgspec.structs.replace(
            run.state.job.group(),
            count=run.num_lines,
            lane=run.lane.id,
            since_s=run.since_s,
            spent_nanos=round(run.state.cost_nanos),
        )

    def _offers(self) -> list[LaneOffer]:
        running: dict[str, list[float]] = {}
        for state in self._states:
            for run in state.natives:
                if run.cancelled_s is None:
                    running.setdefault(run.lane.id, []).append(self._now_s - run.since_s)
        offers = []
        for lane in self._world.lanes:
            if lane.rate is not None:
                offers.append(_fluid_offer(lane, self._learned[lane.id], self._opens_at_s(lane)))
            else:
                known = self._turnarounds[lane.id]
                quantiles = known.quantiles(tuple(running.get(lane.id, ())))
                offers.append(_native_offer(lane, quantiles, known.opens_at_s))
        return offers

    def _opens_at_s(self, lane: TrueLane) -> float:
        """A dead endpoint is expected to stay so for as long again as it has been."""
        assert lane.rate is not None
        if lane.kind == "own" or lane.rate.at(self._now_s):
            self._dead_since_s.pop(lane.id, None)
            return 0.0
        dead_for_s = self._now_s - self._dead_since_s.setdefault(lane.id, self._now_s)
        return self._now_s + dead_for_s if dead_for_s >= SILENT_S else 0.0

    def _carry_out(self, placement: Placement, owners: dict[int, JobState | NativeRun]) -> None:
        self._queues = {}
        kept: set[int] = set()
        escalated = {id(group) for group in placement.escalated}
        for allocation in placement.allocations:
            owner, lane = owners[id(allocation.group)], self._lanes[allocation.lane_id]
            is_now = allocation.not_before_s <= self._now_s
            if isinstance(owner, NativeRun):
                if lane is owner.lane:
                    kept.add(id(allocation.group))
            elif lane.fates is not None:
                if is_now:
                    self._submit(owner, lane, allocation.count)
            else:
                owner.lane = lane.id
                if is_now:
                    self._queues.setdefault(lane.id, []).append((owner, allocation.count))
        for queue in self._queues.values():
            queue.sort(key=lambda each: each[0].job.deadline_s)
        for group_id, owner in owners.items():
            if isinstance(owner, NativeRun) and group_id not in kept:
                self._cancel(owner, is_escalation=group_id in escalated)

    # Native batches.

    def _submit(self, state: JobState, lane: TrueLane, num_lines: int) -> None:
        assert lane.fates is not None
        while num_lines:
            run = NativeRun(state, lane, min(num_lines, LINES_MAX), self._now_s)
            num_lines -= run.num_lines
            state.open -= run.num_lines
            state.natives.append(run)
            takes_s, _ = lane.fates.of(self._now_s)
            seen_s = ceil((self._now_s + takes_s) / TICK_S) * TICK_S
            self._at(seen_s, "ended", run)

    def _cancel(self, run: NativeRun, *, is_escalation: bool) -> None:
        run.cancelled_s = self._now_s
        self._turnarounds[run.lane.id].gave_up(self._now_s - run.since_s)
        if is_escalation:
            run.state.escalated_lines += run.num_lines
        else:
            run.state.moved_lines += run.num_lines
        self._at(self._now_s + CANCELLING_S, "cancelled", run)

    def _ended(self, run: NativeRun) -> None:
        assert run.lane.fates is not None
        _, share = run.lane.fates.of(run.since_s)
        known = self._turnarounds[run.lane.id]
        if share <= 0.0:
            known.failed(self._now_s)
        elif share < 1.0:
            known.gave_up(self._now_s - run.since_s)
        else:
            known.finished(self._now_s - run.since_s)
        self._give_back(run, share)

    def _cancelled(self, run: NativeRun) -> None:
        assert run.lane.fates is not None
        assert run.cancelled_s is not None
        self._give_back(run, run.lane.fates.done_when_cancelled(run.since_s, run.cancelled_s))

    def _give_back(self, run: NativeRun, share_done: float) -> None:
        state, num_done = run.state, int(run.num_lines * share_done)
        self._close(run)
        state.natives.remove(run)
        if num_done:
            _book(state, num_done, run.lane.line_nanos(state.job, run.since_s), self._now_s)
        if undone := run.num_lines - num_done:
            state.open += undone
            state.open_since_s = self._now_s

    def _close(self, run: NativeRun) -> None:
        run.is_over = True


def _book(state: JobState, num_lines: int, line_nanos: float, done_s: float) -> None:
    state.done += num_lines
    state.cost_nanos += num_lines * line_nanos
    if state.done == state.job.count:
        state.finished_s = done_s


def _fluid_offer(lane: TrueLane, lines_per_s: float, opens_at_s: float) -> LaneOffer:
    return LaneOffer(
        id=lane.id,
        endpoint_id=lane.endpoint_id,
        model=lane.model,
        kind=lane.kind,
        tier=lane.tier,
        windows=lane.windows,
        lines_per_s=lines_per_s,
        opens_at_s=opens_at_s,
        line_tokens=LINE_TOKENS,
    )


def _native_offer(lane: TrueLane, quantiles: tuple[float, float], opens_at_s: float) -> LaneOffer:
    return LaneOffer(
        id=lane.id,
        endpoint_id=lane.endpoint_id,
        model=lane.model,
        kind=lane.kind,
        windows=lane.windows,
        turnaround_p50_s=quantiles[0],
        turnaround_p95_s=quantiles[1],
        opens_at_s=opens_at_s,
    )


def _outcome(state: JobState) -> Outcome:
    return Outcome(
        job_id=state.job.id,
        count=state.job.count,
        late_lines=state.late_lines,
        finished_s=state.finished_s,
        deadline_s=state.job.deadline_s,
        cost_nanos=state.cost_nanos,
        escalated_lines=state.escalated_lines,
        moved_lines=state.moved_lines,
    )
