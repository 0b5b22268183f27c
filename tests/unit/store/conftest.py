"""A store with all tables, on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.store.engine import Store
from tests.support.databases import postgres_store, sqlite_store


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[Store]:
    async with sqlite_store(tmp_path) if request.param == "sqlite" else postgres_store() as found:
        yield found


@pytest.fixture
async def postgres(anyio_backend: str) -> AsyncIterator[Store]:
    async with postgres_store() as found:
        yield found
