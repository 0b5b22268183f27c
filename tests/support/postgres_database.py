"""A PostgreSQL database of its own for processes that are not ours to give a schema to."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.databases import postgres_server_url


@contextmanager
def scratch_database() -> Iterator[str]:
    """The URL of a new, empty database on the tests' server; dropped at the end."""
    server = postgres_server_url()
    name = f"looprouter_shared_{secrets.token_hex(6)}"
    asyncio.run(_execute(server, f"CREATE DATABASE {name}"))
    try:
        yield server.rpartition("/")[0] + f"/{name}"
    finally:
        asyncio.run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
