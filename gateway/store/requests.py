"""The request log: written in batches, read by tenant; holds what repeats a decision exactly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import Candidate, EndpointLive, FleetSnapshot, FleetView, RequestFacts
from gateway.store.rollups import request_sums
from gateway.store.tables import requests, snapshots
from gateway.store.upsert import insert_into
from gateway.wire.usage import Usage

PAGE_ROWS_MAX = 1_000
IDS_PER_QUERY_MAX = 500
ERROR_CHARS_MAX = 500
SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024


class StoredView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a FleetView that changes with each request; the rest is the snapshot."""

    live: dict[str, EndpointLive] = {}
    output_tokens_expected: float = 200.0
    output_tokens_n: float = 0.0
    output_tokens_longest: float = 0.0
    exploration_credits: float = 0.0


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request: what was asked and decided, and what came of it. Never its text."""

    id: str
    tenant_id: str
    team_id: str
    key_id: str
    created_at: float  # unix seconds
    surface: str
    model: str  # public name
    lane: str
    stream: bool
    facts: RequestFacts | None = None
    policy_version: str = ""
    route: str = ""
    preference: str = ""
    candidates: tuple[Candidate, ...] = ()
    live: StoredView | None = None
    seed: int = 0
    snapshot_id: str = ""
    endpoint_id: str = ""
    num_attempts: int = 0
    status: int = 0
    error: str = ""
    ttft_any_ms: float | None = None
    ttft_visible_ms: float | None = None
    duration_ms: float | None = None
    overhead_us: float | None = None
    usage: Usage | None = None
    is_estimated: bool = False
    cost_nanos: int = 0
    billed_nanos: int = 0


def stored_view(view: FleetView) -> StoredView:
    """What of `view` must be kept with the request."""
    return StoredView(
        live=view.live,
        output_tokens_expected=view.output_tokens_expected,
        output_tokens_n=view.output_tokens_n,
        output_tokens_longest=view.output_tokens_longest,
        exploration_credits=view.exploration_credits,
    )


def view_of(row: RequestRow, snapshot: FleetSnapshot) -> FleetView:
    """The FleetView that the request was decided on."""
    assert row.snapshot_id == snapshot.id
    kept = row.live if row.live is not None else StoredView()
    return FleetView(
        snapshot=snapshot,
        live=kept.live,
        output_tokens_expected=kept.output_tokens_expected,
        output_tokens_n=kept.output_tokens_n,
        output_tokens_longest=kept.output_tokens_longest,
        exploration_credits=kept.exploration_credits,
    )


def has_failed(status: int, error: str) -> bool:
    """Ours or the endpoints' fault, told as a status or inside a stream that had begun."""
    return status >= 500 or (200 <= status < 300 and bool(error))


async def insert_requests(connection: AsyncConnection, rows: Sequence[RequestRow]) -> None:
    """
    Add rows of any tenants, and sum them up; one that is there already stays and counts once, so
    a batch can be repeated. Only one process writes the rows of a request.
    """
    known: set[str] = set()
    for begin in range(0, len(rows), IDS_PER_QUERY_MAX):
        ids = [row.id for row in rows[begin : begin + IDS_PER_QUERY_MAX]]
        query = sa.select(requests.c.id).where(requests.c.id.in_(ids))
        known.update((await connection.execute(query)).scalars())
    new = {row.id: row for row in rows if row.id not in known}
    if not new:
        return
    written = [_written(row) for row in new.values()]
    await connection.execute(_insert(connection, requests), written)
    sums = request_sums()
    for row in new.values():
        names = (row.tenant_id, row.endpoint_id, row.model, row.lane)
        sums.add(row.created_at, names, _summed(row))
    await sums.write(connection)


def _summed(row: RequestRow) -> tuple[int, ...]:
    """In the order of REQUEST_SUMS."""
    return (
        1,
        int(400 <= row.status < 500),
        int(has_failed(row.status, row.error)),
        int(row.ttft_any_ms is not None),
        round((row.ttft_any_ms or 0.0) * 1000),
        round((row.duration_ms or 0.0) * 1000),
    )


async def insert_snapshots(connection: AsyncConnection, found: Sequence[FleetSnapshot]) -> None:
    """Keep what decisions were taken on; one that is there already stays."""
    if found:
        await connection.execute(
            _insert(connection, snapshots),
            [
                {"id": s.id, "at": s.at_unix_s, "body": zlib.compress(_JSON.encode(s), 3)}
                for s in found
            ],
        )


