"""Who works on which line of a batch: claims with a time limit, results, and groups to plan.

A line is claimed by one owner until `lease_until`; on PostgreSQL several processes claim side by
side and skip what another one holds. An end is written once: only by the owner of the claim.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.batch_tables import LINE_ENDS, batch_lines, batch_results, batches
from gateway.store.ledger_tables import attempts
from gateway.store.upsert import insert_into

IDS_PER_QUERY_MAX = 500
RETRY_WAIT_S_MAX = 120.0
RESULT_ROWS_MAX = 1_000  # read at once for an output file


class ClaimedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that is ours to send, with what of its batch that takes."""

    batch_id: str
    line_no: int
    custom_id: str
    offset_bytes: int
    num_bytes: int
    model: str
    lane: str
    num_tries: int
    tenant_id: str
    key_id: str
    surface: str
    input_file_id: str
    deadline_at: float


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a line ended. Costs come later, from the ledger."""

    batch_id: str
    line_no: int
    state: str
    status_code: int
    body: bytes
    request_id: str
    endpoint_id: str
    ended_at: float


class LineCost(msgspec.Struct, frozen=True, kw_only=True):
    batch_id: str
    line_no: int
    attempt_id: str
    cost_nanos: int
    billed_nanos: int
    list_nanos: int
    is_estimated: bool


class OpenGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one batch, model and lane that nobody works on, and their mean size."""

    batch_id: str
    model: str
    lane: str
    state: str
    native_id: str
    count: int
    prompt_tokens: float
    output_tokens: float


class EndedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an output or error file."""

    line_no: int
    custom_id: str
    state: str
    status_code: int
    request_id: str
    body: bytes | None


def _takes(lane: str, now: float) -> sa.ColumnElement[bool]:
    c = batch_lines.c
    return sa.and_(
        c.state == "open",
        c.lane == lane,
        sa.or_(c.not_before.is_(None), c.not_before <= now),
        batches.c.state == "in_progress",
    )


async def claim_lines(
    connection: AsyncConnection, *, owner: str, lane: str, now: float, until: float, limit: int
) -> list[ClaimedLine]:
    """Take up to `limit` open lines of a lane, of the earliest deadline first."""
    c = batch_lines.c
    wanted = (
        sa.select(c.batch_id, c.line_no)
        .join(batches, batches.c.id == c.batch_id)
        .where(_takes(lane, now))
        .order_by(batches.c.deadline_at, c.batch_id, c.line_no)
        .limit(limit)
        .with_for_update(skip_locked=True, of=batch_lines)
    )
    found = [(row.batch_id, row.line_no) for row in await connection.execute(wanted)]
    if not found:
        return []
    is_one = sa.tuple_(c.batch_id, c.line_no).in_(found)
    await connection.execute(
        sa.update(batch_lines)
        .where(is_one, c.state == "open")
        .values(state="leased", lease_owner=owner, lease_until=until, num_tries=c.num_tries + 1)
    )
    b = batches.c
    rows = await connection.execute(
        sa.select(
            *(c[name] for name in ClaimedLine.__struct_fields__ if name in c),
            *(b[name] for name in ("tenant_id", "key_id", "surface", "input_file_id")),
            b.deadline_at,
        )
        .join(batches, b.id == c.batch_id)
        .where(is_one, c.lease_owner == owner)
        .order_by(b.deadline_at, c.batch_id, c.line_no)
    )
    return [ClaimedLine(**row) for row in rows.mappings()]


async def renew_claims(
    connection: AsyncConnection, lines: Sequence[tuple[str, int]], *, owner: str, until: float
) -> None:
    """Keep these (batch, line number); what its owner has lost sight of must run out of time."""
    c = batch_lines.c
    for begin in range(0, len(lines), IDS_PER_QUERY_MAX):
        part = lines[begin : begin + IDS_PER_QUERY_MAX]
        is_one = sa.tuple_(c.batch_id, c.line_no).in_(part)
        await connection.execute(
            sa.update(batch_lines)
            .where(is_one, c.state == "leased", c.lease_owner == owner)
            .values(lease_until=until)
        )


async def drop_claims(connection: AsyncConnection, *, owner: str) -> int:
    """Open all that this owner still holds: it leaves."""
    c = batch_lines.c
    done = await connection.execute(
        sa.update(batch_lines)
        .where(c.state == "leased", c.lease_owner == owner)
        .values(state="open", lease_owner="", lease_until=None)
    )
    return done.rowcount


async def free_claims(connection: AsyncConnection, *, now: float, owner_not: str = "") -> int:
    """Open the lines whose owner has died: its time is over, or (given `owner_not`) is not us."""
    c = batch_lines.c
    is_dead = c.lease_owner != owner_not if owner_not else c.lease_until < now
    done = await connection.execute(
        sa.update(batch_lines)
        .where(c.state == "leased", is_dead)
        .values(state="open", lease_owner="", lease_until=None)
    )
    return done.rowcount


async def put_back(
    connection: AsyncConnection,
    lines: Sequence[ClaimedLine],
    *,
    owner: str,
    not_before: float | None,
    is_a_try: bool,
) -> None:
    """Lines that came to nothing, to be sent again; `is_a_try` False does not count it."""
    c = batch_lines.c
    tries = c.num_tries if is_a_try else c.num_tries - 1
    await connection.execute(
        sa.update(batch_lines)
        .where(_is_one_of(lines), c.state == "leased", c.lease_owner == owner)
        .values(
            state="open", lease_owner="", lease_until=None, not_before=not_before, num_tries=tries
        )
    )


async def keep_results(
    connection: AsyncConnection, results: Sequence[LineResult], *, out_of: Sequence[str]
) -> None:
    """
    End lines that are in one of the states `out_of`, and keep what they came to. Others stay.

    The first answer counts: of one that comes later nothing is kept, not its body either.
    """
    c = batch_lines.c
    update = (
        sa.update(batch_lines)
        .where(
            c.batch_id == sa.bindparam("of_batch"),
            c.line_no == sa.bindparam("of_line"),
            sa.or_(*(c.state == each for each in out_of)),
        )
        .values({
            name: sa.bindparam(f"new_{name}")
            for name in ("state", "status_code", "request_id", "endpoint_id", "ended_at")
        } | {"lease_owner": "", "lease_until": None})
    )  # fmt: skip
    changes = [
        {
            "of_batch": each.batch_id,
            "of_line": each.line_no,
            "new_state": each.state,
            "new_status_code": each.status_code,
            "new_request_id": each.request_id,
            "new_endpoint_id": each.endpoint_id,
            "new_ended_at": each.ended_at,
        }
        for each in results
    ]
    await connection.execute(update, changes)
    body = sa.bindparam("new_body", type_=batch_results.c.body.type)
    ended = sa.select(c.batch_id, c.line_no, body).where(
        c.batch_id == sa.bindparam("of_batch"),
        c.line_no == sa.bindparam("of_line"),
        c.state == sa.bindparam("new_state", type_=sa.Text()),
        c.request_id == sa.bindparam("new_request_id", type_=sa.Text()),
    )
    names = ["batch_id", "line_no", "body"]
    kept = insert_into(connection, batch_results).from_select(names, ended)
    bodies = [
        {**change, "new_body": each.body} for change, each in zip(changes, results, strict=True)
    ]
    await connection.execute(kept.on_conflict_do_nothing(), bodies)


async def keep_costs(connection: AsyncConnection, costs: Sequence[LineCost]) -> None:
    names = ("attempt_id", "cost_nanos", "billed_nanos", "list_nanos", "is_estimated")
    c = batch_lines.c
    update = (
        sa.update(batch_lines)
        .where(c.batch_id == sa.bindparam("of_batch"), c.line_no == sa.bindparam("of_line"))
        .values({name: sa.bindparam(f"new_{name}") for name in names})
    )
    changes = [
        {"of_batch": each.batch_id, "of_line": each.line_no}
        | {f"new_{name}": getattr(each, name) for name in names}
        for each in costs
    ]
    await connection.execute(update, changes)


async def uncosted_lines(connection: AsyncConnection, batch_id: str) -> list[tuple[int, str]]:
    """(line number, request id) of ended lines whose cost was not noted: we were killed between."""
    c = batch_lines.c
    query = (
        sa.select(c.line_no, c.request_id)
        .where(
            c.batch_id == batch_id,
            c.state.in_(LINE_ENDS),
            c.attempt_id == "",
            c.request_id != "",
        )
        .order_by(c.line_no)
    )
    return [(row.line_no, row.request_id) for row in await connection.execute(query)]


async def booked_costs(
    connection: AsyncConnection, request_ids: Sequence[str]
) -> dict[str, tuple[str, int, int, bool]]:
    """By request: (its newest attempt, cost, billed, estimated) of all that is settled."""
    c = attempts.c
    found: dict[str, tuple[str, int, int, bool]] = {}
    for begin in range(0, len(request_ids), IDS_PER_QUERY_MAX):
        part = request_ids[begin : begin + IDS_PER_QUERY_MAX]
        rows = await connection.execute(
            sa.select(c.request_id, c.attempt_id, c.cost_nanos, c.billed_nanos, c.is_estimated)
            .where(c.request_id.in_(part), c.state == "settled")
            .order_by(c.sent_at)
        )
        for row in rows:
            _, cost, billed, is_estimated = found.get(row.request_id, ("", 0, 0, False))
            found[row.request_id] = (
                row.attempt_id,
                cost + row.cost_nanos,
                billed + row.billed_nanos,
                is_estimated or row.is_estimated,
            )
    return found


async def end_open_lines(
    connection: AsyncConnection, batch_id: str, *, state: str, now: float
) -> int:
    """Lines that were not sent end as `cancelled` or `expired`; how many there were."""
    c = batch_lines.c
    done = await connection.execute(
        sa.update(batch_lines)
        .where(c.batch_id == batch_id, c.state == "open")
        .values(state=state, ended_at=now)
    )
    return done.rowcount


async def unended_groups(connection: AsyncConnection, batch_ids: Sequence[str]) -> list[OpenGroup]:
    """What is to be planned of these batches: lines that are open or in a provider's batch."""
    c = batch_lines.c
    keys = (c.batch_id, c.model, c.lane, c.state, c.native_id)
    query = (
        sa.select(
            *keys,
            sa.func.count().label("count"),
            sa.cast(sa.func.avg(c.prompt_tokens), sa.Double).label("prompt_tokens"),
            sa.cast(sa.func.avg(c.output_tokens), sa.Double).label("output_tokens"),
        )
        .where(c.batch_id.in_(batch_ids), c.state.in_(("open", "submitted")))
        .group_by(*keys)
    )
    return [OpenGroup(**row) for row in (await connection.execute(query)).mappings()]


