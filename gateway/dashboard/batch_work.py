"""What an operator does with batches, through the same functions as the API: upload, plan, submit,
cancel, download. Each is the work of a key's holder done by somebody else, so each but the plan is
in the audit log under the admin's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from gateway.api.exchange import BODY_BYTES_PER_S_MIN, BODY_WAIT_S
from gateway.batch import file_handlers, service
from gateway.batch.batch_handlers import DIALECT, CreateBody, wish_of
from gateway.batch.file_handlers import KEEP_S, KEEP_S_MIN, UPLOAD_S_MAX, drop_objects
from gateway.batch.lane import BatchLane
from gateway.batch.line_check import URL_OF
from gateway.core import Caller
from gateway.dashboard.batch_data import Plan
from gateway.dashboard.page import AnyRequest, Desk
from gateway.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestTimeout,
    Unauthenticated,
)
from gateway.store.audit import AuditEvent, append_events
from gateway.store.batches import BatchRow
from gateway.store.files import FileRow, find_file, is_in_use, keep_until, mark_deleted
from gateway.wire.pieces import Surface

WINDOW = "24h"
DOWNLOADS = ("output", "error")


class BatchWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch over an uploaded file. `max_cost_usd`: a decimal string, null for no limit."""

    key: str  # the id of the key that pays
    file: str
    completion_window: str = WINDOW  # 10m to 7d
    max_cost_usd: str | None = None


