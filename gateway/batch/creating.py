"""A file and a wish → a batch with its lines, or a refusal that says why and by how much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from gateway.batch.intake import FileIndex
from gateway.batch.line_check import PROBLEMS_MAX, URL_OF, CheckedLine, LineProblem, problems_text
from gateway.core import Caller, Endpoint
from gateway.errors import ApiError, InvalidRequest, PermissionDenied, ServiceError
from gateway.policy.facts import allowed_model
from gateway.policy.policy import Policy
from gateway.policy.units import parse_duration
from gateway.store.audit import AuditEvent, append_events
from gateway.store.batch_tables import batches
from gateway.store.batches import (
    INSERT_ROWS_MAX,
    BatchRow,
    NewLine,
    drop_lines,
    insert_batch,
    insert_lines,
    move_batch,
)
from gateway.store.engine import Store
from gateway.wire.pieces import Surface

WINDOW_S_MIN, WINDOW_S_MAX = 600.0, 7 * 86_400.0
METADATA_PAIRS_MAX, METADATA_KEY_CHARS_MAX, METADATA_VALUE_CHARS_MAX = 16, 64, 512
UNENDED_MAX = 100  # batches of one tenant at a time
OUTPUT_TOKENS_UNKNOWN = 1_024  # of a line that names no limit, before lengths were learned


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks for, in either dialect. No `surface`: whatever the lines ask for."""

    surface: Surface | None = None
    completion_window: str
    window_s: float
    metadata: Mapping[str, str] = {}
    max_cost_nanos: int | None = None


class PlannedLines(msgspec.Struct, frozen=True, kw_only=True):
    """A placement of a new batch: a lane a line, and what is told of it."""

    lanes: Sequence[str]
    not_before: Sequence[float | None]
    shown: dict[str, Any]
    is_feasible: bool = True
    refusal: str = ""  # why not, with figures


class Planner(Protocol):
    async def place_new(
        self, row: BatchRow, lines: Sequence[NewLine], caller: Caller, *, now: float
    ) -> PlannedLines: ...


class Infeasible(InvalidRequest):
    code = "batch_not_feasible"


