"""Another process's change is heard of within a second."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from sqlalchemy import insert, text

from gateway.store.changes import KEYS, POLICIES, TOPICS, ChangeWatcher, note_change
from gateway.store.engine import Store, open_store
from gateway.store.tables import meta

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _watching(store: Store, poll_s: float) -> AsyncIterator[asyncio.Queue[frozenset[str]]]:
    heard: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    watcher = ChangeWatcher(store, heard.put_nowait, poll_s=poll_s)
    task = asyncio.create_task(watcher.run())
    try:
        async with asyncio.timeout(5):
            await watcher.is_watching.wait()
            assert await heard.get() == frozenset(TOPICS)  # what was before is unknown
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _other_process(store: Store) -> AsyncIterator[Store]:
    other = await open_store(store.url.render_as_string(hide_password=False))
    try:
        yield other
    finally:
        await other.close()


async def _note_and_undo(store: Store) -> None:
    with suppress(KeyError):
        async with store.begin() as connection:
            await note_change(connection, KEYS)
            raise KeyError("undone")


async def test_change_of_another_process_is_heard_within_a_second(store: Store) -> None:
    async with _watching(store, 0.25) as heard, _other_process(store) as other:
        async with other.begin() as connection:
            await note_change(connection, KEYS)
        async with asyncio.timeout(1.0):
            assert await heard.get() == {KEYS}


async def test_topics_that_moved_are_told_apart(store: Store) -> None:
    async with _watching(store, 0.02) as heard, _other_process(store) as other:
        async with other.begin() as connection:
            await note_change(connection, POLICIES)
        async with asyncio.timeout(1.0):
            assert await heard.get() == {POLICIES}
        async with other.begin() as connection:
            await note_change(connection, KEYS)
            await note_change(connection, POLICIES)
        async with asyncio.timeout(1.0):
            assert await heard.get() == {KEYS, POLICIES}


async def test_other_commits_and_undone_changes_are_not_heard(store: Store) -> None:
    async with _watching(store, 0.02) as heard, _other_process(store) as other:
        async with other.begin() as connection:
            await connection.execute(insert(meta).values(key="unrelated", value="1"))
        await _note_and_undo(other)
        async with other.begin() as connection:
            await note_change(connection, POLICIES)
        async with asyncio.timeout(1.0):
            assert await heard.get() == {POLICIES}
        assert heard.empty()


@pytest.mark.postgres
async def test_notification_comes_before_the_poll_on_postgresql(postgres: Store) -> None:
    async with _watching(postgres, 60.0) as heard, _other_process(postgres) as other:
        async with other.begin() as connection:
            await note_change(connection, KEYS)
        async with asyncio.timeout(1.0):
            assert await heard.get() == {KEYS}


@pytest.mark.postgres
async def test_watcher_comes_back_after_its_connection_is_cut(postgres: Store) -> None:
    name = f"watched-{secrets.token_hex(8)}"
    url = postgres.url.update_query_dict({"application_name": name})
    watched = await open_store(url.render_as_string(hide_password=False))
    async with _watching(watched, 0.1) as heard:
        async with postgres.begin() as connection:
            cut = await connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = :name"
                ),
                {"name": name},
            )
            assert cut.scalars().all() == [True]
        async with asyncio.timeout(5.0):
            assert await heard.get() == frozenset(TOPICS)  # something may have been missed
        async with postgres.begin() as connection:
            await note_change(connection, KEYS)
        async with asyncio.timeout(2.0):
            assert await heard.get() == {KEYS}
    await watched.close()
