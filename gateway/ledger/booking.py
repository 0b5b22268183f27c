"""Books journal records into SQL, once: attempts, spent leases and windows, double entries.

A transaction takes a batch of records and moves the holder's applied position past them, so a
batch is in SQL entirely or not at all, and a lost commit answer is settled by that position.
An attempt ends once: the first settle or release wins, whoever brings it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.ledger.bulk import KEY, insert_rows, update_rows
from gateway.ledger.grants import change_window, lock_holder
from gateway.ledger.journal import Position
from gateway.ledger.records import Dropped, Ended, LedgerAlert, Progress, Record, Sent
from gateway.ledger.spend import add_end
from gateway.store.ledger_tables import attempt_leases, attempts, entries, holders, leases
from gateway.store.rollup_tables import SPEND_NAMES
from gateway.store.rollups import Sums, spend_sums
from gateway.wire.usage import BUCKETS, Usage

IDS_PER_QUERY_MAX = 500
_USAGE_COLUMNS = tuple(f"{bucket}_tokens" for bucket in BUCKETS)
_NO_TOKENS = dict.fromkeys(_USAGE_COLUMNS, 0)


@dataclass(slots=True)
class _Change:
    """All that a batch says of one attempt."""

    sent: Sent | None = None
    progress: Usage | None = None
    end: Ended | None = None
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """What an attempt's end must know of it."""

    provider: str
    state: str
    tenant_id: str
    team_id: str
    key_id: str
    endpoint_id: str
    model: str
    lane: str
    at_unix_s: float  # when it was sent


@dataclass(slots=True)
class _Books:
    """The rows that one transaction writes."""

    inserts: list[dict[str, Any]] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    lease_spent: dict[str, int] = field(default_factory=dict)
    alerts: list[LedgerAlert] = field(default_factory=list)
    spend: Sums = field(default_factory=spend_sums)


class UnknownHolder(Exception):
    """The journal's holder is not in this database: it belongs to another one."""


async def apply_records(
    connection: AsyncConnection,
    records: Sequence[Record],
    *,
    holder_id: str,
    start: Position,
    end: Position,
) -> tuple[Position, list[LedgerAlert]]:
    """
    Book `records`, which lie between `start` and `end` of the holder's journal.

    Returns the position that SQL stands at then. When that was not `start` (an earlier commit
    whose answer was lost), nothing is booked and the caller goes on from the position returned.
    """
    holder = await lock_holder(connection, holder_id)
    if holder is None:
        raise UnknownHolder(holder_id)
    applied = Position(holder.applied_file, holder.applied_offset)
    if applied != start:
        return applied, []
    alerts = await _book(connection, _fold(records), holder_id)
    await connection.execute(
        sa.update(holders)
        .where(holders.c.holder_id == holder_id)
        .values(applied_file=end.file_no, applied_offset=end.offset, ended_at=None)
    )
    return end, alerts


async def book_ends(
    connection: AsyncConnection, ends: Iterable[Ended], *, holder_id: str
) -> list[LedgerAlert]:
    """End attempts that SQL knows as sent, without a journal record. The holder is locked."""
    return await _book(connection, {end.attempt_id: _Change(end=end) for end in ends}, holder_id)


def _fold(records: Iterable[Record]) -> dict[str, _Change]:
    changes: dict[str, _Change] = {}
    for record in records:
        if isinstance(record, Sent):
            change = changes.setdefault(record.attempt_id, _Change())
            change.sent = change.sent or record
        elif isinstance(record, Progress):
            changes.setdefault(record.attempt_id, _Change()).progress = record.usage
        elif isinstance(record, Ended | Dropped):
            change = changes.setdefault(record.attempt_id, _Change())
            if change.end is None:
                change.is_released = isinstance(record, Dropped)
                change.end = _released(record) if isinstance(record, Dropped) else record
    return changes


def _released(record: Dropped) -> Ended:
    return Ended(
        attempt_id=record.attempt_id,
        lease_ids=(),
        cost_nanos=0,
        billed_nanos=0,
        overrun_nanos=0,
        waste_nanos=0,
        usage=None,
        price=None,
        is_estimated=False,
        finish="",
        failure=record.reason,
        at_unix_s=record.at_unix_s,
    )


async def _book(
    connection: AsyncConnection, changes: dict[str, _Change], holder_id: str
) -> list[LedgerAlert]:
    known = await _known_attempts(connection, list(changes))
    lease_ids: set[str] = set()
    for change in changes.values():
        lease_ids.update(change.sent.lease_ids if change.sent else ())
        lease_ids.update(change.end.lease_ids if change.end else ())
    lease_rows = await _lease_rows(connection, lease_ids)
    books = _Books()
    for attempt_id, change in changes.items():
        _book_attempt(books, attempt_id, change, known.get(attempt_id), lease_rows, holder_id)
    await _write(connection, books, lease_rows)
    return books.alerts


