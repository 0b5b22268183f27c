"""Adds everything up again: entries, leases, windows, holds, and journals against SQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.ledger.journal import SUFFIX, JournalReader, Position, file_numbers, file_path
from gateway.ledger.records import Opened
from gateway.ledger.recovery import DAMAGED_SUFFIX
from gateway.ledger.verify_rollups import rollup_problems
from gateway.store.batch_tables import corrections
from gateway.store.engine import Store
from gateway.store.ledger_tables import (
    attempt_leases,
    attempts,
    budget_windows,
    budgets,
    entries,
    holders,
    leases,
)
from gateway.store.rollup_tables import MONEY

PROBLEMS_PER_CHECK_MAX = 20
CATCH_UP_S = 3.0  # a running server has its journal in SQL long before
POLL_S = 0.05
LIVES_S = 30.0  # after its last heartbeat
RECHECKS = 2
RECHECK_S = 0.25


async def verify(store: Store, journal_dir: Path | None) -> list[str]:
    """
    What does not add up, as sentences; empty when all is well. May run beside a serving process.

    `journal_dir` is the directory `journal` under the home; None leaves journals out.
    """
    problems = await _sums(store)
    for _ in range(RECHECKS):
        if not problems:
            break
        # A lease that just shrank is a moment ahead of the journal that explains it.
        await asyncio.sleep(RECHECK_S)
        problems = await _sums(store)
    if journal_dir is not None:
        problems += await _journals(store, journal_dir)
    return problems


async def _sums(store: Store) -> list[str]:
    async with _snapshot(store) as connection:
        return [
            *await _unbalanced_entries(connection),
            *await _accounts(connection),
            *await _corrections(connection),
            *await _leases(connection),
            *await _windows(connection),
            *await _forgotten_attempts(connection),
            *await rollup_problems(connection),
        ]


@asynccontextmanager
async def _snapshot(store: Store) -> AsyncIterator[AsyncConnection]:
    # Every sum must be of the same instant, or a running server looks wrong.
    async with store.engine.connect() as connection:
        if not store.is_sqlite:
            await connection.execution_options(isolation_level="REPEATABLE READ")
        async with connection.begin():
            yield connection


async def _unbalanced_entries(connection: AsyncConnection) -> list[str]:
    total = sa.func.sum(entries.c.amount_nanos)
    query = (
        sa.select(entries.c.txn_id, total.label("total"))
        .group_by(entries.c.txn_id)
        .having(total != 0)
        .limit(PROBLEMS_PER_CHECK_MAX)
    )
    return [
        f"entries of {row.txn_id} sum to ${dollars(int(row.total))}, not to zero"
        for row in await connection.execute(query)
    ]


async def _accounts(connection: AsyncConnection) -> list[str]:
    """What the accounts hold against what attempts and windows say they must."""
    settled = attempts.c.state != "sent"
    expected: dict[str, int] = {}

    def expect(account: str, nanos: int) -> None:
        expected[account] = expected.get(account, 0) + int(nanos)

    for table, condition in ((attempts.c, settled), (corrections.c, sa.true())):
        by_payer = sa.select(
            table.tenant_id,
            table.provider,
            *(sa.func.sum(table[name]).label(name) for name in MONEY),
        ).where(condition)
        for row in await connection.execute(by_payer.group_by(table.tenant_id, table.provider)):
            expect(f"tenant:{row.tenant_id}", -row.billed_nanos)
            expect("operator:overrun", -row.overrun_nanos)
            expect("operator:waste", -row.waste_nanos)
            expect(f"provider:{row.provider}", row.cost_nanos)
    w = budget_windows.c
    unattributed = sa.func.sum(w.unattributed_nanos).label("nanos")
    for row in await connection.execute(sa.select(w.budget_id, unattributed).group_by(w.budget_id)):
        expect(f"unattributed:{row.budget_id}", row.nanos)
        expect(f"budget:{row.budget_id}", -row.nanos)
    total = sa.func.sum(entries.c.amount_nanos).label("nanos")
    query = sa.select(entries.c.account, total).group_by(entries.c.account)
    found = {row.account: int(row.nanos) for row in await connection.execute(query)}
    wrong = [
        account
        for account in sorted({*expected, *found})
        if expected.get(account, 0) != found.get(account, 0)
    ]
    problems = [
        f"account {account} holds ${dollars(found.get(account, 0))}, attempts and windows say "
        f"${dollars(expected.get(account, 0))}"
        for account in wrong[:PROBLEMS_PER_CHECK_MAX]
    ]
    if sum(found.values()) != 0:
        problems.append(f"all entries sum to ${dollars(sum(found.values()))}, not to zero")
    return problems


async def _corrections(connection: AsyncConnection) -> list[str]:
    """No client pays more than was held, and nothing costs less than nothing, corrected or not."""
    k = corrections.c
    sums = (sa.func.sum(k[name]).label(name) for name in MONEY)
    moved = (
        sa.select(k.attempt_id, *sums).where(k.attempt_id != "").group_by(k.attempt_id).subquery()
    )
    cost = attempts.c.cost_nanos + moved.c.cost_nanos
    billed = attempts.c.billed_nanos + moved.c.billed_nanos
    query = (
        sa.select(
            moved.c.attempt_id,
            attempts.c.hold_nanos,
            cost.label("cost"),
            billed.label("billed"),
        )
        .outerjoin(attempts, attempts.c.attempt_id == moved.c.attempt_id)
        .where(
            attempts.c.attempt_id.is_(None)
            | (cost < 0)
            | (billed < 0)
            | (billed > attempts.c.hold_nanos)
        )
        .limit(PROBLEMS_PER_CHECK_MAX)
    )
    return [
        f"corrections are of attempt {row.attempt_id}, which is not in the ledger"
        if row.hold_nanos is None
        else f"attempt {row.attempt_id} is corrected to ${dollars(int(row.cost))}, of which its "
        f"client pays ${dollars(int(row.billed))}; ${dollars(row.hold_nanos)} was held"
        for row in await connection.execute(query)
    ]


async def _leases(connection: AsyncConnection) -> list[str]:
    held = sa.case((attempts.c.state == "sent", attempts.c.hold_nanos), else_=0)
    sums = (
        sa.select(
            attempt_leases.c.lease_id,
            sa.func.sum(attempts.c.billed_nanos).label("billed"),
            sa.func.sum(held).label("held"),
        )
        .join(attempts, attempts.c.attempt_id == attempt_leases.c.attempt_id)
        .group_by(attempt_leases.c.lease_id)
        .subquery()
    )
    billed = sa.func.coalesce(sums.c.billed, 0)
    free = leases.c.granted_nanos - leases.c.spent_nanos
    query = (
        sa.select(leases, billed.label("billed"), sa.func.coalesce(sums.c.held, 0).label("held"))
        .outerjoin(sums, sums.c.lease_id == leases.c.id)
        .where(
            (billed != leases.c.spent_nanos)
            | ((leases.c.state == "open") & (sums.c.held > free))
            | ((leases.c.state == "closed") & (free != 0))
        )
        .limit(PROBLEMS_PER_CHECK_MAX)
    )
    return [
        f"lease {row.id} ({row.state}, of budget {row.budget_id}): granted "
        f"${dollars(row.granted_nanos)}, spent ${dollars(row.spent_nanos)}, but its attempts were "
        f"billed ${dollars(int(row.billed))} and hold ${dollars(int(row.held))}"
        for row in await connection.execute(query)
    ]


async def _windows(connection: AsyncConnection) -> list[str]:
    left = leases.c.granted_nanos - leases.c.spent_nanos
    sums = (
        sa.select(
            leases.c.budget_id,
            leases.c.window_start,
            sa.func.sum(leases.c.spent_nanos).label("spent"),
            sa.func.sum(sa.case((leases.c.state == "open", left), else_=0)).label("leased"),
            sa.func.sum(sa.case((leases.c.state == "expired", left), else_=0)).label("unclaimed"),
        )
        .group_by(leases.c.budget_id, leases.c.window_start)
        .subquery()
    )
    w = budget_windows.c
    spent = sa.func.coalesce(sums.c.spent, 0) + sa.func.coalesce(sums.c.unclaimed, 0)
    leased = sa.func.coalesce(sums.c.leased, 0)
    unclaimed = sa.func.coalesce(sums.c.unclaimed, 0)
    query = (
        sa.select(
            budget_windows,
            budgets.c.limit_nanos,
            spent.label("spent"),
            leased.label("leased"),
            unclaimed.label("unclaimed"),
        )
        .join(budgets, budgets.c.id == w.budget_id)
        .outerjoin(
            sums,
            (sums.c.budget_id == w.budget_id) & (sums.c.window_start == w.window_start),
        )
        .where(
            (w.spent_nanos != spent)
            | (w.leased_nanos != leased)
            | (w.unattributed_nanos != unclaimed)
            | (
                (w.spent_nanos + w.leased_nanos > budgets.c.limit_nanos)
                # A limit may have been lowered below what was spent under it.
                & (w.spent_nanos + w.leased_nanos > w.limit_seen_nanos)
            )
        )
        .limit(PROBLEMS_PER_CHECK_MAX)
    )
    return [_window_problem(row) for row in await connection.execute(query)]


def _window_problem(row: sa.Row[Any]) -> str:
    return (
        f"budget {row.budget_id}, window from {row.window_start}: "
        f"limit ${dollars(row.limit_nanos)}; spent ${dollars(row.spent_nanos)}, leased "
        f"${dollars(row.leased_nanos)}, unattributed "
        f"${dollars(row.unattributed_nanos)}; its leases say ${dollars(int(row.spent))}, "
        f"${dollars(int(row.leased))}, ${dollars(int(row.unclaimed))}"
    )


async def _forgotten_attempts(connection: AsyncConnection) -> list[str]:
    query = (
        sa.select(attempts.c.attempt_id, attempts.c.holder_id)
        .outerjoin(holders, holders.c.holder_id == attempts.c.holder_id)
        .where(
            attempts.c.state == "sent",
            holders.c.ended_at.is_not(None) | holders.c.holder_id.is_(None),
        )
        .limit(PROBLEMS_PER_CHECK_MAX)
    )
    return [
        f"attempt {row.attempt_id} was sent by server {row.holder_id}, which has ended, and was "
        "never settled"
        for row in await connection.execute(query)
    ]


async def _journals(store: Store, root: Path) -> list[str]:
    problems: list[str] = []
    for directory in await asyncio.to_thread(_directories, root):
        end = await asyncio.to_thread(_end_of, directory)
        problems += await asyncio.to_thread(_damaged_files, directory)
        if end is None:
            continue
        deadline = time.monotonic() + CATCH_UP_S
        while True:
            found = await _applied(store, directory.name)
            if found is None:
                problems.append(f"journal {directory} belongs to no server of this database")
                break
            applied, is_alive = found
            if applied >= end:
                break
            if not is_alive or time.monotonic() > deadline:
                problems += await asyncio.to_thread(_unapplied, directory, applied)
                break
            await asyncio.sleep(POLL_S)
    return problems


def _directories(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir())


def _end_of(directory: Path) -> Position | None:
    numbers = file_numbers(directory)
    if not numbers:
        return None
    try:
        return Position(numbers[-1], file_path(directory, numbers[-1]).stat().st_size)
    except FileNotFoundError:  # booked and deleted meanwhile
        return None


async def _applied(store: Store, holder_id: str) -> tuple[Position, bool] | None:
    """How much SQL has of a holder's journal, and whether the holder is about to book more."""
    c = holders.c
    query = sa.select(c.applied_file, c.applied_offset, c.heartbeat_at, c.ended_at)
    async with store.read() as connection:
        row = (await connection.execute(query.where(c.holder_id == holder_id))).first()
        now = await store.database_now(connection)
    if row is None:
        return None
    is_alive = row.ended_at is None and row.heartbeat_at > now - LIVES_S
    return Position(row.applied_file, row.applied_offset), is_alive


def _unapplied(directory: Path, applied: Position) -> Sequence[str]:
    reader = JournalReader(directory)
    num_records = 0
    position = applied
    while True:
        records, end = reader.batch(position, None, records_max=1_000)
        if end == position:
            break
        num_records += sum(not isinstance(each, Opened) for each in records)
        position = end
    problems = [str(each) for each in reader.damage]
    if num_records:
        problems.append(
            f"journal {directory} has {num_records} records that are not in SQL; start the "
            "server, it books them"
        )
    return problems


def _damaged_files(directory: Path) -> list[str]:
    return [
        f"{path} was damaged; its sound records are booked. Look into it, then delete it"
        for path in sorted(directory.glob(f"*{SUFFIX}{DAMAGED_SUFFIX}"))
    ]
