"""What both dialects ask of the batch lane: make a batch, look at it, cancel it."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from gateway.batch.creating import (
    OUTPUT_TOKENS_UNKNOWN,
    Infeasible,
    PlannedLines,
    Wish,
    check_lines,
    new_lines,
    put_down,
)
from gateway.batch.intake import FileIndex, read_index
from gateway.batch.lane import BatchLane, new_id
from gateway.core import NANOS_PER_DOLLAR, Caller, dollars
from gateway.errors import Conflict, Draining, NotFound, PermissionDenied
from gateway.ledger.burn import burn_down
from gateway.policy.facts import allowed_model
from gateway.store.audit import AuditEvent, append_events
from gateway.store.batches import (
    BatchRow,
    LineCounts,
    NewLine,
    find_batch,
    line_counts,
    move_batch,
)
from gateway.store.files import FileRow
from gateway.store.tenancy import list_budgets

ID_PREFIXES = {"openai": "batch_", "anthropic": "msgbatch_"}


async def create(
    lane: BatchLane, caller: Caller, wish: Wish, file: FileRow, *, dialect: str, actor: str = ""
) -> BatchRow:
    """
    A batch over all lines of `file`, planned. Raises ApiError; then there is no batch.

    `actor`: who the audit log names; "" = the holder of the key.
    """
    row, lines = await _prepared(lane, caller, wish, file, dialect=dialect)
    async with lane.making:
        planned = await lane.planner.place_new(row, lines, caller, now=lane.gateway.wall_clock())
        if not planned.is_feasible:
            raise Infeasible(planned.refusal, detail=planned.shown)
        note = _note(row, "batch.create", actor, at=row.created_at)
        made = await put_down(lane.gateway.store, row, lines, planned, note=note)
    lane.wake()
    return made


async def planned_batch(
    lane: BatchLane, caller: Caller, wish: Wish, file: FileRow, *, dialect: str
) -> tuple[BatchRow, list[NewLine], PlannedLines]:
    """What a batch over `file` would be; nothing is written and nothing spent."""
    row, lines = await _prepared(lane, caller, wish, file, dialect=dialect)
    return row, lines, await lane.planner.place_new(row, lines, caller, now=row.created_at)


async def budget_warning(lane: BatchLane, caller: Caller, cost_usd: str) -> str:
    """Which budget a plan of this cost does not fit; "" = none. Lines beyond it would fail."""
    if not caller.budget_ids:
        return ""
    async with lane.gateway.store.read() as connection:
        rows = await list_budgets(connection, caller.tenant_id)
        held = [row for row in rows if row.id in caller.budget_ids]
        burns = await burn_down(connection, caller.tenant_id, held, now=lane.gateway.wall_clock())
    tightest = min(burns, key=lambda each: each.left_nanos, default=None)
    if tightest is None or tightest.left_nanos >= Decimal(cost_usd) * NANOS_PER_DOLLAR:
        return ""
    budget = tightest.budget
    left, limit = dollars(tightest.left_nanos), dollars(budget.limit_nanos)
    return (
        f"the {budget.scope_kind}'s {budget.period} budget has ${left} left of ${limit}, and this "
        f"plan costs about ${cost_usd}: lines beyond it will be refused; raise the budget, or send "
        "fewer lines"
    )


async def _prepared(
    lane: BatchLane, caller: Caller, wish: Wish, file: FileRow, *, dialect: str
) -> tuple[BatchRow, list[NewLine]]:
    gateway = lane.gateway
    if gateway.is_draining:
        raise Draining("the gateway is shutting down; send the request again", retry_after_s=2)
    policy = gateway.policy()
    try:
        index: FileIndex = await read_index(lane.storage, file.storage_key)
    except FileNotFoundError:
        raise NotFound(f"the content of {file.id} is gone; upload it again") from None
    surface = index.surface
    if caller.routes and surface.value not in caller.routes:
        raise PermissionDenied(
            f"this key may not use the {surface.value} API; it may use {', '.join(caller.routes)}"
        )
    check_lines(index, wish, caller, policy)
    names = {each.model: allowed_model(each.model, caller, policy) for each in index.lines}
    lines = new_lines(index, names.__getitem__, _output_tokens)
    now = gateway.wall_clock()
    row = BatchRow(
        id=new_id(ID_PREFIXES[dialect]),
        tenant_id=caller.tenant_id,
        team_id=caller.team_id,
        key_id=caller.key_id,
        dialect=dialect,
        surface=surface.value,
        state="validating",
        input_file_id=file.id,
        completion_window=wish.completion_window,
        metadata=msgspec.json.encode(wish.metadata).decode() if wish.metadata else "",
        deadline_at=now + wish.window_s,
        max_cost_nanos=wish.max_cost_nanos,
        created_at=now,
        num_lines=len(lines),
    )
    return row, lines


def _output_tokens(_model: str, max_tokens: int) -> int:
    return max_tokens or OUTPUT_TOKENS_UNKNOWN


async def find(
    lane: BatchLane, caller: Caller, batch_id: str, *, dialect: str = ""
) -> tuple[BatchRow, LineCounts]:
    """Raises NotFound; another tenant's batch, or another dialect's, looks like none."""
    async with lane.gateway.store.read() as connection:
        row = await find_batch(connection, caller.tenant_id, batch_id)
        if row is None or (dialect and row.dialect != dialect):
            raise NotFound(f"there is no batch {batch_id!r} of yours")
        counts = await line_counts(connection, [row.id])
    return row, counts.get(row.id, LineCounts(by_state={}))


async def with_counts(
    lane: BatchLane, rows: Sequence[BatchRow]
) -> list[tuple[BatchRow, LineCounts]]:
    async with lane.gateway.store.read() as connection:
        counts = await line_counts(connection, [row.id for row in rows])
    return [(row, counts.get(row.id, LineCounts(by_state={}))) for row in rows]


async def cancel(
    lane: BatchLane, caller: Caller, batch_id: str, *, dialect: str = ""
) -> tuple[BatchRow, LineCounts]:
    """Nothing more of it is sent from now on; what runs is ended and paid for.

    One that is being cancelled stays so; one that has ended is a Conflict.
    """
    row, _ = await find(lane, caller, batch_id, dialect=dialect)
    await stop(lane, row)
    return await find(lane, caller, batch_id, dialect=dialect)


async def stop(lane: BatchLane, row: BatchRow, *, actor: str = "") -> None:
    """`cancel` for whoever has found the batch already."""
    if row.is_ended:
        raise Conflict(f"{row.id} has ended ({row.state}) and cannot be cancelled")
    if row.state == "validating":
        raise Conflict(f"{row.id} is being made; cancel it once it is in_progress")
    now = lane.gateway.wall_clock()
    async with lane.gateway.store.begin() as connection:
        is_first = await move_batch(
            connection,
            row.id,
            to="cancelling",
            out_of=("in_progress",),
            values={"cancelling_at": now},
        )
        if is_first:
            await append_events(connection, [_note(row, "batch.cancel", actor, at=now)])
    if is_first:
        lane.wake()


def _note(row: BatchRow, action: str, actor: str, *, at: float) -> AuditEvent:
    return AuditEvent(
        tenant_id=row.tenant_id,
        at=at,
        actor=actor or f"key {row.key_id}",
        action=action,
        subject=row.id,
        detail={"lines": row.num_lines, "input_file": row.input_file_id},
    )
