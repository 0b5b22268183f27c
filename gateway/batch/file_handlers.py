"""`/v1/files`: upload, list, show, read and delete."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import multipart
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from gateway.api.exchange import Exchange
from gateway.batch.file_objects import file_json, page_json
from gateway.batch.http import Query, answer_json
from gateway.batch.intake import (
    FILE_BYTES_MAX,
    BadBatchFile,
    FileIndex,
    Intake,
    index_key,
    taking_in,
    write_index,
)
from gateway.batch.lane import BatchLane, new_id
from gateway.batch.storage import FileStorage
from gateway.core import Caller
from gateway.errors import Conflict, Draining, InvalidRequest, NotFound, RateLimited
from gateway.store.files import (
    PAGE_ROWS_MAX,
    FileRow,
    find_file,
    insert_file,
    is_in_use,
    list_files,
    mark_deleted,
    usage_of,
)

PURPOSES = ("batch",)
ENVELOPE_BYTES_MAX = 64 * 1024  # of a form beside the file
FIELD_BYTES_MAX = 1_024
UPLOAD_S_MAX = 1_800.0
KEEP_S = 30 * 86_400.0
KEEP_S_MIN, KEEP_S_MAX = 3_600, 2_592_000
TENANT_FILES_MAX = 1_000
TENANT_BYTES_MAX = 20 * 1024**3
FILENAME_CHARS_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(slots=True)
class _Form:
    """What a form said beside its file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    has_file: bool = False

    def check_purpose(self) -> None:
        purpose = self.fields.get("purpose", "")
        if purpose not in PURPOSES:
            raise InvalidRequest(
                f"purpose is {purpose[:40]!r}; this gateway keeps files for {PURPOSES[0]!r} only",
                param="purpose",
            )

    def keep_s(self) -> float:
        text = self.fields.get("expires_after[seconds]")
        if text is None:
            return KEEP_S
        if self.fields.get("expires_after[anchor]", "created_at") != "created_at":
            raise InvalidRequest(
                "expires_after counts from created_at only", param="expires_after[anchor]"
            )
        if not re.fullmatch(r"\d{1,9}", text) or not KEEP_S_MIN <= int(text) <= KEEP_S_MAX:
            raise InvalidRequest(
                f"expires_after[seconds] must be {KEEP_S_MIN} to {KEEP_S_MAX}",
                param="expires_after[seconds]",
            )
        return float(text)


async def upload(lane: BatchLane, exchange: Exchange, _id: str) -> None:
    """A multipart form with `purpose` and `file`, streamed; nothing is kept of a bad one."""
    gateway = lane.gateway
    if gateway.is_draining:
        raise Draining("the gateway is shutting down; send the request again", retry_after_s=2)
    caller = await gateway.authenticate(exchange.headers)
    await refuse_over_quota(lane, caller)
    file_id = new_id("file-")
    form = _Form()
    line_bytes_max = gateway.policy().limits.body_bytes_max
    async with taking_in(lane.storage, file_id, line_bytes_max=line_bytes_max) as intake:
        await _read_form(exchange, form, intake)
        form.check_purpose()
        keep_s = form.keep_s()
        if not form.has_file:
            raise InvalidRequest("the form has no file part named `file`", param="file")
        index = intake.finish()
    filename = form.filename or f"{file_id}.jsonl"
    row = new_file(lane, caller, file_id, intake, filename=filename, keep_s=keep_s)
    await keep_file(lane, row, index)
    await answer_json(exchange, file_json(row))


async def take_in(
    lane: BatchLane,
    caller: Caller,
    parts: AsyncIterator[bytes],
    *,
    filename: str,
    keep_s: float = KEEP_S,
) -> FileRow:
    """A batch file that comes as bare lines; checked and kept as an upload is."""
    if lane.gateway.is_draining:
        raise Draining("the gateway is shutting down; send the file again", retry_after_s=2)
    await refuse_over_quota(lane, caller)
    file_id = new_id("file-")
    line_bytes_max = lane.gateway.policy().limits.body_bytes_max
    async with taking_in(lane.storage, file_id, line_bytes_max=line_bytes_max) as intake:
        try:
            async for part in parts:
                await intake.feed(part)
            index = intake.finish()
        except BadBatchFile:
            async for _ in parts:  # whoever still sends would not see the answer
                pass
            raise
    filename = _CONTROL.sub("", filename)[:FILENAME_CHARS_MAX] or f"{file_id}.jsonl"
    row = new_file(lane, caller, file_id, intake, filename=filename, keep_s=keep_s)
    await keep_file(lane, row, index)
    return row


def new_file(
    lane: BatchLane, caller: Caller, file_id: str, intake: Intake, *, filename: str, keep_s: float
) -> FileRow:
    """The row of a file that was taken in whole."""
    now = lane.gateway.wall_clock()
    return FileRow(
        id=file_id,
        tenant_id=caller.tenant_id,
        key_id=caller.key_id,
        filename=filename,
        purpose="batch",
        num_bytes=intake.num_bytes,
        num_lines=len(intake.lines),
        sha256=intake.sha256,
        storage_key=file_id,
        created_at=now,
        expires_at=now + keep_s,
    )


async def keep_file(lane: BatchLane, row: FileRow, index: FileIndex) -> None:
    """Index and row of a file whose bytes are written; where that fails, none of them stay."""
    try:
        await write_index(lane.storage, row.storage_key, index)
        async with lane.gateway.store.begin() as connection:
            await insert_file(connection, row)
    except BaseException:
        await asyncio.shield(drop_objects(lane.storage, row.storage_key))
        raise


