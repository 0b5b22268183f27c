"""The request log for people: pages by key, filtered, each bounded in what it looks at.

A page goes through the log by the index that gets it farthest back: the one of the rarest thing
that is asked for, as counted where it stands. Hours that hold no such row it knows from the
roll-ups. Where what is asked for is rarer than each of its parts, a page stops after LOOK_S, says
how far back it looked, and the next one goes on from there.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.errors import InvalidRequest
from gateway.store.requests import RequestRow, find_request
from gateway.store.rollup_tables import GRAINS_S, request_rollups
from gateway.store.tables import ERRORS, keys, requests
from gateway.wire.usage import Usage

PAGE_ROWS = 50
LOOK_S = 0.06  # after it no page begins another look
LOOK_ROWS = 5_000  # of an index that has all that is filtered by, at a time
WHOLE_LOOK_ROWS = 200  # of one that has not: each is a row to fetch
OUTCOMES = ("ok", "refused", "failed")  # by status, see STATUSES
STATUSES = {"ok": (0, 399), "refused": (400, 499), "failed": (500, 999)}
LANES = ("interactive", "batch")

Place = tuple[float, str]  # created_at and id of a row; a page begins after it
_USAGE = msgspec.json.Decoder(Usage)


class _Tagged(msgspec.Struct):
    """What of a request's facts stands in a list."""

    tags: list[str] = []


_TAGGED = msgspec.json.Decoder(_Tagged)


class Filters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of the log; "" = all. `until` and `since` are unix seconds, 0 = open."""

    tenant_id: str = ""
    key_id: str = ""
    model: str = ""
    endpoint_id: str = ""
    lane: str = ""
    outcome: str = ""
    since: float = 0.0
    until: float = 0.0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("outcome", self.outcome, OUTCOMES),
            ("lane", self.lane, LANES),
        ):
            if value not in ("", *known):
                raise InvalidRequest(f"{name} {value[:40]!r} is unknown; use {', '.join(known)}")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the list. `tokens_per_s` is of the whole answer, its first token's wait in it."""

    id: str
    created_at: float
    tenant_id: str
    key_id: str
    key_name: str
    model: str
    endpoint_id: str
    lane: str
    stream: bool
    status: int
    error: str
    num_attempts: int
    cost: str
    is_estimated: bool
    ttft_ms: float | None
    duration_ms: float | None
    input_tokens: int
    output_tokens: int
    tokens_per_s: float | None
    tags: list[str]  # as the header x-looprouter-tags named them


