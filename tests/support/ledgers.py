"""Ledgers on real databases for tests: a clock to turn, budgets, requests, the sums of a window."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import Caller, PriceRow
from gateway.ledger.ledger import Ledger
from gateway.ledger.options import LedgerOptions
from gateway.ledger.records import HoldRequest, LedgerAlert, Settlement
from gateway.store.engine import Store, open_store
from gateway.store.ledger_tables import attempts, budget_windows, budgets, leases
from gateway.store.tables import metadata
from gateway.wire.usage import Usage
from tests.support.databases import postgres_schema

CENT = 10_000_000
DOLLAR = 100 * CENT
ROW = PriceRow(source="policy", price_id="test", input=1_000_000, output=2_000_000)


class TurnedClock:
    """Monotonic and database time that move only when told to."""

    def __init__(self, unix_s: float = 1_700_000_000.0) -> None:
        self.now_s = 1_000.0
        self._unix_offset_s = unix_s - self.now_s

    def __call__(self) -> float:
        return self.now_s

    async def database_now(self, _: AsyncConnection) -> float:
        return self.now_s + self._unix_offset_s

    def turn(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(slots=True)
class Window:
    spent: int
    leased: int
    unattributed: int
    limit_seen: int


async def add_budget(
    store: Store, budget_id: str, limit_nanos: int, *, kind: str = "key", period: str = "total"
) -> None:
    async with store.begin() as connection:
        await connection.execute(
            sa.insert(budgets).values(
                id=budget_id,
                tenant_id="ten",
                scope_kind=kind,
                scope_id=f"{kind}-{budget_id}",
                period=period,
                limit_nanos=limit_nanos,
                created_at=0.0,
                updated_at=0.0,
            )
        )


async def set_limit(store: Store, budget_id: str, limit_nanos: int) -> None:
    async with store.begin() as connection:
        its = budgets.c.id == budget_id
        await connection.execute(sa.update(budgets).where(its).values(limit_nanos=limit_nanos))


async def windows(store: Store) -> dict[tuple[str, int], Window]:
    async with store.read() as connection:
        rows = await connection.execute(sa.select(budget_windows))
        return {
            (row.budget_id, row.window_start): Window(
                row.spent_nanos, row.leased_nanos, row.unattributed_nanos, row.limit_seen_nanos
            )
            for row in rows
        }


async def only_window(store: Store, budget_id: str) -> Window:
    found = [window for (each, _), window in (await windows(store)).items() if each == budget_id]
    assert len(found) == 1, found
    return found[0]


async def attempt_rows(store: Store) -> dict[str, Any]:
    async with store.read() as connection:
        rows = await connection.execute(sa.select(attempts))
        return {row.attempt_id: row for row in rows}


async def lease_states(store: Store) -> list[str]:
    async with store.read() as connection:
        return sorted((await connection.execute(sa.select(leases.c.state))).scalars())


def caller_of(*budget_ids: str) -> Caller:
    return Caller(tenant_id="ten", team_id="team", key_id="key", budget_ids=budget_ids)


def request_of(attempt_id: str, hold_nanos: int, *budget_ids: str, **more: Any) -> HoldRequest:
    values: dict[str, Any] = {
        "attempt_id": attempt_id,
        "request_id": f"req-{attempt_id}",
        "caller": caller_of(*budget_ids),
        "endpoint_id": "acme/model-1",
        "model": "chat",
        "surface": "chat",
        "stream": True,
        "hold_nanos": hold_nanos,
        "rows": (ROW,),
        "prompt_tokens_estimate": 100,
    }
    return HoldRequest(**(values | more))


def cost_of(cost_nanos: int, **more: Any) -> Settlement:
    values: dict[str, Any] = {
        "usage": Usage(input=10, output=5),
        "cost_nanos": cost_nanos,
        "price": ROW,
        "finish": "stop",
    }
    return Settlement(**(values | more))


@dataclass(slots=True)
class Bench:
    """A store, a home, a clock; and ledgers that the test opens on them."""

    store: Store
    home: Path
    clock: TurnedClock
    alerts: list[LedgerAlert]

    def ledger(self, holder_id: str = "one", **more: Any) -> Ledger:
        """A ledger without background tasks: the test says when it commits and tends."""
        values: dict[str, Any] = {
            "home": self.home,
            "clock": self.clock,
            "database_now": self.clock.database_now,
            "holder_id": holder_id,
            "alert": self.alerts.append,
            "runs_in_background": False,
            "options": LedgerOptions(sql_wait_s=30.0),  # how fast this machine is, is not asked
        }
        return Ledger(self.store, **(values | more))

    @property
    def alert_kinds(self) -> list[str]:
        return [alert.kind for alert in self.alerts]


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """As on a full disk: this process cannot write beyond `num_bytes` of any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def die(ledger: Ledger) -> None:
    """The process is gone: its lock is free, nothing is flushed, nothing is given back."""
    committer = ledger._committer
    assert committer is not None
    committer.close()
    ledger._home.leave()
    ledger._committer = None


@asynccontextmanager
async def bench(home: Path) -> AsyncIterator[Bench]:
    """On a new SQLite file."""
    (home / "looprouter.db").write_bytes(empty_database())
    store = await open_store(f"sqlite:///{home}/looprouter.db")
    try:
        yield Bench(store, home, TurnedClock(), [])
    finally:
        await store.close()


@cache
def empty_database() -> bytes:
    """A SQLite file with all tables; making them takes longer than most tests."""
    engine = sa.create_engine("sqlite://")
    try:
        metadata.create_all(engine)
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            return bytes(raw.serialize())
    finally:
        engine.dispose()


@asynccontextmanager
async def postgres_bench(home: Path) -> AsyncIterator[tuple[Bench, Callable[[], Any]]]:
    """On a new PostgreSQL schema; also a function that opens another store on it."""
    async with postgres_schema() as url:
        store = await open_store(url)
        async with store.begin() as connection:
            await connection.run_sync(metadata.create_all)
        try:
            yield Bench(store, home, TurnedClock(), []), lambda: open_store(url)
        finally:
            await store.close()
