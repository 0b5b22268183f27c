"""Slices of budgets in SQL: register a holder, lease, renew, give back.

Lock order, the same in every transaction of the ledger: one holder's row, then windows by id.
A holder's leases and attempts are changed only under its holder row, so they need no more.
All times are the database's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.ledger.journal import Position
from gateway.ledger.leases import Budget, Grant, Want, slice_nanos
from gateway.ledger.windows import Window, window_of
from gateway.store.ledger_tables import budget_windows, budgets, holders, leases
from gateway.store.upsert import insert_into

ROWS_PER_QUERY_MAX = 500


async def lock_holder(
    connection: AsyncConnection, holder_id: str, *, skip_locked: bool = False
) -> sa.Row[Any] | None:
    """The holder's row, ours until the transaction ends; None when absent (or taken)."""
    query = sa.select(holders).where(holders.c.holder_id == holder_id)
    return (await connection.execute(query.with_for_update(skip_locked=skip_locked))).first()


async def register_holder(
    connection: AsyncConnection,
    *,
    holder_id: str,
    host: str,
    journal_dir: str,
    start: Position,
    now: float,
) -> None:
    """A holder begins (again) with a journal that starts at `start`."""
    values = {
        "host": host,
        "journal_dir": journal_dir,
        "started_at": now,
        "heartbeat_at": now,
        "ended_at": None,
        "applied_file": start.file_no,
        "applied_offset": start.offset,
    }
    row = insert_into(connection, holders).values(holder_id=holder_id, **values)
    await connection.execute(
        row.on_conflict_do_update(index_elements=[holders.c.holder_id], set_=values)
    )


async def read_budgets(connection: AsyncConnection, budget_ids: Iterable[str]) -> dict[str, Budget]:
    """The budgets in force among `budget_ids`."""
    c = budgets.c
    query = sa.select(c.id, c.tenant_id, c.scope_kind, c.scope_id, c.period, c.limit_nanos).where(
        c.ended_at.is_(None)
    )
    found: dict[str, Budget] = {}
    ids = sorted(budget_ids)
    for start in range(0, len(ids), ROWS_PER_QUERY_MAX):
        some = ids[start : start + ROWS_PER_QUERY_MAX]
        for row in await connection.execute(query.where(c.id.in_(some))):
            found[row.id] = Budget(*row)
    return found


async def grant_slices(
    connection: AsyncConnection,
    wants: Mapping[str, Want],
    *,
    holder_id: str,
    journal_file: str,
    now: float,
    expires_at: float,
    new_id: Callable[[], str],
) -> dict[str, Grant]:
    """
    Lease a slice of every budget wanted; the answer lacks those that are not in force.

    One lease per holder, budget and window, which grows; amounts in the answer are absolute, so
    that a lost answer is made good by the next one.
    """
    await lock_holder(connection, holder_id)
    await _be_alive(connection, holder_id, now)
    found = await read_budgets(connection, wants)
    grants: dict[str, Grant] = {}
    for budget_id in sorted(found):
        budget = found[budget_id]
        window = window_of(budget.period, now)
        spent, leased = await _lock_window(connection, budget_id, window)
        lease = await _own_lease(connection, holder_id, budget_id, window)
        want = wants[budget_id]
        headroom = want.headroom_nanos if want.window_start == window.start else 0
        remaining = max(0, budget.limit_nanos - spent - leased)
        added = slice_nanos(remaining, headroom, want.demands)
        lease_id = lease.id if lease is not None else ""
        if added > 0:
            await _grow_window(connection, budget, window, added)
            lease_id = lease_id or new_id()
            await _grow_lease(
                connection,
                lease is None,
                {
                    "id": lease_id,
                    "budget_id": budget_id,
                    "window_start": window.start,
                    "holder_id": holder_id,
                    "granted_nanos": added,
                    "state": "open",
                    "expires_at": expires_at,
                    "journal_file": journal_file,
                },
            )
        grants[budget_id] = Grant(
            budget=budget,
            window=window,
            lease_id=lease_id,
            granted_nanos=(lease.granted_nanos if lease is not None else 0) + added,
            slice_nanos=added,
            lease_spent_nanos=lease.spent_nanos if lease is not None else 0,
            spent_nanos=spent,
            leased_nanos=leased + added,
        )
    return grants


async def _be_alive(connection: AsyncConnection, holder_id: str, now: float) -> None:
    # A holder that was given up for dead while it was cut off is watched again from here on.
    c = holders.c
    await connection.execute(
        sa.update(holders)
        .where(c.holder_id == holder_id, c.ended_at.is_not(None))
        .values(ended_at=None, heartbeat_at=now)
    )


