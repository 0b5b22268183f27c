"""Databases for tests: an SQLite file each, or a schema of its own on a real PostgreSQL."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import text

from gateway.store.engine import Store, make_engine, open_store, parse_url
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
    schema = f"test_{secrets.token_hex(8)}"
    engine = make_engine(parse_url(postgres_server_url()), pool_size=1)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(f"CREATE SCHEMA {schema}"))
        joint = "&" if "?" in postgres_server_url() else "?"
        yield f"{postgres_server_url()}{joint}search_path={schema}"
    finally:
        async with engine.begin() as connection:
            await connection.execute(text(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        await engine.dispose()


@asynccontextmanager
async def sqlite_store(directory: Path) -> AsyncIterator[Store]:
    """A store on a new SQLite file with all tables."""
    store = await open_store(f"sqlite:///{directory}/looprouter.db")
    try:
        async with store.begin() as connection:
            await connection.run_sync(metadata.create_all)
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def postgres_store() -> AsyncIterator[Store]:
    """A store on a new PostgreSQL schema with all tables."""
    async with postgres_schema() as url:
        store = await open_store(url)
        try:
            async with store.begin() as connection:
                await connection.run_sync(metadata.create_all)
            yield store
        finally:
            await store.close()
