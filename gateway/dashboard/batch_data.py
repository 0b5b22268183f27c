"""Batches as the page and the admin API show them. Dollars are decimal strings, instants unix s."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.batch.line_check import URL_OF, LineProblem
from gateway.core import dollars
from gateway.dashboard.batch_queries import LaneCount, Names
from gateway.store.batches import BatchRow
from gateway.wire.pieces import Surface

_UNDER_WAY = ("leased", "submitted")


class PlanLane(msgspec.Struct, frozen=True, kw_only=True):
    """A lane of a plan."""

    lane: str
    kind: str = ""  # "sync" | "native" | "own"
    lines: int = 0
    cost_usd: str = "0"
    start_at: float = 0.0
    finish_at: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner said last of the lines that were left; null: an older one did not say."""

    lanes: list[PlanLane] = []
    cost_usd: str = "0"
    list_price_usd: str | None = None
    saving: float | None = None
    finish_at: float = 0.0
    late_lines: int = 0
    over_usd: str = "0"

    @property
    def num_lines(self) -> int:
        return sum(each.lines for each in self.lanes)


class LaneShown(msgspec.Struct, frozen=True, kw_only=True):
    """Lines on one lane: where they were answered, or where the newest plan puts them."""

    lane: str
    share: float  # of all lines
    lines: int
    succeeded: int
    failed: int  # errored, expired or cancelled
    under_way: int
    waiting: int
    cost_usd: str
    list_price_usd: str


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a batch is, and what it has cost."""

    succeeded: int
    errored: int
    cancelled: int
    expired: int
    under_way: int
    waiting: int
    cost_usd: str
    billed_usd: str
    list_price_usd: str  # of the lines that have ended
    saved_usd: str
    saving: float | None  # of the list price; null before a line was paid
    num_estimated: int

    @property
    def failed(self) -> int:
        return self.errored + self.cancelled + self.expired

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed


class BatchShown(msgspec.Struct, frozen=True, kw_only=True):
    """
    One batch.

    `progress` is null, and `lanes` empty, where a list was too large to count all of its lines at
    once: ask for the batch itself. `is_in_time`: kept or, before the end, by the newest plan; null
    where nobody can say.
    """

    id: str
    tenant: str
    key_id: str
    key_name: str
    dialect: str
    url: str
    state: str
    is_ended: bool
    num_lines: int
    created_at: float
    deadline_at: float
    ended_at: float | None
    completion_window: str
    max_cost_usd: str | None
    progress: Progress | None
    lanes: list[LaneShown]
    planned_at: float | None
    predicted_cost_usd: str | None  # what was spent, and the plan's for the rest
    predicted_finish_at: float | None
    is_in_time: bool | None
    late_lines: int


_PLAN = msgspec.json.Decoder(Plan)
_PROBLEMS = msgspec.json.Decoder(list[LineProblem])


def plan_of(row: BatchRow) -> Plan | None:
    """The newest; None before the first and for one that cannot be read."""
    if not row.plan:
        return None
    try:
        return _PLAN.decode(row.plan)
    except msgspec.MsgspecError:
        return None


def problems_of(row: BatchRow) -> list[LineProblem]:
    try:
        return _PROBLEMS.decode(row.errors) if row.errors else []
    except msgspec.MsgspecError:
        return []


def progress_of(counts: Sequence[LaneCount]) -> Progress:
    states: dict[str, int] = {}
    for each in counts:
        states[each.state] = states.get(each.state, 0) + each.lines
    cost = sum(each.cost_nanos for each in counts)
    listed = sum(each.list_nanos for each in counts)
    return Progress(
        succeeded=states.get("succeeded", 0),
        errored=states.get("errored", 0),
        cancelled=states.get("cancelled", 0),
        expired=states.get("expired", 0),
        under_way=sum(states.get(each, 0) for each in _UNDER_WAY),
        waiting=states.get("open", 0),
        cost_usd=dollars(cost),
        billed_usd=dollars(sum(each.billed_nanos for each in counts)),
        list_price_usd=dollars(listed),
        saved_usd=dollars(listed - cost),
        saving=1.0 - cost / listed if listed else None,
        num_estimated=sum(each.num_estimated for each in counts),
    )


def lanes_of(counts: Sequence[LaneCount]) -> list[LaneShown]:
    """The fullest first; lines that never had a lane are one of their own."""
    total = sum(each.lines for each in counts) or 1
    by_lane: dict[str, list[LaneCount]] = {}
    for each in counts:
        by_lane.setdefault(each.lane, []).append(each)
    shown = []
    for lane, parts in by_lane.items():
        told = progress_of(parts)
        lines = sum(each.lines for each in parts)
        shown.append(
            LaneShown(
                lane=lane,
                share=lines / total,
                lines=lines,
                succeeded=told.succeeded,
                failed=told.failed,
                under_way=told.under_way,
                waiting=told.waiting,
                cost_usd=told.cost_usd,
                list_price_usd=told.list_price_usd,
            )
        )
    return sorted(shown, key=lambda each: (-each.lines, each.lane))


def ended_at(row: BatchRow) -> float | None:
    return row.completed_at or row.cancelled_at or row.expired_at or row.failed_at


def batch_shown(
    row: BatchRow, counts: Sequence[LaneCount] | None, names: Names, *, now: float
) -> BatchShown:
    plan = plan_of(row) if not row.is_ended else None
    progress = progress_of(counts) if counts is not None else None
    return BatchShown(
        id=row.id,
        tenant=names.tenants.get(row.tenant_id, row.tenant_id),
        key_id=row.key_id,
        key_name=names.keys.get(row.key_id, ""),
        dialect=row.dialect,
        url=URL_OF[Surface(row.surface)],
        state=row.state,
        is_ended=row.is_ended,
        num_lines=row.num_lines,
        created_at=row.created_at,
        deadline_at=row.deadline_at,
        ended_at=ended_at(row),
        completion_window=row.completion_window,
        max_cost_usd=dollars(row.max_cost_nanos) if row.max_cost_nanos is not None else None,
        progress=progress,
        lanes=lanes_of(counts) if counts is not None else [],
        planned_at=row.planned_at,
        predicted_cost_usd=_predicted_cost(row, plan, progress),
        predicted_finish_at=max(plan.finish_at, now) if plan is not None else None,
        is_in_time=_is_in_time(row, plan, now),
        late_lines=plan.late_lines if plan is not None else 0,
    )


def _nanos(usd: str) -> int:
    """Of a decimal string of ours."""
    whole, _, part = usd.partition(".")
    return int(whole or 0) * 1_000_000_000 + int(f"{part:0<9}"[:9] or 0)


def _predicted_cost(row: BatchRow, plan: Plan | None, progress: Progress | None) -> str | None:
    """What was spent, and the plan's cost of a line for each that is left: some ended since."""
    if plan is None or progress is None:
        return None
    left = row.num_lines - progress.ended
    rest = _nanos(plan.cost_usd) * left // plan.num_lines if plan.num_lines else 0
    return dollars(_nanos(progress.cost_usd) + rest)


def _is_in_time(row: BatchRow, plan: Plan | None, now: float) -> bool | None:
    if row.completed_at is not None:
        return row.completed_at <= row.deadline_at
    if row.expired_at is not None or (now > row.deadline_at and not row.is_ended):
        return False
    if plan is None:
        return None
    return plan.late_lines == 0 and plan.finish_at <= row.deadline_at
