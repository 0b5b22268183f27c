"""A store with all tables, and clocks that stand until they are turned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.engine import Store
from tests.support.clocks import TurnedClock
from tests.support.databases import postgres_store, sqlite_store


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock(50.0)


@pytest.fixture
def wall_clock() -> TurnedClock:
    return TurnedClock(1_800_000_000.0)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[Store]:
    async with sqlite_store(tmp_path) if request.param == "sqlite" else postgres_store() as found:
        yield found


@pytest.fixture
async def sqlite(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Store]:
    async with sqlite_store(tmp_path) as found:
        yield found
