"""Batches in the admin JSON API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from litestar import get, post
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.batch.intake import FILE_BYTES_MAX
from gateway.dashboard import batch_work
from gateway.dashboard.batch_data import BatchShown
from gateway.dashboard.batch_opened import LinePage, OpenedBatch, lines_shown
from gateway.dashboard.batch_queries import Filters
from gateway.dashboard.batch_watch import BatchDesk
from gateway.dashboard.batch_work import BatchPlanned, BatchWanted, FileTaken
from gateway.dashboard.page import AnyRequest, Desk, actor_of, session_of
from gateway.dashboard.queries_requests import place_of
from gateway.dashboard.requests import filters_of as log_filters_of
from gateway.dashboard.roles import OPERATOR, VIEWER, has_role

TAGS = ["batches"]
BODY_BYTES_MAX = FILE_BYTES_MAX + 1  # the intake says which file is too large


class BatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first; `next` is for `before`, `looked_back_to` is set where the look was cut off."""

    batches: list[BatchShown]
    next: str | None
    looked_back_to: float | None


async def filters_of(desk: Desk, query: dict[str, str]) -> Filters:
    """Filters from a URL's query. InvalidRequest names what is wrong."""
    names = ("tenant", "key", "since", "until")
    common = await log_filters_of(desk, {name: query.get(name, "") for name in names})
    return Filters(
        tenant_id=common.tenant_id,
        key_id=common.key_id,
        state=query.get("status", ""),
        since=common.since,
        until=common.until,
    )


def may_read(request: AnyRequest) -> bool:
    """Whether who asks may see what customers were answered."""
    return has_role(session_of(request).admin.role, "operator")


def batch_api(desk: Desk, its: BatchDesk) -> Sequence[ControllerRouterHandler]:
    """Handlers below /admin/api."""
    return [*_reads(desk, its), *_writes(desk, its)]


def _reads(desk: Desk, its: BatchDesk) -> Sequence[ControllerRouterHandler]:
    @get("/batches", opt=VIEWER, tags=TAGS)
    async def list_batches(
        *,
        tenant: FromQuery[str] = "",
        key: FromQuery[str] = "",
        status: FromQuery[str] = "",
        since: FromQuery[str] = "",
        until: FromQuery[str] = "",
        before: FromQuery[str] = "",
    ) -> BatchPage:
        """Batches of all tenants, newest first; `status` may also be `running`: not ended."""
        query = {"tenant": tenant, "key": key, "status": status, "since": since, "until": until}
        found, shown = await its.list_page(await filters_of(desk, query), place_of(before))
        return BatchPage(batches=shown, next=found.next, looked_back_to=found.looked_back_to)

    @get("/batches/{batch_id:str}", opt=VIEWER, tags=TAGS)
    async def read_batch(request: AnyRequest, batch_id: FromPath[str]) -> OpenedBatch:
        """One batch: lanes, batches at providers, errors by kind, files and history."""
        return await its.opened(await its.find(batch_id), may_read=may_read(request))

    @get("/batches/{batch_id:str}/lines", opt=VIEWER, tags=TAGS)
    async def list_lines(
        batch_id: FromPath[str], status: FromQuery[str] = "", after: FromQuery[int] = 0
    ) -> LinePage:
        """Its lines by number, 50 a page, without their text."""
        row = await its.find(batch_id)
        async with desk.gateway.store.read() as connection:
            return await lines_shown(connection, row.id, state=status, after=after)

    @get("/batches/{batch_id:str}/files/{kind:str}", opt=OPERATOR, tags=TAGS)
    async def read_file(
        request: AnyRequest, batch_id: FromPath[str], kind: FromPath[str]
    ) -> Stream:
        """The output or error file (`kind`) as JSON lines. Noted in the audit log."""
        return await file_stream(desk, its, request, batch_id, kind)

    return [list_batches, read_batch, list_lines, read_file]


def _writes(desk: Desk, its: BatchDesk) -> Sequence[ControllerRouterHandler]:
    @post("/batches/files", opt=OPERATOR, tags=TAGS, request_max_body_size=BODY_BYTES_MAX)
    async def upload_file(
        request: AnyRequest, key: FromQuery[str], filename: FromQuery[str] = ""
    ) -> FileTaken:
        """The body is the file: JSON lines as /v1/files takes them, for the tenant of `key`."""
        return await batch_work.take_file(desk, request, key, filename)

    @post("/batches/plan", opt=OPERATOR, tags=TAGS, status_code=200)
    async def plan_batch(data: JSONBody[BatchWanted]) -> BatchPlanned:
        """Lanes, cost, finish and saving of a batch; nothing is made or spent."""
        return await batch_work.plan(desk, data)

    @post("/batches", opt=OPERATOR, tags=TAGS)
    async def create_batch(request: AnyRequest, data: JSONBody[BatchWanted]) -> OpenedBatch:
        """Make a batch, as POST /v1/batches by the holder of the key."""
        row = await batch_work.submit(desk, data, actor=actor_of(request))
        return await its.opened(row, may_read=True)

    @post("/batches/{batch_id:str}/cancel", opt=OPERATOR, tags=TAGS, status_code=200)
    async def cancel_batch(request: AnyRequest, batch_id: FromPath[str]) -> OpenedBatch:
        """Send nothing more of it; what ran is paid for."""
        row = await its.find(batch_id)
        await batch_work.cancel(desk, row, actor=actor_of(request))
        return await its.opened(await its.find(batch_id), may_read=True)

    return [upload_file, plan_batch, create_batch, cancel_batch]


async def file_stream(
    desk: Desk, its: BatchDesk, request: AnyRequest, batch_id: str, kind: str
) -> Stream:
    row = await its.find(batch_id)
    file, parts = await batch_work.download(desk, row, kind, actor=actor_of(request))
    headers = {
        "content-disposition": f'attachment; filename="{row.id}_{kind}.jsonl"',
        "content-length": str(file.num_bytes),
    }
    return Stream(parts, media_type="application/x-ndjson", headers=headers)
