"""When waiting must end: the time that running the rest at once would take, kept free.

Recovery is SLACK times the p95 of running what is left on the cheapest healthy endpoints that sell
at once. Groups share those, so their recoveries are laid end to end before their deadlines, the
last deadline first: where one begins is when its group must stop waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from gateway.policy.placement_lanes import SLACK, Lane
from gateway.policy.placement_terms import LineGroup

# Endpoints are added, cheapest first, until recovery takes at most this share of what is left.
WINDOW_SHARE = 0.25
REPLAN_S = 60.0  # the next look is so far away


class Reserve(msgspec.Struct, frozen=True):
    """When a group must stop waiting, and what one of its lines then costs (inf: no refuge)."""

    escalate_at_s: float
    line_nanos: float


def reserves(
    groups: Sequence[LineGroup], lanes: dict[str, list[Lane]], now_s: float, recovery_s: float
) -> list[Reserve]:
    """One for each group, in their order."""
    found: list[Reserve | None] = [None] * len(groups)
    latest_s: dict[str, float] = {}
    order = sorted(range(len(groups)), key=lambda idx: -groups[idx].deadline_at_s)
    for idx in order:
        group = groups[idx]
        end_s = min(latest_s.get(group.model, inf), group.deadline_at_s)
        found[idx] = reserve = _reserve(group, lanes.get(group.model, ()), now_s, end_s, recovery_s)
        if reserve.line_nanos < inf:
            latest_s[group.model] = reserve.escalate_at_s + REPLAN_S
    return [reserve for reserve in found if reserve is not None]


def _reserve(
    group: LineGroup, lanes: Sequence[Lane], now_s: float, end_s: float, recovery_s: float
) -> Reserve:
    refuges = _refuges(group, lanes, now_s)
    if not refuges:
        return Reserve(group.deadline_at_s, inf)
    rate, need_s, weighed, line_s = 0.0, 0.0, 0.0, recovery_s
    for cost, lane in refuges:
        lane_rate = lane.offer.lines_per_s / lane.weight(group)
        rate += lane_rate
        weighed += cost * lane_rate
        line_s = max(line_s, lane.line_p95_s(group))
        need_s = SLACK * (line_s + group.count / rate)
        if need_s <= WINDOW_SHARE * (end_s - now_s):
            break
    return Reserve(end_s - need_s - REPLAN_S, weighed / rate)


def _refuges(group: LineGroup, lanes: Sequence[Lane], now_s: float) -> list[tuple[float, Lane]]:
    """Lanes that a line can be sent to at any time, cheapest first; own ones if there are none."""
    at_once = [lane for lane in lanes if lane.stretches and lane.is_open]
    sold = [lane for lane in at_once if lane.is_refuge]
    priced = [(lane.cost_at(group, now_s), lane) for lane in sold or at_once]
    return sorted(
        (each for each in priced if each[0] < inf), key=lambda each: (each[0], each[1].offer.id)
    )