async def find_request(
    connection: AsyncConnection, tenant_id: str, request_id: str
) -> RequestRow | None:
    query = sa.select(requests).where(
        requests.c.tenant_id == tenant_id, requests.c.id == request_id
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    return _read(row) if row else None


async def list_requests(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    key_id: str | None = None,
    limit: int = 100,
    before: tuple[float, str] | None = None,
) -> list[RequestRow]:
    """Newest first; `before` = (created_at, id) of the last row of the page before."""
    query = sa.select(requests).where(requests.c.tenant_id == tenant_id)
    if key_id is not None:
        query = query.where(requests.c.key_id == key_id)
    if before is not None:
        query = query.where(sa.tuple_(requests.c.created_at, requests.c.id) < sa.tuple_(*before))
    query = query.order_by(requests.c.created_at.desc(), requests.c.id.desc())
    found = await connection.execute(query.limit(min(limit, PAGE_ROWS_MAX)))
    return [_read(row) for row in found.mappings()]


async def list_decided(
    connection: AsyncConnection,
    *,
    since: float,
    limit: int,
    before: tuple[float, str] | None = None,
) -> list[RequestRow]:
    """
    The rows of every tenant that an endpoint was chosen for, newest first: for the operator's own
    tools, never for an answer to a client. `before` pages as in `list_requests`.
    """
    query = sa.select(requests).where(requests.c.created_at >= since, requests.c.snapshot_id != "")
    if before is not None:
        query = query.where(sa.tuple_(requests.c.created_at, requests.c.id) < sa.tuple_(*before))
    query = query.order_by(requests.c.created_at.desc(), requests.c.id.desc())
    found = await connection.execute(query.limit(min(limit, PAGE_ROWS_MAX)))
    return [_read(row) for row in found.mappings()]


async def find_snapshot(connection: AsyncConnection, snapshot_id: str) -> FleetSnapshot | None:
    """The snapshot of an id; None once it is older than what is kept. Belongs to no tenant."""
    query = sa.select(snapshots.c.body).where(snapshots.c.id == snapshot_id)
    body = (await connection.execute(query)).scalar_one_or_none()
    if body is None:
        return None
    return _SNAPSHOT.decode(zlib.decompressobj().decompress(body, SNAPSHOT_BYTES_MAX))


async def purge_snapshots(connection: AsyncConnection, *, older_than: float, rows: int) -> int:
    """Delete the oldest `rows` from before an instant; returns how many there were."""
    return await _purge(connection, snapshots, snapshots.c.at, older_than, rows)


async def purge_requests(connection: AsyncConnection, *, older_than: float, rows: int) -> int:
    """Delete the oldest `rows` from before an instant; returns how many there were."""
    return await _purge(connection, requests, requests.c.created_at, older_than, rows)


async def _purge(
    connection: AsyncConnection,
    table: sa.Table,
    at: sa.ColumnElement[float],
    limit: float,
    rows: int,
) -> int:
    # In slices: one long delete would hold up every other writer of an SQLite file.
    oldest = sa.select(table.c.id).where(at < limit).order_by(at).limit(rows)
    return (await connection.execute(table.delete().where(table.c.id.in_(oldest)))).rowcount


_JSON = msgspec.json.Encoder()
_SNAPSHOT = msgspec.json.Decoder(FleetSnapshot)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "facts": msgspec.json.Decoder(RequestFacts),
    "candidates": msgspec.json.Decoder(tuple[Candidate, ...]),
    "live": msgspec.json.Decoder(StoredView),
    "usage": msgspec.json.Decoder(Usage),
}


def _written(row: RequestRow) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    for name in _DECODERS:
        values[name] = _JSON.encode(values[name]).decode() if values[name] else ""
    values["seed"] = str(row.seed)
    values["error"] = row.error[:ERROR_CHARS_MAX]
    return values


def _read(found: Any) -> RequestRow:
    values = dict(found)
    for name, decoder in _DECODERS.items():
        text = values[name]
        values[name] = decoder.decode(text) if text else (() if name == "candidates" else None)
    values["seed"] = int(values["seed"] or "0")
    return RequestRow(**values)


def _insert(connection: AsyncConnection, table: sa.Table) -> Any:
    return insert_into(connection, table).on_conflict_do_nothing(index_elements=[table.c.id])