def checked_window(text: str) -> float:
    """Seconds of a completion window: 24h, or any time from 10 minutes to 7 days."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(str(error), param="completion_window") from None
    if not WINDOW_S_MIN <= seconds <= WINDOW_S_MAX:
        raise InvalidRequest(
            f"completion_window is {text}; use 24h, or a time from 10m to 7d",
            param="completion_window",
        )
    return seconds


def checked_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    found = metadata or {}
    if len(found) > METADATA_PAIRS_MAX:
        raise InvalidRequest(
            f"metadata has {len(found)} pairs; at most {METADATA_PAIRS_MAX} are kept",
            param="metadata",
        )
    for key, value in found.items():
        if len(key) > METADATA_KEY_CHARS_MAX or len(value) > METADATA_VALUE_CHARS_MAX:
            raise InvalidRequest(
                f"metadata {key[:METADATA_KEY_CHARS_MAX]!r} is too long: keys may have "
                f"{METADATA_KEY_CHARS_MAX} characters, values {METADATA_VALUE_CHARS_MAX}",
                param="metadata",
            )
    return found


def check_lines(index: FileIndex, wish: Wish, caller: Caller, policy: Policy) -> None:
    """Every line's model must exist, be the key's to use, and have room. Raises InvalidRequest."""
    if wish.surface is not None and index.surface is not wish.surface:
        raise InvalidRequest(
            f"the file's lines are for {URL_OF[index.surface]}, not {URL_OF[wish.surface]}",
            param="endpoint",
        )
    known: dict[str, tuple[Endpoint, ...] | LineProblem] = {}
    problems: list[LineProblem] = []
    for line in index.lines:
        found = known.get(line.model)
        if found is None:
            found = known[line.model] = _serving(line.model, index.surface, caller, policy)
        problem = _renumbered(found, line) if isinstance(found, LineProblem) else _room(found, line)
        if problem is not None:
            problems.append(problem)
            if len(problems) >= PROBLEMS_MAX:
                break
    if problems:
        raise InvalidRequest(
            f"the batch was not made, and nothing was charged: {problems_text(problems)}",
            param="input_file_id",
            code=problems[0].code,
            detail=[msgspec.structs.asdict(each) for each in problems],
        )


def _serving(
    name: str, surface: Surface, caller: Caller, policy: Policy
) -> tuple[Endpoint, ...] | LineProblem:
    try:
        model = allowed_model(name, caller, policy)
    except PermissionDenied as error:
        return LineProblem(code="permission_denied", message=error.message, param="body.model")
    pool = policy.pools.get(model)
    if pool is None:
        return LineProblem(
            code="model_not_found",
            message=f"there is no model {name[:100]!r}; GET /v1/models lists them",
            param="body.model",
        )
    serving = tuple(each.endpoint for each in pool if surface.value in each.serves)
    if not serving:
        return LineProblem(
            code="model_not_found",
            message=f"the model {name[:100]!r} does not serve {URL_OF[surface]}",
            param="body.model",
        )
    return serving


def _renumbered(problem: LineProblem, line: CheckedLine) -> LineProblem:
    return msgspec.structs.replace(problem, line=line.number)


def _room(endpoints: Sequence[Endpoint], line: CheckedLine) -> LineProblem | None:
    """The largest context among those that serve the model must hold prompt and answer."""
    limits = [each.context_tokens_max for each in endpoints]
    known = [each for each in limits if each is not None]
    wanted = line.prompt_tokens + line.max_tokens
    if len(known) < len(limits) or wanted <= max(known):
        return None
    return LineProblem(
        code="context_length_exceeded",
        message=(
            f"about {line.prompt_tokens} prompt tokens and max_tokens {line.max_tokens} exceed the "
            f"model's context of {max(known)} tokens by {wanted - max(known)}"
        ),
        line=line.number,
        param="body",
    )


def new_lines(
    index: FileIndex, model_of: Callable[[str], str], output_of: Callable[[str, int], int]
) -> list[NewLine]:
    """`output_of`: (model, max_tokens or 0) → tokens expected of an answer."""
    return [
        NewLine(
            line_no=line.number,
            custom_id=line.custom_id,
            offset_bytes=line.offset_bytes,
            num_bytes=line.num_bytes,
            model=model_of(line.model),
            prompt_tokens=line.prompt_tokens,
            output_tokens=output_of(line.model, line.max_tokens) * max(1, line.num_choices),
        )
        for line in index.lines
    ]


async def put_down(
    store: Store,
    row: BatchRow,
    lines: Sequence[NewLine],
    planned: PlannedLines,
    *,
    note: AuditEvent,
) -> BatchRow:
    """Write batch and lines; whoever reads it before the end sees `validating`.

    Where that fails nothing is left of it. `note` is written with the end: both or neither.
    """
    async with store.begin() as connection:
        await _refuse_too_many(connection, row.tenant_id)
        await insert_batch(connection, row)
    try:
        for part in _parts(lines, planned):
            async with store.begin() as connection:
                await insert_lines(connection, row.id, part)
            await asyncio.sleep(0)
        values = {
            "in_progress_at": row.created_at,
            "plan": msgspec.json.encode(planned.shown).decode(),
            "planned_at": row.created_at,
        }
        async with store.begin() as connection:
            if not await move_batch(
                connection, row.id, to="in_progress", out_of=("validating",), values=values
            ):
                raise CreationLost(
                    "the batch took so long to make that it was taken for lost; nothing was "
                    "charged, send it again"
                )
            await append_events(connection, [note])
    except BaseException:
        await asyncio.shield(_take_back(store, row.id))
        raise
    return msgspec.structs.replace(row, state="in_progress", **values)


def _parts(lines: Sequence[NewLine], planned: PlannedLines) -> Iterator[list[NewLine]]:
    for begin in range(0, len(lines), INSERT_ROWS_MAX):
        part = range(begin, min(begin + INSERT_ROWS_MAX, len(lines)))
        yield [
            msgspec.structs.replace(
                lines[place], lane=planned.lanes[place], not_before=planned.not_before[place]
            )
            for place in part
        ]


async def _take_back(store: Store, batch_id: str) -> None:
    async with store.begin() as connection:
        await drop_lines(connection, batch_id)
        await connection.execute(sa.delete(batches).where(batches.c.id == batch_id))


async def fail_half_created(store: Store, batch_id: str, *, now: float) -> None:
    """What a process that died while it created a batch left: no line of it was ever sent."""
    problem = LineProblem(
        code="server_stopped",
        message="the gateway stopped while it made the batch; nothing was charged, send it again",
    )
    values = {"failed_at": now, "errors": msgspec.json.encode([problem]).decode()}
    async with store.begin() as connection:
        if await move_batch(
            connection, batch_id, to="failed", out_of=("validating",), values=values
        ):
            await drop_lines(connection, batch_id)


async def _refuse_too_many(connection: Any, tenant_id: str) -> None:
    query = (
        sa.select(sa.func.count())
        .select_from(batches)
        .where(
            batches.c.tenant_id == tenant_id,
            batches.c.state.in_(("validating", "in_progress", "finalizing", "cancelling")),
        )
    )
    if (await connection.execute(query)).scalar_one() >= UNENDED_MAX:
        raise TooManyBatches(
            f"there are {UNENDED_MAX} batches of yours that have not ended; wait for one, or "
            "cancel one"
        )


class CreationLost(ServiceError):
    status = 503
    code = "creation_lost"


class TooManyBatches(ApiError):
    status = 429
    type = "rate_limit_error"
    code = "too_many_batches"
    should_retry = False