async def _known_attempts(connection: AsyncConnection, ids: list[str]) -> dict[str, _Known]:
    c = attempts.c
    found: dict[str, _Known] = {}
    for start in range(0, len(ids), IDS_PER_QUERY_MAX):
        some = ids[start : start + IDS_PER_QUERY_MAX]
        query = sa.select(
            c.attempt_id, c.provider, c.state, *(c[name] for name in SPEND_NAMES), c.sent_at
        )
        for attempt_id, *known in await connection.execute(query.where(c.attempt_id.in_(some))):
            found[attempt_id] = _Known(*known)
    return found


async def _lease_rows(connection: AsyncConnection, lease_ids: set[str]) -> dict[str, sa.Row[Any]]:
    found: dict[str, sa.Row[Any]] = {}
    ids = sorted(lease_ids)
    for start in range(0, len(ids), IDS_PER_QUERY_MAX):
        query = sa.select(leases).where(leases.c.id.in_(ids[start : start + IDS_PER_QUERY_MAX]))
        found.update({row.id: row for row in await connection.execute(query)})
    return found


def _book_attempt(
    books: _Books,
    attempt_id: str,
    change: _Change,
    known: _Known | None,
    lease_rows: dict[str, sa.Row[Any]],
    holder_id: str,
) -> None:
    sent, end = change.sent, change.end
    if known is not None and sent is not None:
        books.alerts.append(
            LedgerAlert("attempt_twice", f"attempt {attempt_id} was sent twice", attempt_id)
        )
        return
    if known is None and sent is None:
        if end is not None:
            message = f"attempt {attempt_id} ended but the journal does not say it was sent"
            books.alerts.append(LedgerAlert("attempt_unknown", message, attempt_id, end.cost_nanos))
        return
    if known is not None and known.state != "sent":
        return  # ended before: the first wins
    if end is not None:
        end = _payable(books, end, lease_rows)
        tenant_id = sent.tenant_id if sent is not None else known.tenant_id if known else ""
        provider = sent.provider if sent is not None else known.provider if known else ""
        _enter(books, end, tenant_id, provider, lease_rows)
        if (whose := sent or known) is not None:
            add_end(books.spend, whose, end, is_released=change.is_released)
    if sent is not None:
        row = _sent_row(sent, holder_id)
        if end is not None:
            row |= _end_values(end, change.is_released)
        elif change.progress is not None:
            row |= _token_values(change.progress)
        books.inserts.append(row)
        for lease_id in sent.lease_ids:
            if lease_id in lease_rows:
                books.links.append({"attempt_id": attempt_id, "lease_id": lease_id})
    elif end is not None:
        books.ends.append({KEY: attempt_id, **_end_values(end, change.is_released)})
    elif change.progress is not None:
        books.progress.append({KEY: attempt_id, **_token_values(change.progress)})


def _payable(books: _Books, end: Ended, lease_rows: dict[str, sa.Row[Any]]) -> Ended:
    """Charge the leases; what they cannot bear (our own bug) becomes the operator's overrun."""
    if end.overrun_nanos:
        message = f"attempt {end.attempt_id} cost ${dollars(end.overrun_nanos)} more than was held"
        books.alerts.append(LedgerAlert("overrun", message, end.attempt_id, end.overrun_nanos))
    billed = end.billed_nanos
    if billed == 0:
        return end
    for lease_id in end.lease_ids:
        row = lease_rows.get(lease_id)
        spent = books.lease_spent.get(lease_id, 0)
        if (
            row is None
            or row.state == "closed"
            or row.spent_nanos + spent + billed > (row.granted_nanos)
        ):
            message = f"lease {lease_id} cannot bear ${dollars(billed)} of attempt {end.attempt_id}"
            books.alerts.append(LedgerAlert("lease_short", message, end.attempt_id, billed))
            return msgspec.structs.replace(
                end, billed_nanos=0, overrun_nanos=end.overrun_nanos + billed
            )
    for lease_id in end.lease_ids:
        books.lease_spent[lease_id] = books.lease_spent.get(lease_id, 0) + billed
    return end