async def drop_objects(storage: FileStorage, key: str) -> None:
    await storage.delete(key)
    await storage.delete(index_key(key))


async def _read_form(exchange: Exchange, form: _Form, intake: Intake) -> None:
    boundary = _boundary(exchange.headers.get("content-type", ""))
    parser = PushMultipartParser(
        boundary, max_segment_size=FILE_BYTES_MAX + 1, max_segment_count=16, strict=False
    )
    parts = exchange.body_parts(FILE_BYTES_MAX + ENVELOPE_BYTES_MAX, total_s_max=UPLOAD_S_MAX)
    try:
        with parser:
            async for name, data in _events(parser, parts, form):
                if name == "file":
                    await intake.feed(data)
                elif len(form.fields.get(name, "")) + len(data) > FIELD_BYTES_MAX:
                    raise InvalidRequest(f"the form field {name[:40]!r} is too long", param=name)
                else:
                    form.fields[name] = form.fields.get(name, "") + data.decode(errors="replace")
    except MultipartError as error:
        raise InvalidRequest(f"the form is not valid multipart/form-data: {error}") from None
    except BadBatchFile:
        # Whoever is still sending would take a closed connection for the answer.
        async for _ in parts:
            pass
        raise


async def _events(
    parser: PushMultipartParser, parts: AsyncIterator[bytes], form: _Form
) -> AsyncIterator[tuple[str, bytes]]:
    """(name of the part, a piece of it)."""
    name = ""
    async for part in parts:
        for event in parser.parse(part):
            if isinstance(event, MultipartSegment):
                name = event.name or ""
                if name == "file":
                    if form.has_file:
                        raise InvalidRequest("the form has two files; send one", param="file")
                    form.has_file = True
                    form.filename = _CONTROL.sub("", event.filename or "")[:FILENAME_CHARS_MAX]
            elif event is not None:
                yield name, bytes(event)
    parser.close()


def _boundary(content_type: str) -> str:
    kind, options = multipart.parse_options_header(content_type)
    boundary = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise InvalidRequest(
            "send the file as multipart/form-data with the fields `purpose` and `file`"
        )
    return str(boundary)


async def refuse_over_quota(lane: BatchLane, caller: Caller) -> None:
    """Raises RateLimited where the tenant has as many files as one may have."""
    async with lane.gateway.store.read() as connection:
        count, num_bytes = await usage_of(
            connection, caller.tenant_id, now=lane.gateway.wall_clock()
        )
    if count >= TENANT_FILES_MAX or num_bytes >= TENANT_BYTES_MAX:
        raise RateLimited(
            f"{count} files with {num_bytes} bytes are kept for you, at most {TENANT_FILES_MAX} "
            f"and {TENANT_BYTES_MAX} bytes may be; delete some",
            code="file_quota_exceeded",
        )


async def listing(lane: BatchLane, exchange: Exchange, _id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    query = Query(exchange.query)
    limit = query.whole("limit", 1_000, PAGE_ROWS_MAX)
    is_ascending = query.text("order", ("asc", "desc")) == "asc"
    after_id, now = query.identifier("after"), lane.gateway.wall_clock()
    async with lane.gateway.store.read() as connection:
        after = None
        if after_id:
            after = await find_file(connection, caller.tenant_id, after_id, now=now)
            if after is None:
                raise NotFound(f"there is no file {after_id!r} of yours to list after")
        rows = await list_files(
            connection,
            caller.tenant_id,
            now=now,
            limit=min(limit + 1, PAGE_ROWS_MAX),
            after=after,
            purpose=query.text("purpose"),
            is_ascending=is_ascending,
        )
    shown = [file_json(row) for row in rows[:limit]]
    await answer_json(exchange, page_json(shown, has_more=len(rows) > limit))


async def find(lane: BatchLane, caller: Caller, file_id: str) -> FileRow:
    """Raises NotFound; another tenant's file looks like none."""
    async with lane.gateway.store.read() as connection:
        row = await find_file(connection, caller.tenant_id, file_id, now=lane.gateway.wall_clock())
    if row is None:
        raise NotFound(f"there is no file {file_id!r} of yours")
    return row


async def show(lane: BatchLane, exchange: Exchange, file_id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    await answer_json(exchange, file_json(await find(lane, caller, file_id)))


async def content(lane: BatchLane, exchange: Exchange, file_id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    row = await find(lane, caller, file_id)
    await send_object(lane, exchange, row, b"application/octet-stream")


async def send_object(
    lane: BatchLane, exchange: Exchange, row: FileRow, content_type: bytes
) -> None:
    """The bytes of a file, part by part."""
    parts = lane.storage.read(row.storage_key)
    try:
        first = await anext(parts, b"")
    except FileNotFoundError:
        raise NotFound(f"the content of {row.id} is gone") from None
    length = str(row.num_bytes).encode()
    await exchange.start(200, [(b"content-type", content_type), (b"content-length", length)])
    await exchange.send(first)
    async for part in parts:
        if exchange.gone.is_set():
            break
        await exchange.send(part)
    await exchange.finish()


async def delete(lane: BatchLane, exchange: Exchange, file_id: str) -> None:
    gateway = lane.gateway
    caller = await gateway.authenticate(exchange.headers)
    row = await find(lane, caller, file_id)
    async with gateway.store.begin() as connection:
        if await is_in_use(connection, caller.tenant_id, file_id):
            raise Conflict(
                f"a batch still reads {file_id}; cancel the batch or wait for its end",
                code="file_in_use",
            )
        await mark_deleted(connection, caller.tenant_id, row.id, now=gateway.wall_clock())
    await answer_json(exchange, {"id": row.id, "object": "file", "deleted": True})
