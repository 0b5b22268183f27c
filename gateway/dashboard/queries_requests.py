"""The request log for people: pages by key, filtered, each bounded in what it looks at.

A page looks at an index alone until it has its rows, and for hours that hold none of them it looks
at the roll-ups instead. Where a filter is so rare that even so a page would take long, it says how
far back it looked, and the next page goes on from there.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.errors import InvalidRequest
from gateway.store.requests import RequestRow, find_request
from gateway.store.rollup_tables import GRAINS_S, request_rollups
from gateway.store.tables import keys, requests
from gateway.wire.usage import Usage

PAGE_ROWS = 50
LOOK_ROWS = 20_000  # of an index, at a time
LOOKS_MAX = 3
KEY_LOOK_ROWS = 200  # whole rows: a key has an index, but not for what else is filtered by
OUTCOMES = ("ok", "refused", "failed")  # by status: below 400, 4xx, 5xx
LANES = ("interactive", "batch")

Place = tuple[float, str]  # created_at and id of a row; a page begins after it
_USAGE = msgspec.json.Decoder(Usage)


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


async def list_page(
    connection: AsyncConnection, filters: Filters, *, before: Place | None, rows: int = PAGE_ROWS
) -> LinePage:
    """One page; costs at most LOOKS_MAX looks, whatever the filters and however long the log."""
    found: list[Place] = []
    place: Place | None = before
    if place is None and filters.until:
        place = (filters.until, "")
    num_looks = 1 if _is_plain(filters) else LOOKS_MAX
    for _ in range(num_looks):
        place = await _skip(connection, filters, place)
        if place == _NOWHERE:
            return await _page(connection, found, None)
        some, end = await _look(connection, filters, place, rows + 1 - len(found))
        found += some
        if len(found) > rows:
            return await _page(connection, found[:rows], found[rows - 1])
        if end is None:
            return await _page(connection, found, None)
        place = end
    assert place is not None
    return await _page(connection, found, place, looked_back_to=place[0])


_NOWHERE: Place = (float("-inf"), "")


def _is_plain(filters: Filters) -> bool:
    return not any((filters.model, filters.endpoint_id, filters.lane, filters.outcome))


async def _skip(connection: AsyncConnection, filters: Filters, place: Place | None) -> Place | None:
    """The end of the newest hour before `place` that has such rows; _NOWHERE when none has."""
    if _is_plain(filters) or filters.key_id:  # a key has an index of its own
        return place
    c = request_rollups.c
    conditions = [c.grain == "hour"]
    if place is not None:
        conditions.append(c.bucket_start <= int(min(place[0], 2.0**62)))
    if filters.since:
        conditions.append(c.bucket_start > int(filters.since) - GRAINS_S["hour"])
    for column, wanted in (
        (c.tenant_id, filters.tenant_id),
        (c.model, filters.model),
        (c.endpoint_id, filters.endpoint_id),
        (c.lane, filters.lane),
    ):
        if wanted:
            conditions.append(column == wanted)
    if filters.outcome == "refused":
        conditions.append(c.num_refused > 0)
    elif filters.outcome == "failed":
        conditions.append(c.num_failed > 0)
    query = sa.select(c.bucket_start).where(*conditions).order_by(c.bucket_start.desc()).limit(1)
    newest = await connection.scalar(query)
    if newest is None:
        return _NOWHERE
    end = (float(newest + GRAINS_S["hour"]), "")
    return end if place is None or end < place else place


async def _look(
    connection: AsyncConnection, filters: Filters, place: Place | None, rows: int
) -> tuple[list[Place], Place | None]:
    """Such rows among the next so many, and where the look ended: None at the end of the log."""
    r = requests.c
    conditions: list[sa.ColumnElement[bool]] = []
    if filters.key_id:
        conditions += [r.tenant_id == filters.tenant_id, r.key_id == filters.key_id]
    elif filters.tenant_id and _is_plain(filters):
        conditions.append(r.tenant_id == filters.tenant_id)
    if place is not None:
        conditions.append(sa.tuple_(r.created_at, r.id) < sa.tuple_(*place))
    if filters.since:
        conditions.append(r.created_at >= filters.since)
    names = ("created_at", "id", "tenant_id", "model", "endpoint_id", "lane", "status")
    query = sa.select(*(r[name] for name in names)).where(*conditions)
    query = query.order_by(r.created_at.desc(), r.id.desc())
    num_looked = KEY_LOOK_ROWS if filters.key_id else LOOK_ROWS
    if _is_plain(filters):
        plain = await connection.execute(query.limit(rows))
        found = [(row.created_at, row.id) for row in plain]
        return found, None
    looked = query.limit(num_looked).subquery()
    chosen = sa.select(looked.c.created_at, looked.c.id).where(*_chosen(filters, looked.c))
    # In the order of the look, so that both databases stop at the last row wanted.
    found = [(row.created_at, row.id) for row in await connection.execute(chosen.limit(rows))]
    if len(found) == rows:
        return found, found[-1]
    last = (await connection.execute(query.offset(num_looked - 1).limit(1))).first()
    return found, None if last is None else (last.created_at, last.id)


def _chosen(filters: Filters, c: Any) -> list[sa.ColumnElement[bool]]:
    found = [
        column == wanted
        for column, wanted in (
            (c.tenant_id, filters.tenant_id),
            (c.model, filters.model),
            (c.endpoint_id, filters.endpoint_id),
            (c.lane, filters.lane),
        )
        if wanted
    ]
    if filters.outcome:
        low, high = {"ok": (0, 399), "refused": (400, 499), "failed": (500, 999)}[filters.outcome]
        found.append(c.status.between(low, high))
    return found


async def _page(
    connection: AsyncConnection,
    places: list[Place],
    following: Place | None,
    *,
    looked_back_to: float | None = None,
) -> LinePage:
    r = requests.c
    shown = (
        "id", "created_at", "tenant_id", "key_id", "model", "endpoint_id", "lane", "stream",
        "status", "error", "num_attempts", "billed_nanos", "is_estimated", "ttft_visible_ms",
        "ttft_any_ms", "duration_ms", "usage",
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
        next=None if following is None else text_of(following),
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
    )  # fmt: skip


async def newest_lines(
    connection: AsyncConnection, filters: Filters, *, since: float, rows: int
) -> list[Line]:
    """What came in since then, newest first: for the live tail, which asks every second."""
    asked = msgspec.structs.replace(filters, since=max(since, filters.since), until=0.0)
    places, _ = await _look(connection, asked, None, rows)
    return (await _page(connection, places, None)).lines


async def any_request(connection: AsyncConnection, request_id: str) -> RequestRow | None:
    """A request of any tenant: admins belong to the whole gateway."""
    query = sa.select(requests.c.tenant_id).where(requests.c.id == request_id)
    tenant_id = await connection.scalar(query)
    return None if tenant_id is None else await find_request(connection, tenant_id, request_id)


async def tenant_of_key(connection: AsyncConnection, key_id: str) -> str:
    """ "" = no such key."""
    query = sa.select(keys.c.tenant_id).where(keys.c.id == key_id)
    return await connection.scalar(query) or ""
