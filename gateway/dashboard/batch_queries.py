"""Batches of all tenants for people: each query bounded in what it looks at, none on the hot path.

What the API asks of one tenant is in `gateway.store.batches`; here the operator looks at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.dashboard.queries_requests import Place, text_of
from gateway.errors import InvalidRequest
from gateway.store.batch_tables import (
    BATCH_STATES,
    LINE_STATES,
    batch_lines,
    batch_results,
    batches,
    native_batches,
)
from gateway.store.batches import ENDED, BatchRow
from gateway.store.native_batches import NativeRow
from gateway.store.tables import keys, requests, teams, tenants

PAGE_ROWS = 25
LOOK_ROWS = 10_000  # batches that a filter looks through for one page
LINE_ROWS = 50
FAILED_LINES = 10  # told of each kind of error
KINDS_MAX = 30
NATIVES_MAX = 100
CHOICES_MAX = 500  # keys to choose from
RUNNING = "running"  # not a state: all that have not ended
STATES = (RUNNING, *BATCH_STATES)
FAILED = ("errored", "expired", "cancelled")

_BATCH = tuple(batches.c[name] for name in BatchRow.__struct_fields__)
_NATIVE = tuple(native_batches.c[name] for name in NativeRow.__struct_fields__)


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which batches; "" and 0 = all. `since` and `until` are of their creation, unix seconds."""

    tenant_id: str = ""
    key_id: str = ""
    state: str = ""
    since: float = 0.0
    until: float = 0.0

    def __post_init__(self) -> None:
        if self.state not in ("", *STATES):
            raise InvalidRequest(
                f"status {self.state[:40]!r} is unknown; use {', '.join(STATES)}", param="status"
            )


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A page, newest first; `next` is for `before`, `looked_back_to` set where the look was cut."""

    rows: list[BatchRow]
    next: str | None = None
    looked_back_to: float | None = None


class LaneCount(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one batch on one lane in one state, and their money."""

    lane: str
    state: str
    lines: int
    cost_nanos: int
    billed_nanos: int
    list_nanos: int
    num_estimated: int


class FailedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that came to nothing. `error` is the request log's code, "" where it has none."""

    line_no: int
    custom_id: str
    state: str
    status_code: int
    request_id: str
    error: str
    num_alike: int  # of this state and status
    body: bytes | None = None  # until the error file is written


class LineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line as it stands; never its text."""

    line_no: int
    custom_id: str
    state: str
    model: str
    lane: str
    endpoint_id: str
    status_code: int
    num_tries: int
    cost_nanos: int
    is_estimated: bool
    request_id: str
    not_before: float | None
    ended_at: float | None


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What ids are called; an id that is gone is not in it."""

    tenants: dict[str, str]
    keys: dict[str, str]


class KeyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a batch can be made for."""

    id: str
    name: str
    team: str
    tenant: str


async def list_page(
    connection: AsyncConnection, filters: Filters, *, before: Place | None, rows: int = PAGE_ROWS
) -> Found:
    """One page. A rare state costs a look at LOOK_ROWS batches, then the page says how far."""
    c = batches.c
    place = before if before is not None else (filters.until, "") if filters.until else None
    within: list[sa.ColumnElement[bool]] = []
    if filters.tenant_id:
        within.append(c.tenant_id == filters.tenant_id)
    if filters.since:
        within.append(c.created_at >= filters.since)
    if place is not None:
        within.append(
            sa.tuple_(c.created_at, c.id) < sa.tuple_(sa.literal(place[0]), sa.literal(place[1]))
        )
    order = (c.created_at.desc(), c.id.desc())
    query = sa.select(*_BATCH).order_by(*order).limit(rows + 1)
    wanted = _wanted(filters)
    if not wanted:
        query = query.where(*within)
        return _page(await _rows(connection, query), rows)
    looked = sa.select(c.id).where(*within).order_by(*order).limit(LOOK_ROWS).subquery()
    query = query.join(looked, looked.c.id == c.id).where(*wanted)
    found = await _rows(connection, query)
    if len(found) > rows:
        return _page(found, rows)
    last = sa.select(c.created_at, c.id).where(*within).order_by(*order)
    end = (await connection.execute(last.offset(LOOK_ROWS - 1).limit(1))).first()
    if end is None:
        return Found(rows=found)
    return Found(rows=found, next=text_of((end[0], end[1])), looked_back_to=end[0])


def _wanted(filters: Filters) -> list[sa.ColumnElement[bool]]:
    c = batches.c
    found: list[sa.ColumnElement[bool]] = []
    if filters.key_id:
        found.append(c.key_id == filters.key_id)
    if filters.state == RUNNING:
        found.append(c.state.not_in(ENDED))
    elif filters.state:
        found.append(c.state == filters.state)
    return found


async def _rows(
    connection: AsyncConnection, query: sa.Select[tuple[object, ...]]
) -> list[BatchRow]:
    return [BatchRow(**row) for row in (await connection.execute(query)).mappings()]


def _page(found: list[BatchRow], rows: int) -> Found:
    if len(found) <= rows:
        return Found(rows=found)
    last = found[rows - 1]
    return Found(rows=found[:rows], next=text_of((last.created_at, last.id)))


async def count_lanes(
    connection: AsyncConnection, batch_ids: Sequence[str]
) -> dict[str, list[LaneCount]]:
    """By batch; reads every line of them, so whoever asks bounds how many lines they have."""
    c = batch_lines.c

    def total(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        return sa.cast(sa.func.coalesce(sa.func.sum(column), 0), sa.BigInteger)

    query = (
        sa.select(
            c.batch_id,
            c.lane,
            c.state,
            sa.func.count().label("lines"),
            total(c.cost_nanos).label("cost_nanos"),
            total(c.billed_nanos).label("billed_nanos"),
            total(c.list_nanos).label("list_nanos"),
            total(sa.case((c.is_estimated, 1), else_=0)).label("num_estimated"),
        )
        .where(c.batch_id.in_(batch_ids))
        .group_by(c.batch_id, c.lane, c.state)
    )
    found: dict[str, list[LaneCount]] = {each: [] for each in batch_ids}
    for row in (await connection.execute(query)).mappings():
        values = {name: row[name] for name in LaneCount.__struct_fields__}
        for name in LaneCount.__struct_fields__[2:]:
            values[name] = int(values[name])
        found[row["batch_id"]].append(LaneCount(**values))
    return found


async def failed_lines(connection: AsyncConnection, batch_id: str) -> list[FailedLine]:
    """The first FAILED_LINES of each kind (state and status), and how many there are of it."""
    c = batch_lines.c
    kind = (c.state, c.status_code)
    ranked = (
        sa.select(
            *(c[name] for name in ("line_no", "custom_id", "state", "status_code", "request_id")),
            sa.func.row_number().over(partition_by=kind, order_by=c.line_no).label("place"),
            sa.func.count().over(partition_by=kind).label("num_alike"),
        )
        .where(c.batch_id == batch_id, c.state.in_(FAILED))
        .subquery()
    )
    r = ranked.c
    query = (
        sa.select(ranked, requests.c.error, batch_results.c.body)
        .outerjoin(requests, requests.c.id == r.request_id)
        .outerjoin(
            batch_results,
            sa.and_(batch_results.c.batch_id == batch_id, batch_results.c.line_no == r.line_no),
        )
        .where(r.place <= FAILED_LINES)
        .order_by(r.num_alike.desc(), r.state, r.status_code, r.line_no)
        .limit(KINDS_MAX * FAILED_LINES)
    )
    return [
        FailedLine(
            line_no=row.line_no,
            custom_id=row.custom_id,
            state=row.state,
            status_code=row.status_code,
            request_id=row.request_id,
            error=row.error or "",
            num_alike=int(row.num_alike),
            body=row.body,
        )
        for row in await connection.execute(query)
    ]


async def list_lines(
    connection: AsyncConnection,
    batch_id: str,
    *,
    state: str = "",
    after: int = 0,
    rows: int = LINE_ROWS,
) -> list[LineRow]:
    """Lines in the order of the file, behind number `after`; one row more than a page."""
    c = batch_lines.c
    if state not in ("", *LINE_STATES):
        raise InvalidRequest(
            f"status {state[:40]!r} is unknown; use {', '.join(LINE_STATES)}", param="status"
        )
    query = sa.select(*(c[name] for name in LineRow.__struct_fields__)).where(
        c.batch_id == batch_id, c.line_no > after
    )
    if state:
        query = query.where(c.state == state)
    found = await connection.execute(query.order_by(c.line_no).limit(rows + 1))
    return [LineRow(**row) for row in found.mappings()]


async def natives_of(connection: AsyncConnection, batch_id: str) -> list[NativeRow]:
    """Its batches at providers, the newest first."""
    n = native_batches.c
    query = (
        sa.select(*_NATIVE)
        .where(n.batch_id == batch_id)
        .order_by(n.submitted_at.desc(), n.id)
        .limit(NATIVES_MAX)
    )
    return [NativeRow(**row) for row in (await connection.execute(query)).mappings()]


async def names_of(connection: AsyncConnection, rows: Sequence[BatchRow]) -> Names:
    of_tenants = sa.select(tenants.c.id, tenants.c.name).where(
        tenants.c.id.in_({row.tenant_id for row in rows})
    )
    of_keys = sa.select(keys.c.id, keys.c.name).where(keys.c.id.in_({row.key_id for row in rows}))
    return Names(
        tenants={row.id: row.name for row in await connection.execute(of_tenants)},
        keys={row.id: row.name for row in await connection.execute(of_keys)},
    )


async def key_choices(connection: AsyncConnection, *, now: float) -> list[KeyChoice]:
    """Keys that work, by tenant and name."""
    query = (
        sa.select(
            keys.c.id, keys.c.name, teams.c.name.label("team"), tenants.c.name.label("tenant")
        )
        .join(tenants, tenants.c.id == keys.c.tenant_id)
        .join(teams, teams.c.id == keys.c.team_id)
        .where(
            keys.c.revoked_at.is_(None),
            sa.or_(keys.c.expires_at.is_(None), keys.c.expires_at > now),
        )
        .order_by(tenants.c.name, keys.c.name, keys.c.id)
        .limit(CHOICES_MAX)
    )
    return [KeyChoice(**row) for row in (await connection.execute(query)).mappings()]
