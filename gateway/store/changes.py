"""Tells a running server within a second that another process changed keys, policy or pauses.

A writer moves the counter of a topic in the transaction of its change. A watcher learns of it by
PRAGMA data_version on SQLite, by NOTIFY on PostgreSQL, and by reading the counters now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy import Select, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.engine import BEGIN_OPTION, Store
from gateway.store.tables import changes
from gateway.store.upsert import insert_into

KEYS = "keys"  # keys, budgets, teams: all that a Caller is made of
POLICIES = "policies"
ENDPOINTS = "endpoints"  # which of them an operator has paused
TOPICS = (KEYS, POLICIES, ENDPOINTS)

POLL_S = 0.25
RECONNECT_S = 0.5
CHANNEL = "looprouter_changes"

_log = structlog.get_logger(__name__)


async def note_change(connection: AsyncConnection, topic: str) -> None:
    """Move the counter of `topic`; call it inside the transaction that changes something."""
    assert topic in TOPICS, topic
    await connection.execute(
        insert_into(connection, changes)
        .values(topic=topic, number=1)
        .on_conflict_do_update(
            index_elements=[changes.c.topic], set_={"number": changes.c.number + 1}
        )
    )
    if connection.dialect.name == "postgresql":
        # Delivered to listeners when this transaction commits, and not otherwise.
        await connection.execute(
            text("SELECT pg_notify(:channel, :topic)"), {"channel": CHANNEL, "topic": topic}
        )


class ChangeWatcher:
    """
    Calls `on_change` with the topics that moved. One `run()` for the life of the server.

    At its start and after a lost connection every topic counts as changed: what happened before
    is unknown. While the database is away nothing is called; caches must end by themselves.
    """

    def __init__(
        self,
        store: Store,
        on_change: Callable[[frozenset[str]], None],
        *,
        poll_s: float = POLL_S,
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._poll_s = poll_s
        self._seen: dict[str, int] | None = None
        self.is_watching = asyncio.Event()  # set once changes from now on will be seen

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                async with self._store.engine.connect() as connection:
                    if self._store.is_sqlite:
                        await self._watch_sqlite(connection)
                    else:
                        await self._watch_postgresql(connection)
            except (SQLAlchemyError, OSError, TimeoutError) as e:
                _log.warning("change_watcher_lost_database", error=str(e)[:200])
            self.is_watching.clear()
            self._seen = None
            await asyncio.sleep(RECONNECT_S)

    async def _watch_sqlite(self, connection: AsyncConnection) -> None:
        # No transaction: data_version must see what others commit.
        await connection.execution_options(**{BEGIN_OPTION: ""})
        version = -1
        while True:
            found = (await connection.exec_driver_sql("PRAGMA data_version")).scalar_one()
            if found != version:
                version = found
                await self._compare(connection)
            await asyncio.sleep(self._poll_s)

    async def _watch_postgresql(self, connection: AsyncConnection) -> None:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        raw: Any = (await connection.get_raw_connection()).driver_connection
        woken = asyncio.Event()

        def wake(*_: object) -> None:
            woken.set()

        await raw.add_listener(CHANNEL, wake)
        try:
            while True:
                woken.clear()
                await self._compare(connection)
                # A pooler may swallow notifications, so the counters are read all the same.
                try:
                    async with asyncio.timeout(self._poll_s * 2):
                        await woken.wait()
                except TimeoutError:
                    continue
        finally:
            if not raw.is_closed():
                await raw.remove_listener(CHANNEL, wake)

    async def _compare(self, connection: AsyncConnection) -> None:
        query: Select[Any] = select(changes.c.topic, changes.c.number)
        numbers = {topic: number for topic, number in await connection.execute(query)}
        before = self._seen
        self._seen = numbers
        self.is_watching.set()
        moved = frozenset(TOPICS)
        if before is not None:
            moved = frozenset(t for t, number in numbers.items() if before.get(t) != number)
        if moved:
            self._on_change(moved)