class FileTaken(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded file. It goes after an hour unless a batch is made of it."""

    id: str
    filename: str
    num_bytes: int
    num_lines: int
    expires_at: float | None


class BatchPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch would be. `refusal` says by how much it cannot be had; null = it can.

    `warning`: which budget of the key it would not fit; its lines beyond that would fail.
    """

    file: FileTaken
    url: str  # what its lines ask for
    plan: Plan
    is_feasible: bool
    refusal: str | None
    warning: str | None
    deadline_at: float


def lane_of(desk: Desk) -> BatchLane:
    if desk.batch is None:
        raise Overloaded("this process runs no batch lane", code="no_batch_lane")
    return desk.batch


async def caller_of(desk: Desk, key_id: str) -> Caller:
    """Whoever holds the key. InvalidRequest for one that does not work."""
    if not key_id:
        raise InvalidRequest("choose the key that pays for the batch", param="key")
    try:
        return await desk.gateway.authenticator.caller_of(key_id[:80])
    except Unauthenticated as error:
        raise InvalidRequest(
            f"the key {key_id[:80]!r} does not work: {error}", param="key"
        ) from None


async def take_file(desk: Desk, request: AnyRequest, key_id: str, filename: str) -> FileTaken:
    """The body of a request as a file of the key's tenant, checked line by line while it comes."""
    lane = lane_of(desk)
    caller = await caller_of(desk, key_id)
    parts = _paced(request)
    row = await file_handlers.take_in(
        lane, caller, parts, filename=filename, keep_s=float(KEEP_S_MIN)
    )
    return taken(row)


async def _paced(request: AnyRequest) -> AsyncIterator[bytes]:
    """A body that drips holds a place no longer than one of the API would."""
    loop = asyncio.get_running_loop()
    began_s, size = loop.time(), 0
    stream = request.stream()
    while True:
        earned_s = min(BODY_WAIT_S + size / BODY_BYTES_PER_S_MIN, UPLOAD_S_MAX)
        try:
            async with asyncio.timeout_at(began_s + earned_s):
                part = await anext(stream, None)
        except TimeoutError:
            raise RequestTimeout(f"the file arrived too slowly: {size} bytes so far") from None
        if part is None:
            return
        size += len(part)
        if part:
            yield part


def taken(row: FileRow) -> FileTaken:
    values = {name: getattr(row, name) for name in FileTaken.__struct_fields__}
    return FileTaken(**values)


async def plan(desk: Desk, wanted: BatchWanted) -> BatchPlanned:
    """Nothing is written and nothing spent."""
    lane = lane_of(desk)
    caller = await caller_of(desk, wanted.key)
    file = await file_handlers.find(lane, caller, wanted.file[:80])
    wish = wish_of(file, _asked(wanted))
    row, _, planned = await service.planned_batch(lane, caller, wish, file, dialect=DIALECT)
    return BatchPlanned(
        file=taken(file),
        url=URL_OF[Surface(row.surface)],
        plan=msgspec.convert(planned.shown, Plan),
        is_feasible=planned.is_feasible,
        refusal=planned.refusal or None,
        warning=await service.budget_warning(lane, caller, str(planned.shown["cost_usd"])) or None,
        deadline_at=row.deadline_at,
    )


async def submit(desk: Desk, wanted: BatchWanted, *, actor: str) -> BatchRow:
    """As POST /v1/batches by the key's holder; its file stays as long as any other's."""
    lane = lane_of(desk)
    caller = await caller_of(desk, wanted.key)
    file = await file_handlers.find(lane, caller, wanted.file[:80])
    wish = wish_of(file, _asked(wanted))
    row = await service.create(lane, caller, wish, file, dialect=DIALECT, actor=actor)
    expires_at = file.created_at + KEEP_S
    if file.expires_at is not None and file.expires_at < expires_at:
        async with desk.gateway.store.begin() as connection:
            await keep_until(
                connection, row.tenant_id, file.id, expires_at=expires_at, now=row.created_at
            )
    return row


def _asked(wanted: BatchWanted) -> CreateBody:
    return CreateBody(
        input_file_id=wanted.file,
        completion_window=wanted.completion_window.strip() or WINDOW,
        max_cost=(wanted.max_cost_usd or "").strip() or None,
    )


async def discard(desk: Desk, key_id: str, file_id: str) -> None:
    """A file that was uploaded for a plan. Conflict where a batch reads it."""
    lane = lane_of(desk)
    caller = await caller_of(desk, key_id)
    file = await file_handlers.find(lane, caller, file_id[:80])
    async with desk.gateway.store.begin() as connection:
        if await is_in_use(connection, caller.tenant_id, file.id):
            raise Conflict(f"a batch still reads {file.id}", code="file_in_use")
        await mark_deleted(connection, caller.tenant_id, file.id, now=desk.gateway.wall_clock())
    await drop_objects(lane.storage, file.storage_key)


async def cancel(desk: Desk, row: BatchRow, *, actor: str) -> None:
    await service.stop(lane_of(desk), row, actor=actor)


async def download(
    desk: Desk, row: BatchRow, kind: str, *, actor: str
) -> tuple[FileRow, AsyncIterator[bytes]]:
    """
    A batch's answers, which belong to the holder of its key.

    Whoever may make a key for a tenant could fetch them by the API, so operators may; that they
    did is in the audit log before the first byte leaves.
    """
    if kind not in DOWNLOADS:
        raise NotFound(f"there is no file {kind[:40]!r} of a batch; use {', '.join(DOWNLOADS)}")
    lane = lane_of(desk)
    file_id = row.output_file_id if kind == "output" else row.error_file_id
    now = desk.gateway.wall_clock()
    async with desk.gateway.store.read() as connection:
        file = await find_file(connection, row.tenant_id, file_id, now=now) if file_id else None
    if file is None:
        raise NotFound(f"{row.id} has no {kind} file, or it is no longer kept")
    parts = lane.storage.read(file.storage_key)
    try:
        first = await anext(parts, b"")
    except FileNotFoundError:
        raise NotFound(f"the content of {file.id} is gone") from None
    event = AuditEvent(
        tenant_id=row.tenant_id,
        at=now,
        actor=actor,
        action="batch.download",
        subject=row.id,
        detail={"file": file.id, "kind": kind, "bytes": file.num_bytes},
    )
    async with desk.gateway.store.begin() as connection:
        await append_events(connection, [event])
    return file, _whole(first, parts)


async def _whole(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part
