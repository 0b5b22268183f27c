"""One SQLite file, several processes: what one commits, the others see, whoever comes and goes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.store.engine import Store, make_engine, open_store, parse_url
from gateway.store.migrate import upgrade
from gateway.store.tables import meta

pytestmark = pytest.mark.anyio

VISITOR = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM meta WHERE key LIKE 'seen%'").fetchone()[0])
connection.close()
"""


def visit(path: Path) -> int:
    """Another process opens the file, counts, and closes it: as any command does."""
    command = [sys.executable, "-c", VISITOR, str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


async def commit(store: Store, key: str) -> None:
    async with store.begin() as connection:
        await connection.execute(insert(meta).values(key=key, value="1"))


async def test_visitors_do_not_take_the_wal_of_a_process_that_opened_the_file_again(
    tmp_path: Path, anyio_backend: str
) -> None:
    url = f"sqlite:///{tmp_path}/looprouter.db"
    store = await open_store(url)
    assert store.path is not None
    try:
        await asyncio.to_thread(upgrade, url)
        for num in range(3):
            await commit(store, f"seen-{num}")
            # As a start does with the file that it has open already, to look at its schema.
            await make_engine(parse_url(url)).dispose()
            assert visit(store.path) == num + 1
            assert store.path.with_name("looprouter.db-wal").exists()
    finally:
        await store.close()
