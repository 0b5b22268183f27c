"""The page Batch: the list, one batch opened, the plan before submit; two event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import urlencode

import msgspec
import structlog
from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, URLEncodedBody
from litestar.response import Redirect, Stream
from litestar.types import ControllerRouterHandler
from sqlalchemy.exc import SQLAlchemyError

from gateway.batch.intake import FILE_BYTES_MAX, LINES_MAX
from gateway.dashboard import batch_work
from gateway.dashboard.batch_api import batch_api, file_stream, filters_of, may_read
from gateway.dashboard.batch_data import BatchShown
from gateway.dashboard.batch_opened import OpenedBatch, lines_shown
from gateway.dashboard.batch_queries import STATES, key_choices
from gateway.dashboard.batch_watch import BatchDesk
from gateway.dashboard.batch_work import BatchPlanned, BatchWanted
from gateway.dashboard.forms import moment
from gateway.dashboard.keys_data import tenants_of
from gateway.dashboard.look import ROOT, Look, look_of, page, templates
from gateway.dashboard.now import Watchers, counted
from gateway.dashboard.page import AnyRequest, Desk, Page, actor_of
from gateway.dashboard.queries_requests import place_of
from gateway.dashboard.roles import OPERATOR, VIEWER
from gateway.errors import ApiError, ServiceError
from gateway.store.batch_tables import LINE_STATES

log = structlog.get_logger()

TICK_S = 2.0
STREAM_S_MAX = 300.0  # the browser opens it again by itself, and its session is asked for again
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
NAMES = ("tenant", "key", "status", "since", "until")
WINDOWS = ("1h", "6h", "12h", "24h", "3d", "7d")

Form = URLEncodedBody[dict[str, str]]
Parts = Callable[[], Awaitable[dict[str, str] | None]]


def batch_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    its = desk.only(BatchDesk)
    return [*_pages(desk, its), *_new(desk), *_writes(desk, its), *_streams(desk, its)]


def _pages(desk: Desk, its: BatchDesk) -> Sequence[ControllerRouterHandler]:
    @get("/batch", opt=VIEWER)
    async def show_batches(request: AnyRequest) -> Response[bytes]:
        query = {name: request.query_params.get(name, "").strip() for name in NAMES}
        before = request.query_params.get("before", "")
        found, shown = await its.list_page(await filters_of(desk, query), place_of(before))
        given = {name: value for name, value in query.items() if value}
        here = {**given, "before": before} if before else given
        return page(
            "batch.html",
            look_of(request, desk),
            shown=shown,
            found=found,
            given=given,
            asked=query,
            is_first=not before,
            events=urlencode({**here, "shown": marks_of(shown)}),
            newest=urlencode(given),
            following=urlencode({**given, "before": found.next}) if found.next else "",
            tenants=await tenants_of(desk),
            states=STATES,
            may_write=may_read(request),
            moment=moment,
        )

    @get("/batch/{batch_id:str}", opt=VIEWER)
    async def show_batch(
        request: AnyRequest,
        batch_id: FromPath[str],
        status: FromQuery[str] = "",
        after: FromQuery[int] = 0,
    ) -> Response[bytes]:
        row = await its.find(batch_id)
        found = await its.opened(row, may_read=may_read(request))
        async with desk.gateway.store.read() as connection:
            lines = await lines_shown(connection, row.id, state=status, after=after)
        return page(
            "batch_one.html",
            look_of(request, desk),
            found=found,
            lines=lines,
            line_status=status,
            after=after,
            line_states=LINE_STATES,
            requests_query=urlencode(_log_query(found.batch)),
            may_write=may_read(request),
            moment=moment,
        )

    @get("/batch/{batch_id:str}/files/{kind:str}", opt=OPERATOR)
    async def download(request: AnyRequest, batch_id: FromPath[str], kind: FromPath[str]) -> Stream:
        return await file_stream(desk, its, request, batch_id, kind)

    return [show_batches, show_batch, download]


def _log_query(batch: BatchShown) -> dict[str, str]:
    """The log's page with this batch's requests: of its key, in the lane, in its time."""
    end = batch.ended_at + 60.0 if batch.ended_at is not None else None
    given = {"lane": "batch", "key": batch.key_id, "since": _minute(batch.created_at)}
    return {**given, "until": _minute(end + 60.0)} if end is not None else given


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M")


def _new(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/batch/new", opt=OPERATOR)
    async def show_new(
        request: AnyRequest,
        key: FromQuery[str] = "",
        file: FromQuery[str] = "",
        window: FromQuery[str] = "",
        max_cost: FromQuery[str] = "",
    ) -> Response[bytes]:
        asked = {"key": key, "file": file, "window": window, "max_cost": max_cost}
        return await _preview(request, desk, asked)

    @post("/batch/new", opt=OPERATOR, status_code=200)
    async def submit(request: AnyRequest, data: Form) -> Response[Any]:
        try:
            row = await batch_work.submit(desk, _wanted(data), actor=actor_of(request))
        except ApiError as error:
            return await _preview(request, desk, data, problem=error)
        return Redirect(f"{ROOT}/batch/{row.id}", status_code=303)

    @post("/batch/discard", opt=OPERATOR, status_code=303)
    async def discard(data: Form) -> Response[Any]:
        await batch_work.discard(desk, data.get("key", ""), data.get("file", ""))
        return Redirect(f"{ROOT}/batch/new", status_code=303)

    return [show_new, submit, discard]


def _wanted(fields: Mapping[str, str]) -> BatchWanted:
    return BatchWanted(
        key=fields.get("key", ""),
        file=fields.get("file", ""),
        completion_window=fields.get("window", "") or batch_work.WINDOW,
        max_cost_usd=fields.get("max_cost", "") or None,
    )


async def _preview(
    request: AnyRequest,
    desk: Desk,
    asked: Mapping[str, str],
    *,
    problem: ApiError | None = None,
) -> Response[Any]:
    """The form, and the plan where a file was uploaded already."""
    planned: BatchPlanned | None = None
    if asked.get("file"):
        try:
            planned = await batch_work.plan(desk, _wanted(asked))
        except ApiError as error:
            if isinstance(error, ServiceError):
                raise
            problem = problem or error
    async with desk.gateway.store.read() as connection:
        choices = await key_choices(connection, now=desk.gateway.wall_clock())
    return page(
        "batch_new.html",
        look_of(request, desk),
        status=problem.status if problem is not None else 200,
        asked=asked,
        planned=planned,
        problem=problem.message if problem is not None else "",
        keys_known=choices,
        windows=WINDOWS,
        window=asked.get("window") or batch_work.WINDOW,
        bytes_max=FILE_BYTES_MAX,
        lines_max=LINES_MAX,
        moment=moment,
    )


def _writes(desk: Desk, its: BatchDesk) -> Sequence[ControllerRouterHandler]:
    @post("/batch/{batch_id:str}/cancel", opt=OPERATOR, status_code=303)
    async def cancel(request: AnyRequest, batch_id: FromPath[str]) -> Response[Any]:
        row = await its.find(batch_id)
        await batch_work.cancel(desk, row, actor=actor_of(request))
        return Redirect(f"{ROOT}/batch/{row.id}", status_code=303)

    return [cancel]


def _streams(desk: Desk, its: BatchDesk) -> Sequence[ControllerRouterHandler]:
    watchers = Watchers()

    def stream(parts: Parts) -> Stream:
        watchers.enter()
        return Stream(
            counted(batch_events(desk, parts), watchers),
            media_type="text/event-stream",
            headers=STREAM_HEADERS,
        )

    @get("/events/batch", opt=VIEWER)
    async def watch_list(request: AnyRequest) -> Stream:
        query = {name: request.query_params.get(name, "").strip() for name in NAMES}
        filters = await filters_of(desk, query)
        place, look = place_of(request.query_params.get("before", "")), look_of(request, desk)
        known = request.query_params.get("shown", "")

        async def parts() -> dict[str, str] | None:
            _, shown = await its.list_page(filters, place)
            if marks_of(shown) != known:
                return None  # rows came or went since the page was drawn
            return rows_html(shown, look)

        return stream(parts)

    @get("/events/batch/{batch_id:str}", opt=VIEWER)
    async def watch_one(request: AnyRequest, batch_id: FromPath[str]) -> Stream:
        look, may = look_of(request, desk), may_read(request)
        begun = (await its.find(batch_id)).is_ended

        async def parts() -> dict[str, str] | None:
            found = await its.opened(await its.find(batch_id), may_read=may)
            if found.batch.is_ended and not begun:
                return None  # the page drawn anew has files, and no button to cancel
            return opened_html(found, look)

        return stream(parts)

    return [watch_list, watch_one]


def marks_of(shown: Sequence[BatchShown]) -> str:
    """Which rows a page has, shorter than their ids."""
    return blake2b(" ".join(each.id for each in shown).encode(), digest_size=8).hexdigest()


async def batch_events(desk: Desk, parts: Parts) -> AsyncIterator[bytes]:
    """
    Every TICK_S the parts of the page that changed, as HTML by element id (`event: board`).

    `parts` answers None where the page is to be drawn anew: it says `reload` and ends, as it does
    without a word when the gateway drains and after STREAM_S_MAX.
    """
    gateway = desk.gateway
    sent: dict[str, str] = {}
    ends_at_s = gateway.clock() + STREAM_S_MAX
    yield b"retry: 2000\n\n"
    while gateway.clock() < ends_at_s and not gateway.is_draining:
        try:
            found = await parts()
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("batches not read for a page", error=error)
            found = sent
        if found is None:
            yield b"event: reload\ndata: {}\n\n"
            return
        changed = {part: html for part, html in found.items() if sent.get(part) != html}
        sent = found
        if changed:
            yield b"event: board\ndata: " + msgspec.json.encode(changed) + b"\n\n"
        else:
            yield b": still here\n\n"  # else a client that left would never be noticed
        await asyncio.sleep(TICK_S)


def rows_html(shown: Sequence[BatchShown], look: Look) -> dict[str, str]:
    """By element id, rendered by the page's own macro."""
    macros: Any = templates().get_template("batch_parts.html").module
    return {each.id: str(macros.row(look.t, each, moment)) for each in shown}


def opened_html(found: OpenedBatch, look: Look) -> dict[str, str]:
    macros: Any = templates().get_template("batch_parts.html").module
    return {
        name: str(getattr(macros, name)(look.t, found, moment))
        for name in ("figures", "progress", "lanes", "natives", "errors", "history")
    }


PAGE = Page(
    path="/batch",
    title="nav.batch",
    role="viewer",
    routes=batch_routes,
    api_routes=lambda desk: batch_api(desk, desk.only(BatchDesk)),
)