async def _lock_window(
    connection: AsyncConnection, budget_id: str, window: Window
) -> tuple[int, int]:
    c = budget_windows.c
    key = {"budget_id": budget_id, "window_start": window.start}
    query = (
        sa.select(c.spent_nanos, c.leased_nanos)
        .where(c.budget_id == budget_id, c.window_start == window.start)
        .with_for_update()
    )
    row = (await connection.execute(query)).first()
    if row is None:
        new = insert_into(connection, budget_windows).values(**key)
        await connection.execute(new.on_conflict_do_nothing())
        row = (await connection.execute(query)).one()
    return row.spent_nanos, row.leased_nanos


async def _own_lease(
    connection: AsyncConnection, holder_id: str, budget_id: str, window: Window
) -> sa.Row[Any] | None:
    c = leases.c
    query = sa.select(leases).where(
        c.budget_id == budget_id,
        c.window_start == window.start,
        c.holder_id == holder_id,
        c.state != "expired",
    )
    return (await connection.execute(query.limit(1))).first()


async def _grow_window(
    connection: AsyncConnection, budget: Budget, window: Window, added: int
) -> None:
    c = budget_windows.c
    await connection.execute(
        sa.update(budget_windows)
        .where(c.budget_id == budget.id, c.window_start == window.start)
        .values(
            leased_nanos=c.leased_nanos + added,
            limit_seen_nanos=sa.case(
                (c.limit_seen_nanos < budget.limit_nanos, budget.limit_nanos),
                else_=c.limit_seen_nanos,
            ),
        )
    )


async def _grow_lease(connection: AsyncConnection, is_new: bool, values: dict[str, Any]) -> None:
    if is_new:
        await connection.execute(sa.insert(leases).values(**values))
        return
    await connection.execute(
        sa.update(leases)
        .where(leases.c.id == values["id"])
        .values(
            granted_nanos=leases.c.granted_nanos + values["granted_nanos"],
            state="open",
            expires_at=values["expires_at"],
        )
    )


async def give_back(
    connection: AsyncConnection, keeps: Mapping[str, int], *, holder_id: str
) -> set[str]:
    """
    Shrink our leases to what they must keep: lease id → spent (in SQL yet or not) plus held.

    The amounts are absolute, so a lost answer does no harm. A lease that neither owes nor has
    anything more is closed. Returns the ids closed or expired, which memory may forget.
    """
    await lock_holder(connection, holder_id)
    c = leases.c
    query = sa.select(leases).where(c.id.in_(sorted(keeps)), c.holder_id == holder_id)
    rows = list(await connection.execute(query))
    gone = set(keeps) - {row.id for row in rows}
    for row in sorted(rows, key=lambda row: (row.budget_id, row.window_start)):
        if row.state != "open":
            gone.add(row.id)
            continue
        granted = max(row.spent_nanos, min(row.granted_nanos, keeps[row.id]))
        is_empty = granted == row.spent_nanos
        await connection.execute(
            sa.update(leases)
            .where(c.id == row.id)
            .values(granted_nanos=granted, state="closed" if is_empty else "open")
        )
        returned = row.granted_nanos - granted
        await change_window(connection, row.budget_id, row.window_start, leased=-returned)
        if is_empty:
            gone.add(row.id)
    return gone


async def change_window(
    connection: AsyncConnection,
    budget_id: str,
    window_start: int,
    *,
    spent: int = 0,
    leased: int = 0,
    unattributed: int = 0,
) -> None:
    """Move money between the columns of one window."""
    c = budget_windows.c
    await connection.execute(
        sa.update(budget_windows)
        .where(c.budget_id == budget_id, c.window_start == window_start)
        .values(
            spent_nanos=c.spent_nanos + spent,
            leased_nanos=c.leased_nanos + leased,
            unattributed_nanos=c.unattributed_nanos + unattributed,
        )
    )


async def renew(
    connection: AsyncConnection, *, holder_id: str, now: float, ttl_s: float
) -> set[str]:
    """Heartbeat: our open leases live on for `ttl_s`. Returns their ids; any other has expired."""
    await lock_holder(connection, holder_id)
    await connection.execute(
        sa.update(holders)
        .where(holders.c.holder_id == holder_id)
        .values(heartbeat_at=now, ended_at=None)
    )
    mine = (leases.c.holder_id == holder_id) & (leases.c.state == "open")
    await connection.execute(sa.update(leases).where(mine).values(expires_at=now + ttl_s))
    return set((await connection.execute(sa.select(leases.c.id).where(mine))).scalars())
