"""One way to begin a transaction on both databases, and clear errors when there is none."""

from __future__ import annotations

import asyncio
import gc
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import SetupError
from gateway.store import engine as engine_module
from gateway.store.engine import Store, open_store, parse_url
from gateway.store.lock import take_serving_lock
from gateway.store.tables import meta
from tests.support.databases import sqlite_store

pytestmark = pytest.mark.anyio


async def _count(store: Store) -> int:
    async with store.read() as connection:
        return len((await connection.execute(select(meta.c.key))).all())


async def test_begin_commits_at_the_end_and_rolls_back_on_an_error(store: Store) -> None:
    async with store.begin() as connection:
        await connection.execute(insert(meta).values(key="a", value="1"))
    with suppress(KeyError):
        async with store.begin() as connection:
            await connection.execute(insert(meta).values(key="b", value="1"))
            raise KeyError("b")

    assert await _count(store) == 1


async def test_database_now_is_unix_time(store: Store) -> None:
    async with store.begin() as connection:
        inside = await store.database_now(connection)

    assert abs(inside - time.time()) < 5.0
    assert await store.database_now() >= inside


async def test_writers_take_turns_and_lose_no_update(store: Store) -> None:
    async with store.begin() as connection:
        await connection.execute(insert(meta).values(key="n", value="0"))

    async def add_one() -> None:
        async with store.begin() as connection:
            row = select(meta.c.value).where(meta.c.key == "n").with_for_update()
            value = int((await connection.execute(row)).scalar_one())
            await connection.execute(
                meta.update().where(meta.c.key == "n").values(value=str(value + 1))
            )

    await asyncio.gather(*(add_one() for _ in range(20)))

    async with store.read() as connection:
        assert (await connection.execute(select(meta.c.value))).scalar_one() == "20"


async def test_reader_sees_one_picture_while_another_writes(tmp_path: Path) -> None:
    store = await _sqlite(tmp_path)
    async with store.read() as reader:
        before = (await reader.execute(select(meta.c.key))).all()
        async with store.begin() as writer:
            await writer.execute(insert(meta).values(key="new", value="1"))
        after = (await reader.execute(select(meta.c.key))).all()

    assert before == after == []
    assert await _count(store) == 1
    await store.close()


async def _sqlite(directory: Path) -> Store:
    store = await open_store("sqlite:///looprouter.db", home=directory)
    async with store.begin() as connection:
        await connection.run_sync(meta.metadata.create_all)
    return store


async def test_sqlite_is_durable_private_and_checks_references(tmp_path: Path) -> None:
    store = await _sqlite(tmp_path)
    async with store.read() as connection:
        settings = {
            name: (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }

    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "foreign_keys": 1,
        "busy_timeout": 5000,
    }
    assert store.path == tmp_path / "looprouter.db"
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    await store.close()


async def test_begin_takes_the_write_lock_at_once_on_sqlite(tmp_path: Path) -> None:
    # A deferred transaction would read first and could fail when it comes to write.
    store, other = await _sqlite(tmp_path), await _sqlite(tmp_path)
    async with store.begin(), other.engine.connect() as connection:
        await connection.execution_options(**{engine_module.BEGIN_OPTION: ""})
        await connection.exec_driver_sql("PRAGMA busy_timeout=0")
        with pytest.raises(Exception, match="locked"):
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
    await store.close()
    await other.close()


async def test_error_of_a_statement_does_not_tell_its_values(store: Store) -> None:
    with pytest.raises(SQLAlchemyError) as caught:
        async with store.begin() as connection:
            await connection.execute(text("SELECT * FROM nowhere WHERE a = :a"), {"a": "canary"})

    assert "canary" not in str(caught.value)


async def test_writer_whose_turn_never_comes_gets_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WRITE_WAIT_S", 0.01)
    store = await _sqlite(tmp_path)
    async with store.begin():
        with pytest.raises(TimeoutError):
            async with store.begin():
                raise AssertionError("nested")
    async with store.begin() as connection:  # and the turn is free again
        await connection.execute(insert(meta).values(key="a", value="1"))

    assert await _count(store) == 1
    await store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://x/y", "not supported"),
        ("sqlite://", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
        ("not a url", "not a URL"),
    ],
)
async def test_unusable_urls_say_what_to_use(url: str, says: str) -> None:
    with pytest.raises(SetupError, match=says):
        await open_store(url)


@pytest.mark.postgres
@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
async def test_postgresql_urls_of_every_spelling_use_the_async_driver(scheme: str) -> None:
    assert parse_url(f"{scheme}://u@h/db").drivername == "postgresql+asyncpg"


@pytest.mark.postgres
async def test_database_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(SetupError, match="cannot open the database") as caught:
        await open_store("postgresql://user:canary@127.0.0.1:1/none")

    assert "canary" not in str(caught.value)


async def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="LOOPROUTER_HOME"):
        await open_store(f"sqlite:///{tmp_path}/file/x.db")


async def test_second_server_on_one_sqlite_file_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "looprouter.db"
    lock = take_serving_lock(database)
    with pytest.raises(SetupError, match=r"process \d+ already serves"):
        take_serving_lock(database)
    lock.release()
    lock.release()
    take_serving_lock(database).release()


@pytest.mark.postgres
async def test_postgresql_session_is_in_utc_and_named(postgres: Store) -> None:
    async with postgres.read() as connection:
        zone = (await connection.execute(text("SHOW timezone"))).scalar_one()
        name = (await connection.execute(text("SHOW application_name"))).scalar_one()

    assert (zone, name) == ("UTC", "looprouter")


async def test_task_cancelled_within_a_transaction_leaves_no_lock_behind(
    tmp_path: Path, anyio_backend: str
) -> None:
    """Its cursors may live on in a traceback until they are collected, so nothing is, here."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        async with sqlite_store(tmp_path) as store:
            for attempt in range(30):
                writers = (_write_many(store, f"{attempt}-{place}") for place in range(3))
                tasks = [asyncio.create_task(writer) for writer in writers]
                await asyncio.sleep(0.0005 * attempt)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await _write_many(store, str(attempt))
    finally:
        if is_enabled:
            gc.enable()


async def _write_many(store: Store, name: str) -> None:
    async with store.begin() as connection:
        rows = [{"key": f"{name}-{place}", "value": "1"} for place in range(200)]
        await connection.execute(insert(meta), rows)
        await connection.execute(select(meta.c.key))


async def test_closed_sqlite_connection_gives_its_lock_up_while_a_cursor_lives(
    tmp_path: Path, anyio_backend: str
) -> None:
    async with sqlite_store(tmp_path) as store:
        async with store.begin() as connection:
            await connection.execute(insert(meta), [{"key": k, "value": "1"} for k in "abc"])
        connection = await store.engine.connect()
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        await driver.execute("BEGIN IMMEDIATE")
        cursor = await driver.execute("SELECT key FROM meta")
        assert await cursor.fetchone() is not None
        await driver.close()

        async with store.begin() as other:
            await other.execute(insert(meta).values(key="d", value="1"))

        assert await _count(store) == 4
        await connection.invalidate()
        await connection.close()
        del cursor


def test_a_closed_sqlite_connection_may_be_closed_again(tmp_path: Path) -> None:
    """Who is cancelled closes it, and who ends the pool may too."""
    connection = engine_module._SqliteConnection(tmp_path / "a.db")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("INSERT INTO t VALUES (1)")
    assert connection.in_transaction

    connection.close()
    connection.close()
