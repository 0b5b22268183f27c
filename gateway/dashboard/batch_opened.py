"""One batch opened: batches at providers, errors by kind, lines, files and what happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batch.lane import BatchLane
from gateway.batch.line_check import LineProblem
from gateway.core import dollars
from gateway.dashboard.batch_data import BatchShown, Plan
from gateway.dashboard.batch_queries import (
    LINE_ROWS,
    FailedLine,
    LineRow,
    failed_lines,
    list_lines,
    natives_of,
)
from gateway.dashboard.page import Desk
from gateway.errors import ServiceError
from gateway.store.audit import list_all_events
from gateway.store.batches import BatchRow
from gateway.store.files import FileRow, find_file
from gateway.store.native_batches import NativeRow

MESSAGE_CHARS_MAX = 300
ERROR_BYTES_MAX = 64 * 1024  # read of an error file for what its lines say
EVENTS_MAX = 50


class NativeShown(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that a provider holds or held for us."""

    id: str
    endpoint_id: str
    provider_batch_id: str
    state: str
    num_lines: int
    error: str
    submitted_at: float | None
    ended_at: float | None


class FailedShown(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a kind of error."""

    line_no: int
    custom_id: str
    request_id: str


class ErrorKind(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that came to nothing in one way; `lines` are the first of them."""

    state: str
    status_code: int
    code: str
    message: str | None  # the provider's words of one line; null for viewers, or where it is gone
    num_lines: int
    lines: list[FailedShown]


class LineShown(msgspec.Struct, frozen=True, kw_only=True):
    """One line, without its text."""

    line_no: int
    custom_id: str
    state: str
    model: str
    lane: str
    endpoint_id: str
    status_code: int
    num_tries: int
    cost_usd: str
    is_estimated: bool
    request_id: str
    not_before: float | None
    ended_at: float | None


class FileShown(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a batch that is still kept."""

    kind: str  # "input" | "output" | "error"
    id: str
    filename: str
    num_bytes: int
    num_lines: int
    expires_at: float | None


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An instant of a batch's life, or an entry of the audit log about it."""

    at: float
    what: str  # a state, "planned" or the audit log's action
    actor: str = ""


class OpenedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """
    One batch with all that is kept of it.

    Which line moved from which lane to which is not kept: `batch.lanes` is where lines are or were
    answered, `natives` tells of those that were handed to providers, `plan` is the newest.
    """

    batch: BatchShown
    plan: Plan | None
    problems: list[LineProblem]  # why it failed as a whole
    natives: list[NativeShown]
    errors: list[ErrorKind]
    files: list[FileShown]
    history: list[Happened]
    metadata: dict[str, str]


class LinePage(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in the order of the file; `next` is for `after`."""

    lines: list[LineShown]
    next: int | None


async def history_of(connection: AsyncConnection, row: BatchRow) -> list[Happened]:
    """Its states and the audit log's entries about it, in the order of time."""
    events = await list_all_events(connection, subject=row.id, limit=EVENTS_MAX)
    told = [Happened(at=each.at, what=each.action, actor=each.actor) for each in events]
    return sorted([*life_of(row), *told], key=lambda each: each.at)


async def natives_shown(connection: AsyncConnection, batch_id: str) -> list[NativeShown]:
    return [native_shown(each) for each in await natives_of(connection, batch_id)]


async def files_of(connection: AsyncConnection, row: BatchRow, *, now: float) -> list[FileShown]:
    """Those that are still kept."""
    named = (
        ("input", row.input_file_id),
        ("output", row.output_file_id),
        ("error", row.error_file_id),
    )
    found = []
    for kind, file_id in named:
        file = await find_file(connection, row.tenant_id, file_id, now=now) if file_id else None
        if file is not None:
            found.append(file_shown(kind, file))
    return found


def file_shown(kind: str, file: FileRow) -> FileShown:
    return FileShown(
        kind=kind,
        id=file.id,
        filename=file.filename,
        num_bytes=file.num_bytes,
        num_lines=file.num_lines,
        expires_at=file.expires_at,
    )


async def errors_of(desk: Desk, row: BatchRow, *, may_read: bool) -> list[ErrorKind]:
    """Providers' words may quote a prompt: only who may read the answers sees them."""
    async with desk.gateway.store.read() as connection:
        lines = await failed_lines(connection, row.id)
    messages: dict[str, str] = {}
    if may_read and lines and row.error_file_id and desk.batch is not None:
        messages = await _messages(desk.batch, row)
    return error_kinds(lines, messages, may_read=may_read)


async def _messages(lane: BatchLane, row: BatchRow) -> dict[str, str]:
    """By custom_id, from the beginning of the error file."""
    now = lane.gateway.wall_clock()
    async with lane.gateway.store.read() as connection:
        file = await find_file(connection, row.tenant_id, row.error_file_id, now=now)
    if file is None:
        return {}
    try:
        size = min(file.num_bytes, ERROR_BYTES_MAX)
        begin = await lane.storage.read_range(file.storage_key, 0, size)
    except (FileNotFoundError, ServiceError):
        return {}
    found: dict[str, str] = {}
    for text in begin.splitlines():
        try:
            line: Any = msgspec.json.decode(text)
        except msgspec.DecodeError:  # the last one is cut off
            break
        response = line.get("response") or {}
        message = message_of(response.get("body")) or message_of(line)
        if message:
            found[str(line.get("custom_id"))] = message
    return found


async def lines_shown(
    connection: AsyncConnection, batch_id: str, *, state: str, after: int
) -> LinePage:
    rows = await list_lines(connection, batch_id, state=state, after=after)
    page = [line_shown(row) for row in rows[:LINE_ROWS]]
    return LinePage(lines=page, next=page[-1].line_no if len(rows) > LINE_ROWS else None)


def native_shown(row: NativeRow) -> NativeShown:
    return NativeShown(
        id=row.id,
        endpoint_id=row.endpoint_id,
        provider_batch_id=row.provider_batch_id,
        state=row.state,
        num_lines=row.num_lines,
        error=row.error[:MESSAGE_CHARS_MAX],
        submitted_at=row.submitted_at,
        ended_at=row.ended_at,
    )


def line_shown(row: LineRow) -> LineShown:
    values = msgspec.structs.asdict(row)
    return LineShown(cost_usd=dollars(values.pop("cost_nanos")), **values)


def error_kinds(
    lines: Sequence[FailedLine], messages: dict[str, str], *, may_read: bool
) -> list[ErrorKind]:
    """`messages`: by custom_id, of lines whose answers are in the error file already."""
    kinds: dict[tuple[str, int], list[FailedLine]] = {}
    for each in lines:
        kinds.setdefault((each.state, each.status_code), []).append(each)
    found = []
    for (state, status_code), members in kinds.items():
        told = (_message(each.body) or messages.get(each.custom_id, "") for each in members)
        found.append(
            ErrorKind(
                state=state,
                status_code=status_code,
                code=next((each.error for each in members if each.error), ""),
                message=(next((text for text in told if text), None) if may_read else None),
                num_lines=members[0].num_alike,
                lines=[
                    FailedShown(
                        line_no=each.line_no, custom_id=each.custom_id, request_id=each.request_id
                    )
                    for each in members
                ],
            )
        )
    return found


def message_of(body: object) -> str:
    """`error.message` of an error body in either dialect; "" where there is none."""
    error: Any = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:MESSAGE_CHARS_MAX] if isinstance(message, str) else ""


def _message(body: bytes | None) -> str:
    if not body:
        return ""
    try:
        return message_of(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


LIFE = (
    ("created_at", "validating"),
    ("in_progress_at", "in_progress"),
    ("planned_at", "planned"),
    ("cancelling_at", "cancelling"),
    ("finalizing_at", "finalizing"),
    ("completed_at", "completed"),
    ("failed_at", "failed"),
    ("expired_at", "expired"),
    ("cancelled_at", "cancelled"),
)


def life_of(row: BatchRow) -> list[Happened]:
    return [
        Happened(at=at, what=what) for name, what in LIFE if (at := getattr(row, name)) is not None
    ]
