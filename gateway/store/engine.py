"""Opens the database: SQLite in a file, or PostgreSQL by URL; one way to begin a transaction."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import SetupError

POOL_SIZE = 8
POOL_WAIT_S = 10.0
WRITE_WAIT_S = 10.0
BUSY_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
WAL_BYTES_MAX = 64 * 1024 * 1024

# How `Connection` begins on SQLite; an execution option, read by the event below.
BEGIN_OPTION = "looprouter_begin"
# Query parameters of a PostgreSQL URL that the server takes at connect.
_SERVER_SETTINGS = frozenset({"application_name", "search_path", "statement_timeout", "timezone"})


class Store:
    """
    A database with its pool. Built once in `app`; belongs to one event loop.

    `begin()` is a write transaction: BEGIN IMMEDIATE on SQLite, where writers of this process
    wait for each other in order. It does not nest. `read()` is a transaction for reading.
    """

    def __init__(self, engine: AsyncEngine, url: URL) -> None:
        self.engine = engine
        self.url = url
        self.dialect = url.get_backend_name()  # "sqlite" | "postgresql"
        self._writer = asyncio.Lock()

    @property
    def is_sqlite(self) -> bool:
        return self.dialect == "sqlite"

    @property
    def path(self) -> Path | None:
        """The SQLite file; None on PostgreSQL."""
        return Path(self.url.database or "") if self.is_sqlite else None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction; TimeoutError when its turn does not come within WRITE_WAIT_S."""
        if not self.is_sqlite:
            async with self.engine.begin() as connection:
                yield connection
            return
        async with asyncio.timeout(WRITE_WAIT_S):
            await self._writer.acquire()
        try:
            async with self.engine.connect() as connection:
                await connection.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
                async with connection.begin():
                    yield connection
        finally:
            self._writer.release()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads: one consistent picture; never waits for a writer."""
        async with self.engine.connect() as connection, connection.begin():
            yield connection

    async def database_now(self, connection: AsyncConnection | None = None) -> float:
        """Unix seconds by the database's clock, which all processes share."""
        if connection is not None:
            return await _database_now(connection, self.dialect)
        async with self.read() as own:
            return await _database_now(own, self.dialect)

    async def close(self) -> None:
        await self.engine.dispose()


async def open_store(url: str, *, home: Path | None = None) -> Store:
    """Connect, once, to see that the database answers. SetupError says what to mend."""
    parsed = parse_url(url, home=home)
    engine = make_engine(parsed)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S * 2), engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except Exception as e:
        await engine.dispose()
        raise cannot_open(parsed, e) from e
    return Store(engine, parsed)


