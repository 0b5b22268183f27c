"""The page Requests: the log by pages, its live tail, and one request opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
import sqlalchemy as sa
import structlog
from litestar import Response, get
from litestar.params import FromPath, FromQuery
from litestar.response import Stream
from litestar.types import ControllerRouterHandler
from sqlalchemy.exc import SQLAlchemyError

from gateway.dashboard.look import Look, look_of, page, templates
from gateway.dashboard.page import AnyRequest, Desk, Page
from gateway.dashboard.queries_opened import Opened, opened
from gateway.dashboard.queries_requests import (
    LANES,
    OUTCOMES,
    Filters,
    Line,
    LinePage,
    list_page,
    newest_lines,
    place_of,
    tenant_of_key,
)
from gateway.dashboard.roles import VIEWER
from gateway.errors import InvalidRequest, NotFound, Overloaded
from gateway.pipeline import Gateway
from gateway.store.tables import tenants

log = structlog.get_logger()

TICK_S = 1.0
TAIL_S_MAX = 300.0  # the browser opens it again by itself, and its session is asked for again
TAILS_MAX = 32
# A row is written when its request ends: one that took longer than this is in the log, not here.
TAIL_BACK_S = 120.0
TAIL_ROWS = 50
TENANTS_MAX = 500
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def filters_of(desk: Desk, query: dict[str, str]) -> Filters:
    """Filters from a URL's query. InvalidRequest names what is wrong."""
    key_id = query.get("key", "")
    tenant_id = query.get("tenant", "")
    if key_id:
        async with desk.gateway.store.read() as connection:
            owner = await tenant_of_key(connection, key_id)
        # A key of another tenant has no rows in this one; "-" is nobody's id.
        tenant_id = owner if tenant_id in ("", owner) and owner else "-"
    return Filters(
        tenant_id=tenant_id,
        key_id=key_id,
        model=query.get("model", ""),
        endpoint_id=query.get("endpoint", ""),
        lane=query.get("lane", ""),
        outcome=query.get("outcome", ""),
        since=_instant(query.get("since", "")),
        until=_instant(query.get("until", "")),
    )