class LinePage(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. `next` is for `before`; `looked_back_to` is set where the look was cut off."""

    lines: list[Line]
    next: str | None
    looked_back_to: float | None = None


def place_of(text: str) -> Place | None:
    """A `before` of a URL; InvalidRequest for one that no page of ours gave."""
    if not text:
        return None
    at, _, request_id = text.partition("_")
    try:
        (created_at,) = struct.unpack(">d", bytes.fromhex(at))
        if not math.isfinite(created_at):
            raise ValueError(created_at)
    except (ValueError, struct.error) as e:
        raise InvalidRequest(f"before={text[:80]!r} is no place in the log") from e
    return created_at, request_id


def text_of(place: Place) -> str:
    """Exact to the last bit, and safe in a URL."""
    return f"{struct.pack('>d', place[0]).hex()}_{place[1]}"


Asked = dict[str, str | tuple[int, int]]  # by column: a value, or the least and the most


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to go through the log, newest first: along an index, so many rows a look."""

    served: tuple[sa.ColumnElement[bool], ...]  # what the index does
    left: Asked  # what its rows must be asked for
    rows: int


def _ways(filters: Filters) -> list[_Way]:
    """All find the same; the first is by time alone."""
    names = ("tenant_id", "key_id", "model", "endpoint_id", "lane")
    asked: Asked = {name: value for name in names if (value := getattr(filters, name))}
    if filters.outcome:
        asked["status"] = STATUSES[filters.outcome]
    ways = [_Way((), asked, LOOK_ROWS)]
    if filters.outcome in ("refused", "failed"):
        # Of no type: SQLite would be sent `… = 1`, and not see that it is the index's condition.
        errors: sa.ColumnElement[Any] = sa.literal_column(ERRORS)
        ways.append(_Way((errors,), asked, LOOK_ROWS))
    owner = ("tenant_id", "key_id") if filters.key_id else ("tenant_id",)
    for served in (owner, ("model",), ("endpoint_id",)):
        if all(name in asked for name in served):
            left = {name: value for name, value in asked.items() if name not in served}
            ways.append(_Way(_chosen(asked, served, requests.c), left, WHOLE_LOOK_ROWS))
    return ways


def _chosen(asked: Asked, names: Iterable[str], c: Any) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(
        c[name].between(*value) if isinstance(value := asked[name], tuple) else c[name] == value
        for name in names
    )


async def list_page(
    connection: AsyncConnection,
    filters: Filters,
    *,
    before: Place | None,
    rows: int = PAGE_ROWS,
    clock: Callable[[], float] = time.monotonic,
) -> LinePage:
    """One page; begins no look after LOOK_S, whatever the filters and however long the log."""
    ends_at_s = clock() + LOOK_S
    place: Place | None = before
    if place is None and filters.until:
        place = (filters.until, "")
    ways = _ways(filters)
    for way in ways:
        if not way.left:  # every row of it is wanted
            found = await _along(connection, way, filters, place, rows + 1)
            following = found[rows - 1 : rows] if len(found) > rows else []
            return await _page(connection, found[:rows], following)
    found = []
    while True:
        way, end = await _farthest(connection, ways, filters, place)
        if way is ways[0]:
            skipped = await _skip(connection, filters, place)
            if skipped == _NOWHERE:
                return await _page(connection, found, [])
            if skipped != place:
                place = skipped
                way, end = await _farthest(connection, ways, filters, place)
        found += await _along(connection, way, filters, place, rows + 1 - len(found))
        if len(found) > rows:
            return await _page(connection, found[:rows], found[rows - 1 : rows])
        if end is None:
            return await _page(connection, found, [])
        place = end
        if clock() >= ends_at_s:
            return await _page(connection, found, [place], looked_back_to=place[0])


async def _farthest(
    connection: AsyncConnection, ways: list[_Way], filters: Filters, place: Place | None
) -> tuple[_Way, Place | None]:
    """The way whose next look ends farthest back, and where; None where that is the log's end."""
    best: tuple[_Way, Place] | None = None
    for way in ways:
        query = _ordered(way, filters, place, ("created_at", "id"))
        last = (await connection.execute(query.offset(way.rows - 1).limit(1))).first()
        if last is None:
            return way, None
        end = (last.created_at, last.id)
        if best is None or end < best[1]:
            best = way, end
    assert best is not None
    return best


async def _along(
    connection: AsyncConnection, way: _Way, filters: Filters, place: Place | None, rows: int
) -> list[Place]:
    """Such rows among those of one look."""
    query = _ordered(way, filters, place, ("created_at", "id", *way.left))
    if way.left:
        looked = query.limit(way.rows).subquery()
        # In the order of the look, so that both databases stop at the last row wanted.
        chosen: sa.Select[Any] = sa.select(looked.c.created_at, looked.c.id)
        query = chosen.where(*_chosen(way.left, way.left, looked.c))
    return [(row.created_at, row.id) for row in await connection.execute(query.limit(rows))]


def _ordered(
    way: _Way, filters: Filters, place: Place | None, names: tuple[str, ...]
) -> sa.Select[Any]:
    r = requests.c
    conditions = list(way.served)
    if place is not None:
        conditions.append(sa.tuple_(r.created_at, r.id) < sa.tuple_(*place))
    if filters.since:
        conditions.append(r.created_at >= filters.since)
    query = sa.select(*(r[name] for name in names)).where(*conditions)
    return query.order_by(r.created_at.desc(), r.id.desc())


_NOWHERE: Place = (float("-inf"), "")


async def _skip(connection: AsyncConnection, filters: Filters, place: Place | None) -> Place | None:
    """
    The end of the newest hour before `place` that has such rows; _NOWHERE when none has.

    Where rows are older than the hours that are kept, what is before these is unknown, not none.
    """
    c = request_rollups.c
    hours = c.grain == "hour"
    kept_from = await connection.scalar(sa.select(sa.func.min(c.bucket_start)).where(hours))
    oldest = await connection.scalar(sa.select(sa.func.min(requests.c.created_at)))
    if kept_from is None or oldest is None:
        return _NOWHERE if oldest is None else place
    if place is not None and place[0] <= kept_from:
        return place
    conditions = [hours, c.bucket_start > int(max(oldest, filters.since)) - GRAINS_S["hour"]]
    if place is not None:
        conditions.append(c.bucket_start <= int(min(place[0], 2.0**62)))
    for name in ("tenant_id", "model", "endpoint_id", "lane"):
        if value := getattr(filters, name):
            conditions.append(c[name] == value)
    if filters.outcome == "refused":
        conditions.append(c.num_refused > 0)
    elif filters.outcome == "failed":
        conditions.append(c.num_failed > 0)
    query = sa.select(c.bucket_start).where(*conditions).order_by(c.bucket_start.desc()).limit(1)
    newest = await connection.scalar(query)
    if newest is None:
        return _NOWHERE if oldest >= kept_from else (float(kept_from), "")
    end = (float(newest + GRAINS_S["hour"]), "")
    return end if place is None or end < place else place


async def _page(
    connection: AsyncConnection,
    places: list[Place],
    following: list[Place],  # where the next page begins; empty at the end of the log
    *,
    looked_back_to: float | None = None,
) -> LinePage:
    r = requests.c
    shown = (
        "id", "created_at", "tenant_id", "key_id", "model", "endpoint_id", "lane", "stream",
        "status", "error", "num_attempts", "billed_nanos", "is_estimated", "ttft_visible_ms",
        "ttft_any_ms", "duration_ms", "usage", "facts",
    )  # fmt: skip
    ids = [request_id for _, request_id in places]
    query = sa.select(*(r[name] for name in shown)).where(r.id.in_(ids))
    rows = sorted((await connection.execute(query)).mappings(), key=lambda row: -row["created_at"])
    wanted = {row["key_id"] for row in rows}
    named = await connection.execute(sa.select(keys.c.id, keys.c.name).where(keys.c.id.in_(wanted)))
    names = {row.id: row.name for row in named}
    order = {request_id: idx for idx, request_id in enumerate(ids)}
    rows.sort(key=lambda row: order[row["id"]])
    return LinePage(
        lines=[_line(row, names) for row in rows],
        next=text_of(following[0]) if following else None,
        looked_back_to=looked_back_to,
    )


def _line(row: Any, names: dict[str, str]) -> Line:
    usage = _USAGE.decode(row["usage"]) if row["usage"] else Usage()
    output = usage.output + usage.reasoning + usage.audio_output
    duration_ms = row["duration_ms"]
    ttft_ms = row["ttft_visible_ms"]
    return Line(
        **{
            name: row[name]
            for name in (
                "id", "created_at", "tenant_id", "key_id", "model", "endpoint_id", "lane",
                "status", "error", "num_attempts", "duration_ms",
            )
        },
        key_name=names.get(row["key_id"], ""),
        stream=bool(row["stream"]),
        is_estimated=bool(row["is_estimated"]),
        cost=dollars(row["billed_nanos"]),
        ttft_ms=row["ttft_any_ms"] if ttft_ms is None else ttft_ms,
        input_tokens=usage.input_total,
        output_tokens=output,
        tokens_per_s=output / duration_ms * 1000 if output and duration_ms else None,
        tags=sorted(_TAGGED.decode(row["facts"]).tags) if row["facts"] else [],
    )  # fmt: skip


async def newest_lines(
    connection: AsyncConnection, filters: Filters, *, since: float, rows: int
) -> list[Line]:
    """What came in since then, newest first: for the live tail, which asks every second."""
    asked = msgspec.structs.replace(filters, since=max(since, filters.since), until=0.0)
    ways = _ways(asked)
    exact = next((way for way in ways if not way.left), None)
    way = exact or (await _farthest(connection, ways, asked, None))[0]
    places = await _along(connection, way, asked, None, rows)
    return (await _page(connection, places, [])).lines


async def any_request(connection: AsyncConnection, request_id: str) -> RequestRow | None:
    """A request of any tenant: admins belong to the whole gateway."""
    query = sa.select(requests.c.tenant_id).where(requests.c.id == request_id)
    tenant_id = await connection.scalar(query)
    return None if tenant_id is None else await find_request(connection, tenant_id, request_id)


async def tenant_of_key(connection: AsyncConnection, key_id: str) -> str:
    """ "" = no such key."""
    query = sa.select(keys.c.tenant_id).where(keys.c.id == key_id)
    return await connection.scalar(query) or ""
