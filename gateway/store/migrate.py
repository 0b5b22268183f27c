"""Brings a database to the schema of this version, or back; safe when several processes start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from gateway.errors import SetupError
from gateway.store.engine import BEGIN_OPTION, cannot_open, make_engine, parse_url

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported inside the functions that migrate: most starts find the schema current, and
# Alembic with its templates and their syntax colours is a third of a second.

LOCK_WAIT_S = 120
STATEMENT_TIMEOUT_S = 3_600.0

FIRST_REVISION = "0001"

T = TypeVar("T")


def script_location() -> Path:
    """The migrations: inside the wheel as gateway/_migrations, in a checkout as migrations/."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise SetupError(
        f"the database migrations are missing beside {package}; "
        "install again: pip install --force-reinstall looprouter"
    )


def upgrade(url: str, *, home: Path | None = None, revision: str = "head") -> str:
    """
    Move the schema forward; returns the revision reached. Does nothing when it is there.

    Like `downgrade` and `current` it runs an event loop of its own: from inside a loop call it
    by `asyncio.to_thread`.
    """
    newest = newest_revision()
    if revision == "head" and asyncio.run(_is_at(url, home, newest)):
        return newest

    def run(connection: Connection) -> str:
        from alembic import command

        _refuse_unknown_revision(connection)
        command.upgrade(_config(connection), revision)
        return _current(connection) or ""

    return asyncio.run(_with_connection(url, home, run))


def downgrade(url: str, revision: str, *, home: Path | None = None) -> str | None:
    """Move the schema back to `revision` ("base" = empty); what newer tables hold is lost."""

    def run(connection: Connection) -> str | None:
        from alembic import command

        _refuse_unknown_revision(connection)
        command.downgrade(_config(connection), revision)
        return _current(connection)

    return asyncio.run(_with_connection(url, home, run))


def current(url: str, *, home: Path | None = None) -> str | None:
    """The revision a database is at; None when it is empty."""
    return asyncio.run(_with_connection(url, home, _current))


def head() -> str:
    """The revision that this version of LoopRouter works with, as Alembic finds it."""
    from alembic.script import ScriptDirectory

    found = ScriptDirectory(str(script_location())).get_current_head()
    assert found is not None
    return found


def newest_revision() -> str:
    """The same by the files' names: each begins with its revision, and they sort in order."""
    names = [path.name for path in (script_location() / "versions").glob("*_*.py")]
    return max(names).partition("_")[0]


async def _is_at(url: str, home: Path | None, revision: str) -> bool:
    """Whether the database is at a revision; False also where that cannot be read."""
    engine = make_engine(parse_url(url, home=home), pool_size=1)
    try:
        async with engine.connect() as connection:
            found = await connection.execute(text("SELECT version_num FROM alembic_version"))
            return list(found.scalars()) == [revision]
    except (DBAPIError, OSError):
        return False  # no such table yet; a database that is away is told by the migration
    finally:
        await engine.dispose()


async def _with_connection(url: str, home: Path | None, run: Callable[[Connection], T]) -> T:
    from alembic.util import CommandError

    parsed = parse_url(url, home=home)
    engine = make_engine(parsed, pool_size=1, statement_timeout_s=STATEMENT_TIMEOUT_S)
    is_sqlite = engine.dialect.name == "sqlite"
    try:
        async with engine.connect() as connection:
            if is_sqlite:
                # A batch drops and renames tables, which must not cascade; checked again below.
                await connection.execution_options(**{BEGIN_OPTION: ""})
                await connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
                await connection.commit()
                await connection.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
            async with connection.begin():
                if not is_sqlite:
                    await _take_turn(connection)
                result = await connection.run_sync(run)
                if is_sqlite:
                    await _check_foreign_keys(connection)
            return result
    except CommandError as e:
        raise SetupError(f"migration failed: {e}") from e
    except OSError as e:  # asyncpg's own, where nobody answers or the name is unknown
        raise cannot_open(parsed, e) from e
    except DBAPIError as e:
        raise SetupError(
            f"migration failed, nothing was changed: {e.orig}; mend the cause and run: "
            "looprouter db upgrade"
        ) from e
    finally:
        await engine.dispose()


async def _take_turn(connection: Any) -> None:
    # One migrating process at a time for each schema; the lock ends with the transaction.
    await connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'"))
    await connection.execute(
        text(
            "SELECT pg_advisory_xact_lock(hashtextextended("
            "'looprouter migrate ' || coalesce(current_schema(), ''), 0))"
        )
    )


async def _check_foreign_keys(connection: Any) -> None:
    broken = (await connection.exec_driver_sql("PRAGMA foreign_key_check")).fetchall()
    if broken:
        raise SetupError(
            f"migration would leave {len(broken)} rows without their parent "
            f"(first in table {broken[0][0]}); nothing was changed"
        )


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(script_location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _current(connection: Connection) -> str | None:
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def _refuse_unknown_revision(connection: Connection) -> None:
    from alembic.script import ScriptDirectory

    found = _current(connection)
    known = {script.revision for script in ScriptDirectory(str(script_location())).walk_revisions()}
    if found is not None and found not in known:
        raise SetupError(
            f"the database is at revision {found!r}, which this version does not know: a newer "
            "LoopRouter made it. Install that version, or restore the backup made before it"
        )


def defaults_differ(
    context: Any, _found: Any, _wanted: Any, found: str | None, _default: Any, wanted: str | None
) -> bool | None:
    """Alembic's comparison of defaults, which on SQLite takes '' for a change."""
    if context.dialect.name != "sqlite":
        return None  # as Alembic does
    bare = [text_.strip("()'") if text_ is not None else None for text_ in (found, wanted)]
    return bare[0] != bare[1]


def new_revision(url: str, message: str, *, revision: str) -> None:
    """Write a migration for the difference between tables.py and the database at `url`."""

    def run(connection: Connection) -> None:
        from alembic import command

        command.revision(_config(connection), message, autogenerate=True, rev_id=revision)

    asyncio.run(_with_connection(url, None, run))


if __name__ == "__main__":
    # For contributors: python -m gateway.store.migrate postgresql://…/scratch 0002 "Add a column"
    upgrade(sys.argv[1])
    new_revision(sys.argv[1], sys.argv[3], revision=sys.argv[2])