def _instant(text: str) -> float:
    """What a `datetime-local` field sends, read as UTC; 0 = not given."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError) as e:
        raise InvalidRequest(f"{text[:40]!r} is no time; write it as 2026-11-30T14:00") from e


NAMES = ("tenant", "key", "model", "endpoint", "lane", "outcome", "since", "until")


def routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    gateway, tails = desk.gateway, Tails()

    @get("/requests", opt=VIEWER)
    async def requests_page(request: AnyRequest) -> Response[bytes]:
        query = {name: request.query_params.get(name, "").strip() for name in NAMES}
        before = request.query_params.get("before", "")
        found = await _list(desk, query, before)
        given = {name: value for name, value in query.items() if value}
        return page(
            "requests.html",
            look_of(request, desk),
            found=found,
            given=given,
            asked=query,
            is_first=not before,
            query=urlencode(given),
            following=urlencode({**given, "before": found.next}) if found.next else "",
            models=sorted(gateway.policy().models),
            endpoints=sorted(gateway.policy().endpoints),
            tenants=await _tenants(gateway),
            lanes=LANES,
            outcomes=OUTCOMES,
            time=time_of,
        )

    @get("/requests/{request_id:str}", opt=VIEWER)
    async def request_page(request: AnyRequest, request_id: FromPath[str]) -> Response[bytes]:
        found = await _opened(gateway, request_id)
        return page("request.html", look_of(request, desk), found=found, time=time_of)

    @get("/events/requests", opt=VIEWER)
    async def tail(request: AnyRequest) -> Stream:
        query = {name: request.query_params.get(name, "").strip() for name in NAMES}
        filters = await filters_of(desk, query)
        tails.enter()
        stream = tails.counted(tail_events(gateway, filters, look_of(request, desk)))
        return Stream(stream, media_type="text/event-stream", headers=STREAM_HEADERS)

    return [requests_page, request_page, tail]


def api_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/requests", opt=VIEWER, tags=["requests"])
    async def list_requests(
        *,
        tenant: FromQuery[str] = "",
        key: FromQuery[str] = "",
        model: FromQuery[str] = "",
        endpoint: FromQuery[str] = "",
        lane: FromQuery[str] = "",
        outcome: FromQuery[str] = "",
        since: FromQuery[str] = "",
        until: FromQuery[str] = "",
        before: FromQuery[str] = "",
    ) -> LinePage:
        """The log, newest first; `before` takes the `next` of the page before."""
        values = (tenant, key, model, endpoint, lane, outcome, since, until)
        return await _list(desk, dict(zip(NAMES, values, strict=True)), before)

    @get("/requests/{request_id:str}", opt=VIEWER, tags=["requests"])
    async def read_request(request_id: FromPath[str]) -> Opened:
        """One request: attempts, candidates with their score terms, ledger entries."""
        return await _opened(desk.gateway, request_id)

    return [list_requests, read_request]


async def _list(desk: Desk, query: dict[str, str], before: str) -> LinePage:
    filters, place = await filters_of(desk, query), place_of(before)
    async with desk.gateway.store.read() as connection:
        return await list_page(connection, filters, before=place)


async def _opened(gateway: Gateway, request_id: str) -> Opened:
    found = await opened(gateway, request_id)
    if found is None:
        raise NotFound(
            f"there is no request {request_id[:80]!r} in the log; its row may be older than what "
            "is kept"
        )
    return found


async def _tenants(gateway: Gateway) -> list[tuple[str, str]]:
    query = sa.select(tenants.c.id, tenants.c.name).order_by(tenants.c.name).limit(TENANTS_MAX)
    async with gateway.store.read() as connection:
        return [(row.id, row.name) for row in await connection.execute(query)]


class Tails:
    """How many live tails are open; beyond TAILS_MAX there is no more."""

    def __init__(self) -> None:
        self.num = 0

    def enter(self) -> None:
        """Raises Overloaded."""
        if self.num >= TAILS_MAX:
            raise Overloaded(
                f"{TAILS_MAX} pages follow the log already; close one and load this again",
                retry_after_s=TAIL_S_MAX,
            )
        self.num += 1

    async def counted(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for event in events:
                yield event
        finally:
            self.num -= 1


async def tail_events(gateway: Gateway, filters: Filters, look: Look) -> AsyncIterator[bytes]:
    """
    Every second the rows that came in, oldest first, as HTML (`event: rows`).

    Rows are read from the store, so that those of every process are seen. It ends without a word
    when the gateway drains and after TAIL_S_MAX.
    """
    begun_unix_s = gateway.wall_clock()
    ends_at_s = gateway.clock() + TAIL_S_MAX
    seen: set[str] = set()
    is_first = True
    yield b"retry: 2000\n\n"
    while gateway.clock() < ends_at_s and not gateway.is_draining:
        lines = await _newest(gateway, filters)
        fresh = [line for line in reversed(lines) if line.id not in seen]
        seen = {line.id for line in lines}
        if is_first:  # the page has them
            fresh = [line for line in fresh if line.created_at >= begun_unix_s]
            is_first = False
        if fresh:
            yield b"event: rows\ndata: " + msgspec.json.encode(rows_html(fresh, look)) + b"\n\n"
        else:
            yield b": still here\n\n"  # else a client that left would never be noticed
        await asyncio.sleep(TICK_S)


async def _newest(gateway: Gateway, filters: Filters) -> list[Line]:
    since = gateway.wall_clock() - TAIL_BACK_S
    try:
        async with gateway.store.read() as connection:
            return await newest_lines(connection, filters, since=since, rows=TAIL_ROWS)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        log.warning("live tail not read", error=error)
        return []


def rows_html(lines: Sequence[Line], look: Look) -> dict[str, str]:
    """By id, rendered by the page's own macro."""
    macros: Any = templates().get_template("requests_parts.html").module
    return {line.id: str(macros.line(look.t, line, time_of)) for line in lines}


def time_of(unix_s: float) -> str:
    """UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


PAGE = Page("/requests", "nav.requests", "viewer", routes, api_routes)
