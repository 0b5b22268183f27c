"""What becomes of a dead holder: its journal is replayed, its open attempts and leases are ended.

With the journal at hand all is known: attempts that were sent and never settled are billed by
estimate (never voided; bounded by how long they can have been under way), and what the leases did
not spend is returned. Without it, what was leased and is unaccounted for is booked as spent by
nobody known, and is never returned.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import PriceRow, dollars
from gateway.ledger.alive import alive_until
from gateway.ledger.booking import apply_records, book_ends, entry_rows
from gateway.ledger.grants import change_window, lock_holder
from gateway.ledger.journal import (
    Damage,
    JournalReader,
    Position,
    file_numbers,
    file_path,
    lock_directory,
    remove_directory,
)
from gateway.ledger.records import CRASHED, Dropped, Ended, LedgerAlert, Sent
from gateway.prices.rows import cost_nanos, pick_row
from gateway.store.engine import Store
from gateway.store.ledger_tables import attempt_leases, attempts, entries, holders, leases
from gateway.wire.usage import BUCKETS, Usage

RECORDS_PER_BATCH = 256
DAMAGED_SUFFIX = ".damaged"

DatabaseNow = Callable[[AsyncConnection], Awaitable[float]]


async def adopt_dead_journals(
    store: Store,
    root: Path,
    *,
    database_now: DatabaseNow,
    alert: Callable[[LedgerAlert], None],
    known_foreign: set[str],
) -> None:
    """
    Replay every journal under `root` that no living process holds, and end its holder.

    `known_foreign` collects the names of journals that belong to another database, so that each
    is reported once.
    """
    for directory in _directories(root):
        if directory.name in known_foreign:
            continue
        lock = lock_directory(directory)
        if lock is None:
            continue
        try:
            if not await _adopt(store, directory, database_now, alert):
                known_foreign.add(directory.name)
        finally:
            os.close(lock)


def _directories(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir())


async def _adopt(
    store: Store,
    directory: Path,
    database_now: DatabaseNow,
    alert: Callable[[LedgerAlert], None],
) -> bool:
    """Whether the journal is done with; False when its holder is not in this database."""
    if not await replay_and_finish(
        store, directory, directory.name, database_now=database_now, alert=alert
    ):
        if not file_numbers(directory):
            remove_directory(directory)
            return True
        alert(
            LedgerAlert(
                "journal_foreign",
                f"the journal {directory} belongs to another database and is left alone; start "
                "once with that database to book it, or delete the directory",
            )
        )
        return False
    remove_directory(directory)
    return True


async def replay_and_finish(
    store: Store,
    directory: Path,
    holder_id: str,
    *,
    database_now: DatabaseNow,
    alert: Callable[[LedgerAlert], None],
) -> bool:
    """Bring SQL up to the journal's end and end its holder. False: the holder is unknown to SQL."""
    async with store.read() as connection:
        query = sa.select(holders).where(holders.c.holder_id == holder_id)
        holder = (await connection.execute(query)).first()
    if holder is None:
        return False
    if holder.ended_at is not None and not file_numbers(directory):
        return True
    start = Position(holder.applied_file, holder.applied_offset)
    is_present = file_path(directory, start.file_no).exists()
    damage = await _replay(store, directory, holder_id, start, alert)
    if damage:
        _keep_damaged(directory, damage, alert)
    async with store.begin() as connection:
        now = await database_now(connection)
        alerts = await finish_holder(
            connection,
            holder_id,
            now=now,
            is_journal_whole=is_present and not damage,
            shares=generated_shares(directory),
        )
    for each in alerts:
        alert(each)
    return True


def generated_shares(directory: Path) -> dict[str, float]:
    """
    By attempt, how much of a whole answer can have been generated when the holder died.

    Of a whole answer's time the first part goes to its prompt and the rest to its tokens, so their
    share is at most that of the time. Attempts of which nothing is known are left out.
    """
    until_s = alive_until(directory)
    numbers = file_numbers(directory)
    if until_s is None or not numbers:
        return {}
    sent: dict[str, Sent] = {}
    reader, position = JournalReader(directory), Position(numbers[0], 0)
    while True:
        records, end = reader.batch(position, None, records_max=RECORDS_PER_BATCH)
        if end == position:
            break
        position = end
        for record in records:
            if isinstance(record, Sent) and record.unseen_s > 0.0:
                sent[record.attempt_id] = record
            elif isinstance(record, Ended | Dropped):
                sent.pop(record.attempt_id, None)
    return {
        each.attempt_id: min(1.0, max(0.0, until_s - each.at_unix_s) / each.unseen_s)
        for each in sent.values()
    }


async def _replay(
    store: Store,
    directory: Path,
    holder_id: str,
    start: Position,
    alert: Callable[[LedgerAlert], None],
) -> list[Damage]:
    reader = JournalReader(directory)
    position = start
    while True:
        records, end = reader.batch(position, None, records_max=RECORDS_PER_BATCH)
        if end == position:
            return reader.damage
        async with store.begin() as connection:
            position, alerts = await apply_records(
                connection, records, holder_id=holder_id, start=position, end=end
            )
        for each in alerts:
            alert(each)


def _keep_damaged(
    directory: Path, damage: list[Damage], alert: Callable[[LedgerAlert], None]
) -> None:
    for each in damage:
        alert(
            LedgerAlert(
                "journal_damaged",
                f"{each}; sound records were booked, the leases of this holder count as spent, and "
                f"the file is kept as {each.path.name}{DAMAGED_SUFFIX}",
            )
        )
    for path in {each.path for each in damage}:
        path.rename(path.with_name(path.name + DAMAGED_SUFFIX))


