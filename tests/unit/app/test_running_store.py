"""A second process must not touch what the first one serves from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.app.compose import running_store
from gateway.errors import SetupError
from gateway.settings import Settings
from gateway.store.migrate import newest_revision

pytestmark = pytest.mark.anyio


async def test_second_process_is_refused_before_it_changes_the_schema(tmp_path: Path) -> None:
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(tmp_path)})
    async with running_store(settings) as store:
        assert store.path is not None
        with closing(sqlite3.connect(store.path)) as connection:
            # As a version before ours would have left it.
            connection.execute("DELETE FROM alembic_version")
            connection.commit()
        with pytest.raises(SetupError, match="already serves"):
            async with running_store(settings):
                pass
        with closing(sqlite3.connect(store.path)) as connection:
            versions = connection.execute("SELECT * FROM alembic_version").fetchall()
            connection.execute("INSERT INTO alembic_version VALUES (?)", (newest_revision(),))
            connection.commit()

    assert versions == []
    async with running_store(settings):
        pass
