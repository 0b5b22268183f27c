"""The migrations make the schema of tables.py, and take it away, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, inspect, text

from gateway.errors import SetupError
from gateway.store import migrate
from gateway.store.engine import open_store
from gateway.store.tables import metadata
from tests.support.databases import postgres_schema

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=DATABASES)
async def url(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/m.db"
        return
    async with postgres_schema() as schema_url:
        yield schema_url


def _differences(connection: Connection) -> list[object]:
    options = {"compare_type": True, "compare_server_default": migrate.defaults_differ}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


async def _inspect(url: str, look: object) -> object:
    store = await open_store(url)
    try:
        async with store.read() as connection:
            return await connection.run_sync(look)  # type: ignore[arg-type]
    finally:
        await store.close()


@pytest.mark.anyio
async def test_upgraded_schema_is_exactly_the_tables_of_the_code(url: str) -> None:
    assert await asyncio.to_thread(migrate.current, url) is None

    assert migrate.head() == await asyncio.to_thread(migrate.upgrade, url)

    assert await _inspect(url, _differences) == []


@pytest.mark.anyio
async def test_check_constraints_of_the_code_exist_in_the_database(url: str) -> None:
    # Autogenerate does not compare check constraints, so they are compared here by name.
    await asyncio.to_thread(migrate.upgrade, url)

    def names(connection: Connection) -> set[str | None]:
        found = inspect(connection)
        return {c["name"] for t in metadata.tables for c in found.get_check_constraints(t)}

    wanted = {
        str(constraint.name)
        for table in metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }

    assert len(wanted) > 10
    assert wanted == await _inspect(url, names)


@pytest.mark.anyio
async def test_downgrade_leaves_no_table_and_upgrade_works_again(url: str) -> None:
    await asyncio.to_thread(migrate.upgrade, url)

    assert await asyncio.to_thread(migrate.downgrade, url, "base") is None
    assert await _inspect(url, lambda c: inspect(c).get_table_names()) == ["alembic_version"]
    assert migrate.head() == await asyncio.to_thread(migrate.upgrade, url)
    assert await _inspect(url, _differences) == []


@pytest.mark.anyio
async def test_upgrade_of_a_current_database_keeps_its_rows(url: str) -> None:
    await asyncio.to_thread(migrate.upgrade, url)
    store = await open_store(url)
    async with store.begin() as connection:
        await connection.execute(
            text("INSERT INTO tenants (id, name, created_at) VALUES ('t', 'n', 1)")
        )
    await store.close()

    await asyncio.to_thread(migrate.upgrade, url)

    count = await _inspect(url, lambda c: c.execute(text("SELECT count(*) FROM tenants")).scalar())
    assert count == 1


@pytest.mark.anyio
async def test_processes_that_start_together_migrate_once(url: str) -> None:
    reached = await asyncio.gather(*(asyncio.to_thread(migrate.upgrade, url) for _ in range(4)))

    assert [migrate.head()] * 4 == reached
    assert await _inspect(url, _differences) == []


@pytest.mark.anyio
async def test_database_of_a_newer_version_is_refused_and_untouched(url: str) -> None:
    await asyncio.to_thread(migrate.upgrade, url)
    store = await open_store(url)
    async with store.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await store.close()

    with pytest.raises(SetupError, match="newer LoopRouter"):
        await asyncio.to_thread(migrate.upgrade, url)
    assert await asyncio.to_thread(migrate.current, url) == "9999"


@pytest.mark.anyio
async def test_failed_migration_changes_nothing(url: str) -> None:
    # A table in the way makes the migration fail after it has created others.
    store = await open_store(url)
    async with store.begin() as connection:
        await connection.execute(text("CREATE TABLE tenants (wrong INTEGER)"))
    await store.close()

    with pytest.raises(SetupError, match="nothing was changed"):
        await asyncio.to_thread(migrate.upgrade, url)
    assert await _inspect(url, lambda c: inspect(c).get_table_names()) == ["tenants"]
    assert await asyncio.to_thread(migrate.current, url) is None


def test_migrations_are_found_and_have_one_head() -> None:
    assert (migrate.script_location() / "env.py").is_file()
    assert migrate.head() >= migrate.FIRST_REVISION


def test_the_newest_revision_is_told_by_the_file_names() -> None:
    # A start looks only at the names, so that it need not load Alembic.
    assert migrate.newest_revision() == migrate.head()
