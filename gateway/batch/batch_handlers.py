"""`/v1/batches`, OpenAI's form: create, show, list and cancel."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import msgspec

from gateway.api.exchange import Exchange
from gateway.batch import file_handlers, service
from gateway.batch.batch_objects import openai_json
from gateway.batch.creating import Wish, checked_metadata, checked_window
from gateway.batch.file_objects import page_json
from gateway.batch.http import Query, answer_json
from gateway.batch.lane import BatchLane
from gateway.batch.line_check import URLS
from gateway.core import NANOS_PER_DOLLAR
from gateway.errors import InvalidRequest, NotFound
from gateway.store.batches import PAGE_ROWS_MAX, find_batch, list_batches
from gateway.store.files import FileRow

DIALECT = "openai"
BODY_BYTES_MAX = 64 * 1024
DOLLARS_MAX = 1_000_000


class CreateBody(msgspec.Struct, kw_only=True):
    """Ours: `max_cost`, dollars that the batch may cost; `plan_only`, to be told and not made."""

    input_file_id: str
    endpoint: str = ""  # "" = the one that the file's lines name
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    max_cost: str | int | float | None = None
    plan_only: bool = False


_CREATE = msgspec.json.Decoder(CreateBody)


async def create(lane: BatchLane, exchange: Exchange, _id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    body = await exchange.read_body(BODY_BYTES_MAX)
    try:
        asked = _CREATE.decode(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the body is not a batch to create: {error}") from None
    file = await file_handlers.find(lane, caller, asked.input_file_id[:80])
    wish = wish_of(file, asked)
    if asked.plan_only:
        _, lines, planned = await service.planned_batch(lane, caller, wish, file, dialect=DIALECT)
        shown = {"lines": len(lines), "is_feasible": planned.is_feasible, **planned.shown}
        warning = await service.budget_warning(lane, caller, str(planned.shown["cost_usd"]))
        told = {"refusal": planned.refusal or None, "warning": warning or None}
        await answer_json(exchange, {"object": "batch.plan", **told, **shown})
        return
    row = await service.create(lane, caller, wish, file, dialect=DIALECT)
    made = openai_json(row)
    made["looprouter"]["warning"] = (
        await service.budget_warning(lane, caller, made["looprouter"]["plan"]["cost_usd"]) or None
    )
    await answer_json(exchange, made)


def wish_of(file: FileRow, asked: CreateBody) -> Wish:
    """What is asked for, checked. Raises InvalidRequest."""
    surface = URLS.get(asked.endpoint)
    if asked.endpoint and surface is None:
        raise InvalidRequest(
            f"endpoint is {asked.endpoint[:80]!r}; use one of {', '.join(URLS)}", param="endpoint"
        )
    if file.purpose != "batch":
        raise InvalidRequest(
            f"{file.id} has the purpose {file.purpose}; a batch needs one uploaded for batch",
            param="input_file_id",
        )
    return Wish(
        surface=surface,
        completion_window=asked.completion_window,
        window_s=checked_window(asked.completion_window),
        metadata=checked_metadata(asked.metadata),
        max_cost_nanos=checked_dollars(asked.max_cost, "max_cost"),
    )


def checked_dollars(amount: str | int | float | None, param: str) -> int | None:
    """Nano-dollars of an amount as people write it; None stays None."""
    if amount is None:
        return None
    try:
        value = Decimal(str(amount))
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or not 0 <= value <= DOLLARS_MAX:
        raise InvalidRequest(
            f"{param} is {str(amount)[:40]!r}; give dollars from 0 to {DOLLARS_MAX}", param=param
        )
    return int(value * NANOS_PER_DOLLAR)


async def show(lane: BatchLane, exchange: Exchange, batch_id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    await answer_json(exchange, openai_json(*await service.find(lane, caller, batch_id)))


async def listing(lane: BatchLane, exchange: Exchange, _id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    query = Query(exchange.query)
    limit, after_id = query.whole("limit", 20, PAGE_ROWS_MAX), query.identifier("after")
    async with lane.gateway.store.read() as connection:
        after = None
        if after_id:
            after = await find_batch(connection, caller.tenant_id, after_id)
            if after is None:
                raise NotFound(f"there is no batch {after_id!r} of yours to list after")
        rows = await list_batches(
            connection, caller.tenant_id, limit=limit + 1, dialect=DIALECT, after=after
        )
    found = await service.with_counts(lane, rows[:limit])
    shown = [openai_json(row, counts) for row, counts in found]
    await answer_json(exchange, page_json(shown, has_more=len(rows) > limit))


async def cancel(lane: BatchLane, exchange: Exchange, batch_id: str) -> None:
    caller = await lane.gateway.authenticate(exchange.headers)
    await exchange.read_body(BODY_BYTES_MAX)
    await answer_json(exchange, openai_json(*await service.cancel(lane, caller, batch_id)))
