"""`/v1/messages/batches`, Anthropic's form, on the same files, lines and worker."""

from __future__ import annotations

from gateway.api.exchange import Exchange
from gateway.batch import file_handlers, service
from gateway.batch.array_splitter import ArraySplitter, NotThatArray
from gateway.batch.batch_objects import anthropic_json
from gateway.batch.creating import Wish
from gateway.batch.file_handlers import (
    UPLOAD_S_MAX,
    keep_file,
    new_file,
    refuse_over_quota,
    send_object,
)
from gateway.batch.http import Query, answer_json
from gateway.batch.intake import FILE_BYTES_MAX, BadBatchFile, FileIndex, Intake, taking_in
from gateway.batch.lane import BatchLane, new_id
from gateway.core import Caller
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.store.batches import PAGE_ROWS_MAX, BatchRow, LineCounts, find_batch, list_batches
from gateway.store.files import FileRow, mark_deleted
from gateway.wire.pieces import Surface
from gateway.wire.rawjson import WireFormatError, parse_members

DIALECT = "anthropic"
WINDOW, WINDOW_S = "24h", 86_400.0
BODY_BYTES_MAX = 64 * 1024
_NEWLINES = bytes.maketrans(b"\r\n", b"  ")


async def create(lane: BatchLane, exchange: Exchange, _id: str) -> None:
    """The requests become a file of lines while they arrive; nothing stays of a bad one."""
    gateway = lane.gateway
    caller = await gateway.authenticate(exchange.headers)
    await refuse_over_quota(lane, caller)
    file = await _take_in(lane, exchange, caller)
    wish = Wish(surface=Surface.MESSAGES, completion_window=WINDOW, window_s=WINDOW_S)
    try:
        row = await service.create(lane, caller, wish, file, dialect=DIALECT)
    except BaseException:
        async with gateway.store.begin() as connection:
            await mark_deleted(connection, caller.tenant_id, file.id, now=gateway.wall_clock())
        raise
    await answer_json(exchange, _shown(exchange, row, LineCounts(by_state={})))


async def _take_in(lane: BatchLane, exchange: Exchange, caller: Caller) -> FileRow:
    file_id = new_id("file-")
    gateway = lane.gateway
    line_bytes_max = gateway.policy().limits.body_bytes_max
    async with taking_in(lane.storage, file_id, line_bytes_max=line_bytes_max) as intake:
        index = await _read_requests(exchange, intake, line_bytes_max)
    keep_s = file_handlers.KEEP_S
    row = new_file(lane, caller, file_id, intake, filename="requests.jsonl", keep_s=keep_s)
    await keep_file(lane, row, index)
    return row


async def _read_requests(exchange: Exchange, intake: Intake, line_bytes_max: int) -> FileIndex:
    splitter = ArraySplitter("requests", line_bytes_max)
    parts = exchange.body_parts(FILE_BYTES_MAX, total_s_max=UPLOAD_S_MAX)
    place = 0
    try:
        async for part in parts:
            for element in splitter.feed(part):
                await intake.feed(_line(element, place))
                place += 1
        splitter.finish()
        return intake.finish()
    except (NotThatArray, WireFormatError, BadBatchFile) as error:
        async for _ in parts:  # whoever still sends would not see the answer
            pass
        if isinstance(error, BadBatchFile):
            raise
        where = f"requests[{place}]: " if isinstance(error, WireFormatError) else ""
        raise InvalidRequest(f"{where}{error}", param="requests") from None


def _line(element: bytes, place: int) -> bytes:
    """An element in the form of a batch file's line; its params stay as they are, on one line."""
    members = parse_members(element)
    custom_id, params = members.raw("custom_id"), members.raw("params")
    if custom_id is None or params is None:
        missing = "custom_id" if custom_id is None else "params"
        raise InvalidRequest(
            f"requests[{place}].{missing} is missing", param=f"requests.{place}.{missing}"
        )
    parts = (b'{"custom_id":', custom_id, b',"method":"POST","url":"/v1/messages","body":', params)
    # Line ends can only be blanks between values: in a string they are written as escapes.
    return b"".join(parts).translate(_NEWLINES) + b"}\n"


async def show(lane: BatchLane, exchange: Exchange, batch_id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    found = await service.find(lane, caller, batch_id, dialect=DIALECT)
    await answer_json(exchange, _shown(exchange, *found))


async def listing(lane: BatchLane, exchange: Exchange, _id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    query = Query(exchange.query)
    limit = query.whole("limit", 20, PAGE_ROWS_MAX)
    marks: dict[str, BatchRow] = {}
    async with lane.gateway.store.read() as connection:
        for name, mark in (("after", "after_id"), ("before", "before_id")):
            wanted = query.identifier(mark)
            if wanted:
                found = await find_batch(connection, caller.tenant_id, wanted)
                if found is None:
                    raise NotFound(f"there is no batch {wanted!r} of yours to list {name}")
                marks[name] = found
        rows = await list_batches(
            connection, caller.tenant_id, limit=limit + 1, dialect=DIALECT, **marks
        )
    has_more = len(rows) > limit
    # Before a mark the row too many is the newest of them, which stands first.
    page = rows[-limit:] if "before" in marks else rows[:limit]
    shown = [_shown(exchange, *each) for each in await service.with_counts(lane, page)]
    await answer_json(
        exchange,
        {
            "data": shown,
            "has_more": has_more,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
        },
    )


async def cancel(lane: BatchLane, exchange: Exchange, batch_id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    await exchange.read_body(BODY_BYTES_MAX)
    found = await service.cancel(lane, caller, batch_id, dialect=DIALECT)
    await answer_json(exchange, _shown(exchange, *found))


async def results(lane: BatchLane, exchange: Exchange, batch_id: str) -> None:
    """JSON lines, one a request, in no order that one may rely on."""
    caller = await lane.gateway.authenticate(exchange.headers)
    row, _ = await service.find(lane, caller, batch_id, dialect=DIALECT)
    if not row.is_ended or not row.output_file_id:
        raise NotFound(f"{batch_id} has no results yet; its state is {row.state}")
    file = await file_handlers.find(lane, caller, row.output_file_id)
    await send_object(lane, exchange, file, b"application/x-jsonl")


async def delete(lane: BatchLane, exchange: Exchange, batch_id: str) -> None:
    """Its files go; the batch itself stays in the books."""
    gateway = lane.gateway
    caller = await gateway.authenticate(exchange.headers)
    row, _ = await service.find(lane, caller, batch_id, dialect=DIALECT)
    if not row.is_ended:
        raise Conflict(f"{batch_id} has not ended; cancel it first")
    async with gateway.store.begin() as connection:
        for file_id in (row.input_file_id, row.output_file_id):
            await mark_deleted(connection, caller.tenant_id, file_id, now=gateway.wall_clock())
    await answer_json(exchange, {"id": row.id, "type": "message_batch_deleted"})


def _shown(exchange: Exchange, row: BatchRow, counts: LineCounts) -> dict[str, object]:
    url = f"{exchange.base_url}/v1/messages/batches/{row.id}/results"
    return anthropic_json(row, counts, results_url=url)