async def move_lines(
    connection: AsyncConnection,
    group: OpenGroup,
    *,
    lane: str,
    not_before: float | None,
    count: int,
    now: float,
) -> int:
    """
    Put so many open lines of a group on another lane, or on the same one at another time.

    What would not change is not written. A line that stays and waits for at most RETRY_WAIT_S_MAX
    waits to be tried again, which is not the plan's to change.
    """
    c = batch_lines.c
    of_group = sa.and_(
        c.batch_id == group.batch_id,
        c.model == group.model,
        c.lane == group.lane,
        c.state == "open",
    )
    condition = of_group
    if count < group.count:
        chosen = sa.select(c.line_no).where(of_group).order_by(c.line_no).limit(count)
        condition = sa.and_(of_group, c.line_no.in_(chosen.scalar_subquery()))
    if lane == group.lane:
        is_other = c.not_before.is_distinct_from(not_before)
        if not_before is None:
            is_other = c.not_before > now + RETRY_WAIT_S_MAX
        condition = sa.and_(condition, is_other)
    done = await connection.execute(
        sa.update(batch_lines).where(condition).values(lane=lane, not_before=not_before)
    )
    return done.rowcount


async def ended_lines(
    connection: AsyncConnection, batch_id: str, *, after_line: int, is_good: bool
) -> list[EndedLine]:
    """A page for the output file (`is_good`) or the error file, in the order of the input."""
    c = batch_lines.c
    states = ("succeeded",) if is_good else ("errored", "cancelled", "expired")
    query = (
        sa.select(
            c.line_no, c.custom_id, c.state, c.status_code, c.request_id, batch_results.c.body
        )
        .outerjoin(
            batch_results,
            sa.and_(batch_results.c.batch_id == c.batch_id, batch_results.c.line_no == c.line_no),
        )
        .where(c.batch_id == batch_id, c.state.in_(states), c.line_no > after_line)
        .order_by(c.line_no)
        .limit(RESULT_ROWS_MAX)
    )
    return [EndedLine(**row) for row in (await connection.execute(query)).mappings()]


async def drop_results(connection: AsyncConnection, batch_id: str) -> None:
    """Once they are in the output files."""
    await connection.execute(sa.delete(batch_results).where(batch_results.c.batch_id == batch_id))


def _is_one_of(lines: Sequence[ClaimedLine]) -> sa.ColumnElement[bool]:
    c = batch_lines.c
    return sa.tuple_(c.batch_id, c.line_no).in_([(each.batch_id, each.line_no) for each in lines])
