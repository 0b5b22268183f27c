"""Databases for tests: an SQLite file each, or a schema of its own on a real PostgreSQL."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import create_mock_engine

from gateway.store.engine import Store, open_store
from gateway.store.tables import metadata

POSTGRES_ENV = "LOOPROUTER_TEST_POSTGRES_URL"
REDIS_ENV = "LOOPROUTER_TEST_REDIS_URL"


def postgres_server_url() -> str:
    """Where the tests marked `postgres` find their server."""
    return os.environ.get(POSTGRES_ENV, "postgresql://postgres@127.0.0.1:5432/test")


def redis_url() -> str:
    """Where the tests marked `redis` find their server."""
    return os.environ.get(REDIS_ENV, "redis://127.0.0.1:6379/0")


@asynccontextmanager
async def postgres_schema() -> AsyncIterator[str]:
    """The URL of a fresh, empty schema; dropped at the end."""
    import asyncpg

    schema = f"test_{secrets.token_hex(8)}"
    server = postgres_server_url()
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{server}{'&' if '?' in server else '?'}search_path={schema}"
    finally:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await connection.close()


@asynccontextmanager
async def sqlite_store(directory: Path) -> AsyncIterator[Store]:
    """A store on a new SQLite file with all tables."""
    store = await open_store(f"sqlite:///{directory}/looprouter.db")
    try:
        async with store.begin() as connection:
            await connection.run_sync(metadata.create_all, checkfirst=False)
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres_store() -> AsyncIterator[Store]:
    """A store on a new PostgreSQL schema with all tables."""
    async with postgres_schema() as url:
        store = await open_store(url)
        try:
            async with store.engine.connect() as connection:
                raw = await connection.get_raw_connection()
                await raw.driver_connection.execute(_postgres_tables())
            yield store
        finally:
            await store.close()


@functools.cache
def _postgres_tables() -> str:
    # One text, one round trip: create_all asks the server about each table first.
    statements: list[str] = []
    engine = create_mock_engine(
        "postgresql+asyncpg://",
        lambda ddl, *_, **__: statements.append(str(ddl.compile(dialect=engine.dialect))),
    )
    metadata.create_all(engine, checkfirst=False)
    return ";\n".join(statements)
