"""The batch planner: which lane answers which lines, and when. Pure: no clock, no I/O.

Earliest deadline first, each group takes the cheapest lanes that keep its deadline and have room.
A line may wait, for a cheaper price window or in a provider's batch, only as long as running it at
once would still keep the deadline (`placement_reserve`): then it is sent. So a native lane is worth
trying long before its slowest batches are in time: what it is expected to cost is

    P(back before the group must be sent) · batch price + (1 − P) · price at once

given how long the batch has run already. Moving lines must save more than `saving_to_move`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

import msgspec

from gateway.policy.placement_lanes import SLACK, Lane, Stretch, by_model
from gateway.policy.placement_reserve import REPLAN_S, Reserve, reserves
from gateway.policy.placement_terms import (
    GATHERING_S,
    LINES_MAX,
    NATIVE,
    OWN,
    Allocation,
    LaneOffer,
    Late,
    LineGroup,
    Over,
    Placement,
    PriceWindow,
)
from gateway.policy.turnaround import share_done
from gateway.prices.rows import STANDARD

__all__ = [
    "LINES_MAX",
    "NATIVE",
    "OWN",
    "Allocation",
    "LaneOffer",
    "Late",
    "LineGroup",
    "Over",
    "Placement",
    "PriceWindow",
    "place",
]

RECOVERY_S = 30.0  # p95 of one line at once, where no more was learned
SAVING_TO_MOVE = 0.05


class _Option(msgspec.Struct, frozen=True):
    """A lane, or a stretch of one, for a group: in order of what a line is expected to cost."""

    expected: float  # nanos a line, with what an escalation would add
    start_s: float
    lane: Lane
    stretch: Stretch | None  # None = native
    line_nanos: float  # at the lane's own price
    finish_s: float = 0.0  # of a native one


class _Taken(msgspec.Struct, frozen=True):
    option: _Option
    count: int


def place(
    groups: Sequence[LineGroup],
    offers: Sequence[LaneOffer],
    now_s: float,
    *,
    recovery_s: float = RECOVERY_S,
    saving_to_move: float = SAVING_TO_MOVE,
) -> Placement:
    """
    A lane, a time and a price for every line.

    `recovery_s`: p95 of one line sent at once to a healthy endpoint, unless a lane has learned
    that its lines take longer; a group's recovery follows from it and from how many lines it has.
    A group that runs natively stays where it is if it has an allocation on its own lane; if not,
    it is to be cancelled there and sent on. Raises nothing: what cannot be had is in `late` and
    `over`.
    """
    groups = [group for group in groups if group.count > 0]
    horizon_s = max((group.deadline_at_s for group in groups), default=now_s)
    planning = _Planning(
        by_model(tuple(offers), now_s, horizon_s), now_s, recovery_s, saving_to_move
    )
    planning.count_company(groups)
    kept = reserves(groups, planning.lanes, now_s, recovery_s)
    order = sorted(range(len(groups)), key=lambda idx: groups[idx].deadline_at_s)
    for idx in order:
        planning.add(groups[idx], kept[idx])
    return planning.placement(groups)


class _Planning:
    """One run of the planner: lanes fill up, allocations and what is missing come together."""

    def __init__(
        self, lanes: dict[str, list[Lane]], now_s: float, recovery_s: float, saving: float
    ) -> None:
        self.lanes = lanes
        self._now_s = now_s
        self._recovery_s = recovery_s
        self._saving = saving
        self._allocations: list[Allocation] = []
        self._late: list[Late] = []
        self._escalated: list[LineGroup] = []
        self._company: dict[tuple[str, str], int] = {}

    def count_company(self, groups: Sequence[LineGroup]) -> None:
        """How many open lines of a batch could share one native batch, whatever their sizes."""
        for group in groups:
            if group.since_s is None:
                key = (group.batch_id, group.model)
                self._company[key] = self._company.get(key, 0) + group.count

    def add(self, group: LineGroup, reserve: Reserve) -> None:
        """Place one group behind those that were placed before."""
        lanes = self.lanes.get(group.model, [])
        current = _running_lane(group, lanes)
        has_refuge = reserve.line_nanos < inf
        last_s = reserve.escalate_at_s - (current.offer.cancel_s if current is not None else 0.0)
        must_run = has_refuge and self._now_s >= last_s
        options = self._options(group, lanes, reserve, must_run=must_run)
        if current is not None and not must_run:
            stay = self._native(group, current, reserve)
            others = [option for option in options if option.lane is not current]
            if stay is not None and not self._is_worth_moving(group, others, stay):
                self._allocate(group, stay, group.count)
                return
            options = others
        if current is not None and must_run:
            self._escalated.append(group)
        # While there is a refuge a cheap lane may be filled to the brim; later a third stays free.
        slack = SLACK if must_run or not has_refuge else 1.0
        rest = self._fill(group, options, group.count, slack)
        if rest:
            rest = self._fill(group, self._at_once(group, lanes), rest, 1.0)
        if rest:
            self._overdue(group, lanes, rest)

    def _options(
        self, group: LineGroup, lanes: Sequence[Lane], reserve: Reserve, *, must_run: bool
    ) -> list[_Option]:
        """Every lane that keeps the deadline, cheapest first, then soonest."""
        options = []
        for lane in lanes:
            if lane.is_native:
                if not must_run and (option := self._native(group, lane, reserve)) is not None:
                    options.append(option)
                continue
            for stretch in lane.stretches:
                is_waiting = stretch.from_s > self._now_s
                if is_waiting and stretch.from_s > reserve.escalate_at_s:
                    break
                options.append(self._stretch(group, lane, stretch))
        return sorted(options, key=lambda each: (each.expected, each.start_s, each.lane.offer.id))

    def _at_once(self, group: LineGroup, lanes: Sequence[Lane]) -> list[_Option]:
        """All that answers, cheapest first, whatever it costs."""
        options = [
            self._stretch(group, lane, stretch) for lane in lanes for stretch in lane.stretches
        ]
        return sorted(options, key=lambda each: (each.expected, each.start_s, each.lane.offer.id))

    def _stretch(self, group: LineGroup, lane: Lane, stretch: Stretch) -> _Option:
        cost = lane.cost_in(group, stretch.window)
        # What a line's present lane saves by not being left.
        expected = cost * (1.0 - self._saving) if lane.offer.id == group.lane else cost
        return _Option(expected, stretch.from_s, lane, stretch, cost)

    def _native(self, group: LineGroup, lane: Lane, reserve: Reserve) -> _Option | None:
        """A provider's batch for this group: one that runs already, or a new one."""
        offer, has_refuge = lane.offer, reserve.line_nanos < inf
        is_running = group.since_s is not None and group.lane == offer.id
        start_s = max(self._now_s, offer.opens_at_s)
        if group.since_s is not None and not is_running:
            start_s = max(start_s, self._now_s + offer.cancel_s)  # it must come back first
        elif is_running:
            start_s = min(self._now_s, group.since_s or 0.0)
        elif self._company[group.batch_id, group.model] < offer.requests_min:
            waited_since_s = start_s if group.waiting_since_s is None else group.waiting_since_s
            start_s = max(start_s, waited_since_s + GATHERING_S)
        share = share_done(
            offer.turnaround_p50_s,
            offer.turnaround_p95_s,
            reserve.escalate_at_s - (offer.cancel_s if has_refuge else 0.0) - start_s,
            age_s=max(0.0, self._now_s - start_s),
        )
        cost = expected = lane.cost_at(group, start_s)
        if has_refuge:
            expected = share * cost + (1.0 - share) * max(cost, reserve.line_nanos)
            if not is_running and expected > (1.0 - self._saving) * reserve.line_nanos:
                return None  # hardly ever back in time: not worth the wait
        finish_s = max(self._now_s, start_s + offer.turnaround_p95_s)
        if has_refuge:
            finish_s = min(finish_s, group.deadline_at_s)
        return _Option(expected, start_s, lane, None, cost, finish_s)

    def _is_worth_moving(self, group: LineGroup, options: Sequence[_Option], stay: _Option) -> bool:
        """Whether all its lines elsewhere, with what the move wastes, cost clearly less."""
        rest, cost = group.count, float(group.sunk_nanos)
        limit = (1.0 - self._saving) * stay.expected * group.count
        for option in options:
            count = min(rest, self._room(group, option, 1.0))
            rest -= count
            cost += count * option.expected if count else 0.0
            if not rest or cost >= limit:
                break
        return not rest and cost < limit

    def _room(self, group: LineGroup, option: _Option, slack: float) -> int:
        if option.stretch is None:
            return group.count
        line_s = max(self._recovery_s, option.lane.line_p95_s(group))
        last_s = group.deadline_at_s - line_s
        if not option.lane.is_refuge:
            last_s = group.deadline_at_s - SLACK * line_s - REPLAN_S
        return option.stretch.room(last_s, slack, option.lane.weight(group))

    def _fill(self, group: LineGroup, options: Sequence[_Option], rest: int, slack: float) -> int:
        """Place what fits, option by option; how many lines are left."""
        for option in options:
            if not rest:
                break
            count = min(rest, self._room(group, option, slack))
            if count:
                self._allocate(group, option, count)
                rest -= count
        return rest

    def _allocate(self, group: LineGroup, option: _Option, count: int) -> None:
        offer = option.lane.offer
        if option.stretch is not None:
            not_before_s = option.start_s
            start_s, finish_s = option.stretch.take(count, option.lane.weight(group))
        else:
            not_before_s = start_s = option.start_s
            if group.since_s is None and count < min(group.count, offer.requests_min):
                # A trickle beside other lanes: it waits for company, or for room there.
                not_before_s = start_s = max(start_s, self._now_s + GATHERING_S)
            finish_s = option.finish_s
        nanos = option.line_nanos * count
        self._allocations.append(
            Allocation(
                group=group,
                lane_id=offer.id,
                count=count,
                not_before_s=not_before_s,
                start_s=start_s,
                finish_s=finish_s,
                cost_nanos=ceil(nanos) if nanos < inf else 0,
            )
        )

    def _overdue(self, group: LineGroup, lanes: Sequence[Lane], rest: int) -> None:
        """Lines that no lane answers in time: on all lanes by their rates, or natively."""
        open_lanes = [lane for lane in lanes if lane.is_open]
        fluid = [lane for lane in open_lanes if lane.stretches]
        rates = [lane.offer.lines_per_s / lane.weight(group) for lane in fluid]
        if fluid:
            late_s = rest / sum(rates)
            left, left_rate = rest, sum(rates)
            for lane, rate in zip(fluid, rates, strict=True):
                share = round(left * rate / left_rate) if lane is not fluid[-1] else left
                left, left_rate = left - share, left_rate - rate
                if share:
                    stretch = lane.stretch_at(group.deadline_at_s)
                    self._allocate(group, self._stretch(group, lane, stretch), share)
        elif native := [lane for lane in open_lanes if lane.is_native]:
            soonest = min(native, key=lambda lane: lane.offer.turnaround_p95_s)
            cost, back_s = soonest.cost_at(group, self._now_s), soonest.offer.turnaround_p95_s
            option = _Option(cost, self._now_s, soonest, None, cost, self._now_s + back_s)
            self._allocate(group, option, rest)
            return
        else:
            late_s = inf
        self._late.append(
            Late(batch_id=group.batch_id, model=group.model, count=rest, late_s=late_s)
        )

    def placement(self, groups: Sequence[LineGroup]) -> Placement:
        """All that was placed, its sums, and what each batch costs beyond what it may."""
        cost_of: dict[str, int] = {}
        for allocation in self._allocations:
            batch_id = allocation.group.batch_id
            cost_of[batch_id] = cost_of.get(batch_id, 0) + allocation.cost_nanos
        limits = {
            group.batch_id: (group.max_cost_nanos, group.spent_nanos)
            for group in groups
            if group.max_cost_nanos is not None
        }
        over = [
            Over(batch_id=batch_id, over_nanos=excess)
            for batch_id, (most, spent) in limits.items()
            if (excess := cost_of.get(batch_id, 0) + spent - (most or 0)) > 0
        ]
        late = [*self._late, *self._promised_late()]
        list_costs: dict[str, int] = {}
        for group in groups:
            nanos = list_nanos(group, self.lanes.get(group.model, ()), self._now_s)
            list_costs[group.batch_id] = list_costs.get(group.batch_id, 0) + nanos
        return Placement(
            allocations=tuple(self._allocations),
            list_costs=list_costs,
            cost_nanos=sum(cost_of.values()),
            finish_s=max((each.finish_s for each in self._allocations), default=self._now_s),
            late=tuple(late),
            over=tuple(over),
            escalated=tuple(self._escalated),
        )

    def _promised_late(self) -> list[Late]:
        """Lines in a native lane that has no refuge beside it and may be back too late."""
        return [
            Late(
                batch_id=group.batch_id,
                model=group.model,
                count=allocation.count,
                late_s=allocation.finish_s - group.deadline_at_s,
            )
            for allocation in self._allocations
            if allocation.finish_s > (group := allocation.group).deadline_at_s
            and not any(lane.stretches for lane in self.lanes[group.model])
        ]


def list_nanos(group: LineGroup, lanes: Sequence[Lane], at_s: float) -> int:
    """
    What the group costs at once at list price: at the standard tier of the cheapest endpoint.

    Where only machines of one's own serve the model, theirs; 0 where none does.
    """
    sold = [lane for lane in lanes if lane.offer.kind == "sync" and lane.offer.tier == STANDARD]
    own = [lane for lane in lanes if lane.offer.kind == OWN]
    cost = min((lane.cost_at(group, at_s) for lane in sold or own), default=inf)
    return ceil(cost * group.count) if cost < inf else 0


def _running_lane(group: LineGroup, lanes: Sequence[Lane]) -> Lane | None:
    """The native lane in which the group runs, if it does."""
    if group.since_s is None:
        return None
    return next((lane for lane in lanes if lane.is_native and lane.offer.id == group.lane), None)