async def finish_holder(
    connection: AsyncConnection,
    holder_id: str,
    *,
    now: float,
    is_journal_whole: bool,
    shares: Mapping[str, float] | None = None,
) -> list[LedgerAlert]:
    """End a holder's attempts and leases. Its row is locked here. `shares`: generated at most."""
    await lock_holder(connection, holder_id)
    alerts = await book_ends(
        connection, await _estimates(connection, holder_id, now, shares or {}), holder_id=holder_id
    )
    c = leases.c
    query = sa.select(leases).where(c.holder_id == holder_id, c.state == "open")
    rows = list(await connection.execute(query))
    for row in sorted(rows, key=lambda row: (row.budget_id, row.window_start)):
        left = row.granted_nanos - row.spent_nanos
        if is_journal_whole:
            values = {"state": "closed", "granted_nanos": row.spent_nanos}
            moved = {"leased": -left}
        else:
            values = {"state": "expired"}
            moved = {"leased": -left, "spent": left, "unattributed": left}
            alerts.extend(await _book_unattributed(connection, row, left, now))
        await connection.execute(sa.update(leases).where(c.id == row.id).values(**values))
        await change_window(connection, row.budget_id, row.window_start, **moved)
    await connection.execute(
        sa.update(holders).where(holders.c.holder_id == holder_id).values(ended_at=now)
    )
    return alerts


async def _book_unattributed(
    connection: AsyncConnection, row: sa.Row[Any], left: int, now: float
) -> list[LedgerAlert]:
    if left == 0:
        return []
    amounts = {f"budget:{row.budget_id}": -left, f"unattributed:{row.budget_id}": left}
    await connection.execute(sa.insert(entries), entry_rows(f"lease:{row.id}", amounts, now))
    return [
        LedgerAlert(
            "unattributed",
            f"server {row.holder_id} is gone and its journal is not here: ${dollars(left)} it had "
            f"leased of budget {row.budget_id} counts as spent",
            nanos=left,
        )
    ]


async def expire_dead_holders(
    store: Store, *, holder_id: str, ttl_s: float, database_now: DatabaseNow
) -> list[LedgerAlert]:
    """End the holders whose heartbeat is older than `ttl_s`, but for `holder_id` itself."""
    c = holders.c
    async with store.read() as connection:
        now = await database_now(connection)
        query = sa.select(c.holder_id).where(
            c.ended_at.is_(None), c.heartbeat_at < now - ttl_s, c.holder_id != holder_id
        )
        dead = sorted((await connection.execute(query)).scalars())
    alerts: list[LedgerAlert] = []
    for each in dead:
        async with store.begin() as connection:
            now = await database_now(connection)
            row = await lock_holder(connection, each, skip_locked=True)
            if row is None or row.ended_at is not None or row.heartbeat_at >= now - ttl_s:
                continue  # it lives, or somebody else is at it
            alerts += await finish_holder(connection, each, now=now, is_journal_whole=False)
    return alerts


async def _estimates(
    connection: AsyncConnection, holder_id: str, now: float, shares: Mapping[str, float]
) -> list[Ended]:
    """How each of the holder's attempts that never ended is to be settled."""
    c = attempts.c
    query = sa.select(attempts).where(c.holder_id == holder_id, c.state == "sent")
    rows = list(await connection.execute(query))
    lease_ids: dict[str, list[str]] = {row.attempt_id: [] for row in rows}
    links = (
        sa.select(attempt_leases)
        .join(attempts, c.attempt_id == attempt_leases.c.attempt_id)
        .where(c.holder_id == holder_id, c.state == "sent")
    )
    for link in await connection.execute(links):
        lease_ids[link.attempt_id].append(link.lease_id)
    return [
        estimated_end(
            row,
            tuple(sorted(lease_ids[row.attempt_id])),
            now,
            share_max=shares.get(row.attempt_id, 1.0),
        )
        for row in rows
    ]


def estimated_end(
    row: sa.Row[Any], lease_ids: tuple[str, ...], now: float, *, share_max: float = 1.0
) -> Ended:
    """
    Settle a `sent` attempt by what is known, and what may have been generated unseen.

    That is: of a stream, the last progress record and what can follow it until the next; without
    one its prompt alone, for the first token makes one. Of a whole answer, `share_max` of all that
    is expected; with a record it had come already, and the record is its usage.
    The provider bills what it generated, so the estimate rather errs above it. Without a price
    the whole hold is the estimate: unknown is never free.
    """
    tokens = {bucket: getattr(row, f"{bucket}_tokens") for bucket in BUCKETS}
    usage = Usage(**tokens)
    has_progress = usage.input_total > 0
    if not has_progress:
        usage = msgspec.structs.replace(usage, input=row.prompt_tokens_estimate)
    if has_progress == bool(row.stream):
        unseen = math.ceil(row.unseen_tokens * (1.0 if row.stream else share_max))
        usage = msgspec.structs.replace(usage, output=usage.output + unseen)
    prices = msgspec.json.decode(row.price_rows or "[]", type=tuple[PriceRow, ...])
    price = pick_row(prices, tier=row.price_tier, context_tokens=usage.input_total)
    cost = cost_nanos(price, usage) if price.is_priced else row.hold_nanos
    billed = min(cost, row.hold_nanos)
    return Ended(
        attempt_id=row.attempt_id,
        lease_ids=lease_ids,
        cost_nanos=cost,
        billed_nanos=billed,
        overrun_nanos=cost - billed,
        waste_nanos=0,
        usage=usage,
        price=price,
        is_estimated=True,
        finish="",
        failure=CRASHED,
        at_unix_s=now,
    )