def _enter(
    books: _Books,
    end: Ended,
    tenant_id: str,
    provider: str,
    lease_rows: dict[str, sa.Row[Any]],
) -> None:
    """The attempt's one transaction: who paid is debited, the provider is credited."""
    amounts = {
        f"tenant:{tenant_id}": -end.billed_nanos,
        "operator:overrun": -end.overrun_nanos,
        "operator:waste": -end.waste_nanos,
        f"provider:{provider}": end.cost_nanos,
    }
    for lease_id in end.lease_ids if end.billed_nanos else ():
        row = lease_rows[lease_id]
        if row.state == "expired":  # it was booked as spent by nobody known; now it is known
            amounts[f"unattributed:{row.budget_id}"] = -end.billed_nanos
            amounts[f"budget:{row.budget_id}"] = end.billed_nanos
    books.entries.extend(entry_rows(f"attempt:{end.attempt_id}", amounts, end.at_unix_s))


def entry_rows(txn_id: str, amounts: dict[str, int], at: float) -> list[dict[str, Any]]:
    """The entries of one transaction, which must sum to zero; empty amounts are left out."""
    assert sum(amounts.values()) == 0, f"{txn_id} does not balance: {amounts}"
    return [
        {"txn_id": txn_id, "account": account, "amount_nanos": amount, "booked_at": at}
        for account, amount in amounts.items()
        if amount
    ]


def _sent_row(sent: Sent, holder_id: str) -> dict[str, Any]:
    return {
        "attempt_id": sent.attempt_id,
        "request_id": sent.request_id,
        "tenant_id": sent.tenant_id,
        "team_id": sent.team_id,
        "key_id": sent.key_id,
        "holder_id": holder_id,
        "endpoint_id": sent.endpoint_id,
        "provider": sent.provider,
        "model": sent.model,
        "surface": sent.surface,
        "lane": sent.lane,
        "stream": sent.stream,
        "hold_nanos": sent.hold_nanos,
        "prompt_tokens_estimate": sent.prompt_tokens_estimate,
        "unseen_tokens": sent.unseen_tokens,
        "is_simulated": sent.is_simulated,
        "sent_at": sent.at_unix_s,
        "state": "sent",
        "cost_nanos": 0,
        "billed_nanos": 0,
        "overrun_nanos": 0,
        "waste_nanos": 0,
        "is_estimated": False,
        "price_source": "",
        "price_id": "",
        "price_tier": sent.tier,
        "price_row": "",
        "price_rows": msgspec.json.encode(sent.rows).decode(),
        "finish": "",
        "failure": "",
        "settled_at": None,
        **_NO_TOKENS,
    }


def _end_values(end: Ended, is_released: bool) -> dict[str, Any]:
    price = end.price
    return {
        "state": "released" if is_released else "settled",
        "cost_nanos": end.cost_nanos,
        "billed_nanos": end.billed_nanos,
        "overrun_nanos": end.overrun_nanos,
        "waste_nanos": end.waste_nanos,
        "is_estimated": end.is_estimated,
        "price_source": price.source if price is not None else "",
        "price_id": price.price_id if price is not None else "",
        "price_tier": price.tier if price is not None else "",
        "price_row": msgspec.json.encode(price).decode() if price is not None else "",
        "price_rows": "",
        "finish": end.finish,
        "failure": end.failure,
        "settled_at": end.at_unix_s,
        **(_token_values(end.usage) if end.usage is not None else _NO_TOKENS),
    }


def _token_values(usage: Usage) -> dict[str, int]:
    return {
        column: getattr(usage, bucket)
        for column, bucket in zip(_USAGE_COLUMNS, BUCKETS, strict=True)
    }


async def _write(
    connection: AsyncConnection, books: _Books, lease_rows: dict[str, sa.Row[Any]]
) -> None:
    await insert_rows(connection, attempts, books.inserts)
    await insert_rows(connection, attempt_leases, books.links)
    await update_rows(connection, attempts, attempts.c.attempt_id, books.ends)
    await update_rows(connection, attempts, attempts.c.attempt_id, books.progress)
    await insert_rows(connection, entries, books.entries)
    windows: dict[tuple[str, int], dict[str, int]] = {}
    for lease_id, nanos in books.lease_spent.items():
        row = lease_rows[lease_id]
        move = windows.setdefault(
            (row.budget_id, row.window_start), {"spent": 0, "leased": 0, "unattributed": 0}
        )
        if row.state == "open":
            move["spent"] += nanos
            move["leased"] -= nanos
        else:
            move["unattributed"] -= nanos
        await connection.execute(
            sa.update(leases)
            .where(leases.c.id == lease_id)
            .values(spent_nanos=leases.c.spent_nanos + nanos)
        )
    for (budget_id, window_start), move in sorted(windows.items()):
        await change_window(connection, budget_id, window_start, **move)
    await books.spend.write(connection)