def cannot_open(url: URL, error: Exception) -> SetupError:
    """In one line: SQLAlchemy's own errors add the statement and a link."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    where = url.render_as_string(hide_password=True)
    return SetupError(
        f"cannot open the database {where}: {type(cause).__name__}: {cause}; start it, or mend "
        "LOOPROUTER_DATABASE_URL"
    )


def sqlite_path(url: str, *, home: Path | None = None) -> Path | None:
    """The SQLite file of a URL; None on PostgreSQL. SetupError as `parse_url`."""
    parsed = parse_url(url, home=home)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def parse_url(url: str, *, home: Path | None = None) -> URL:
    """The URL with the async driver that we use; a relative SQLite path counts from `home`."""
    try:
        parsed = make_url(url)
    except ArgumentError as e:
        raise SetupError(
            "LOOPROUTER_DATABASE_URL is not a URL; use postgresql://user@host/name or "
            "sqlite:////absolute/path.db"
        ) from e
    scheme = parsed.drivername
    if scheme in {"sqlite", "sqlite+aiosqlite"}:
        return _sqlite_url(parsed, home)
    if scheme in {"postgres", "postgresql", "postgresql+asyncpg"}:
        if importlib.util.find_spec("asyncpg") is None:
            raise SetupError("PostgreSQL needs a driver; run: pip install 'looprouter[postgres]'")
        return parsed.set(drivername="postgresql+asyncpg")
    raise SetupError(f"the database {scheme!r} is not supported; use sqlite:// or postgresql://")


def _sqlite_url(parsed: URL, home: Path | None) -> URL:
    name = parsed.database or ""
    if name in {"", ":memory:"} or name.startswith("file:"):
        raise SetupError(
            "the SQLite database must be a file, or the ledger is lost at exit: "
            "sqlite:////absolute/path.db"
        )
    path = Path(name).expanduser()
    if not path.is_absolute():
        path = (home or Path.cwd()) / path
    return parsed.set(drivername="sqlite+aiosqlite", database=str(path), query={})


def make_engine(
    url: URL, *, pool_size: int = POOL_SIZE, statement_timeout_s: float = STATEMENT_TIMEOUT_S
) -> AsyncEngine:
    """An engine for a URL from `parse_url`; connects to nothing yet."""
    limits: dict[str, Any] = {"pool_size": pool_size, "max_overflow": 0}
    limits["pool_timeout"] = POOL_WAIT_S
    limits["hide_parameters"] = True  # errors are logged, and values may be a caller's
    if url.get_backend_name() == "sqlite":
        path = Path(url.database or "")
        _create_private_file(path)
        engine = create_async_engine(url, connect_args={"factory": _SqliteConnection}, **limits)
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    bare, arguments = _asyncpg_arguments(url, statement_timeout_s)
    return create_async_engine(bare, pool_pre_ping=True, connect_args=arguments, **limits)


class _SqliteConnection(sqlite3.Connection):
    """Gives its locks up when it is closed.

    SQLite keeps a closed connection, and the write lock of its transaction, until the last of its
    statements is finalised. After a task was cancelled within a transaction some cursor waits for
    the garbage collector in a traceback, and until then nobody could write. Closing one again does
    nothing, as with any other: who is cancelled and who ends the pool may both do so.
    """

    _is_closed = False

    def close(self) -> None:
        if not self._is_closed and self.in_transaction:
            self.rollback()
        self._is_closed = True
        super().close()


def _create_private_file(path: Path) -> None:
    # SQLite would create it readable by all; the file holds key hashes and spending.
    # One that is there must not be opened: closing it again would drop the POSIX locks of every
    # connection that this process has on it, and the next process to leave would take its WAL away.
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        raise SetupError(
            f"cannot write the database file {path}: {e.strerror}; mend its permissions, "
            "or set LOOPROUTER_HOME"
        ) from e


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself: `_begin_sqlite` does, with the right kind.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=FULL",  # a commit in the ledger survives a power loss
        "foreign_keys=ON",
        f"journal_size_limit={WAL_BYTES_MAX}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
        cursor.fetchall()
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    statement = connection.get_execution_options().get(BEGIN_OPTION, "BEGIN")
    if statement:
        connection.exec_driver_sql(statement)


def _asyncpg_arguments(url: URL, timeout_s: float) -> tuple[URL, dict[str, Any]]:
    query = {name: v if isinstance(v, str) else v[-1] for name, v in url.query.items()}
    settings = {name: query.pop(name) for name in _SERVER_SETTINGS & query.keys()}
    settings.setdefault("application_name", "looprouter")
    settings.setdefault("timezone", "UTC")
    if "sslmode" in query:  # libpq's name for what the driver calls ssl
        query["ssl"] = query.pop("sslmode")
    arguments = {
        "server_settings": settings,
        "timeout": CONNECT_TIMEOUT_S,
        "command_timeout": timeout_s,
    }
    return url.set(query=query), arguments


async def _database_now(connection: AsyncConnection, dialect: str) -> float:
    if dialect == "sqlite":
        statement = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    else:
        statement = "SELECT extract(epoch FROM clock_timestamp())::float8"
    return float((await connection.execute(text(statement))).scalar_one())
