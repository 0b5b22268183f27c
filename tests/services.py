"""The servers tests need: given by URL, found running on this machine, or started from binaries.

Order for each: the environment variable; a running server on 127.0.0.1 (a scratch database of its
own there); a server of our own in a temporary folder. LOOPROUTER_TEST_OWN_SERVICES=1 skips the
second, so that the third is tested on a machine where servers run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

POSTGRES_ENV = "LOOPROUTER_TEST_POSTGRES_URL"
REDIS_ENV = "LOOPROUTER_TEST_REDIS_URL"
OWN_ENV = "LOOPROUTER_TEST_OWN_SERVICES"

START_S_MAX = 60.0
SCRATCH_REDIS_DB = 15


class ServiceMissing(Exception):
    """No server can be had; the message says why."""


def _wants_own() -> bool:
    return os.environ.get(OWN_ENV) == "1"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def postgres_url() -> Iterator[str]:
    """A PostgreSQL database that tests may fill as they like."""
    given = os.environ.get(POSTGRES_ENV)
    if given:
        if not asyncio.run(_postgres_answers(given)):
            raise ServiceMissing(f"{POSTGRES_ENV} is set but no server answers there")
        yield given
        return
    running = "postgresql://postgres@127.0.0.1:5432/postgres"
    if not _wants_own() and asyncio.run(_postgres_answers(running)):
        with _scratch_database(running) as url:
            yield url
        return
    with _own_postgres() as server, _scratch_database(server) as url:
        yield url


async def _postgres_answers(url: str) -> bool:
    import asyncpg

    try:
        connection = await asyncpg.connect(url, timeout=5)
    except (OSError, asyncpg.PostgresError, TimeoutError):
        return False
    await connection.close()
    return True


async def _execute(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@contextlib.contextmanager
def _scratch_database(server_url: str) -> Iterator[str]:
    name = f"looprouter_test_{secrets.token_hex(6)}"
    asyncio.run(_execute(server_url, f"CREATE DATABASE {name}"))
    try:
        yield server_url.rpartition("/")[0] + f"/{name}"
    finally:
        asyncio.run(_execute(server_url, f"DROP DATABASE {name} WITH (FORCE)"))


def postgres_binaries() -> Path | None:
    """The newest folder with initdb and postgres: distributions keep them off the PATH."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    for pattern in ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/*/bin"):
        found = Path("/").glob(pattern.lstrip("/"))
        candidates += sorted(found, key=_version_of, reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


def _version_of(folder: Path) -> float:
    digits = "".join(c for c in folder.parent.name if c.isdigit() or c == ".")
    return float(digits) if digits.replace(".", "", 1).isdigit() else 0.0


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run servers as: nobody special when we are root, else ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServiceMissing("PostgreSQL will not run as root and there is no user postgres or nobody")


@contextlib.contextmanager
def _own_postgres() -> Iterator[str]:
    binaries = postgres_binaries()
    if binaries is None:
        raise ServiceMissing("no running server on 127.0.0.1:5432, no PostgreSQL installed")
    with tempfile.TemporaryDirectory(prefix="looprouter-pg-") as folder:
        user = _unprivileged()
        as_user: dict[str, object] = {}
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        cluster, port = f"{folder}/data", _free_port()
        initdb = [
            *(f"{binaries}/initdb", "--pgdata", cluster, "--username", "postgres"),
            *("--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
        ]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **as_user)
        command = [f"{binaries}/postgres", "-D", cluster, "-p", str(port), "-k", folder]
        # Durability of the test database itself is of no use; our own is tested by killing us.
        for setting in ("listen_addresses=127.0.0.1", "fsync=off", "max_connections=200"):
            command += ["-c", setting]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        with _process(command, folder, as_user, stop_by=signal.SIGINT) as process:
            _wait_for(lambda: asyncio.run(_postgres_answers(url)), process, "PostgreSQL")
            yield url


@contextlib.contextmanager
def redis_url() -> Iterator[str]:
    """A Redis database that tests may fill and flush as they like."""
    given = os.environ.get(REDIS_ENV)
    if given:
        yield given
        return
    if not _wants_own() and _redis(6379, "SELECT 15", "DBSIZE") == [b"+OK", b":0"]:
        # Empty when we came, so emptying it again loses nothing of anybody's.
        try:
            yield f"redis://127.0.0.1:6379/{SCRATCH_REDIS_DB}"
        finally:
            _redis(6379, f"SELECT {SCRATCH_REDIS_DB}", "FLUSHDB")
        return
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise ServiceMissing("no empty database 15 on 127.0.0.1:6379, no Redis installed")
    with tempfile.TemporaryDirectory(prefix="looprouter-redis-") as folder:
        port = _free_port()
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--save", "", "--appendonly", "no"]
        with _process(command, folder, {}, stop_by=signal.SIGTERM) as process:
            _wait_for(lambda: _redis(port, "PING") == [b"+PONG"], process, "Redis")
            yield f"redis://127.0.0.1:{port}/0"


def _redis(port: int, *commands: str) -> list[bytes]:
    """The first line of each answer; empty when no server is there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            connection.sendall("".join(f"{command}\r\n" for command in commands).encode())
            received = b""
            while received.count(b"\r\n") < len(commands):
                part = connection.recv(4096)
                if not part:
                    break
                received += part
    except OSError:
        return []
    return received.split(b"\r\n")[: len(commands)]


@contextlib.contextmanager
def _process(
    command: Sequence[str], folder: str, as_user: dict[str, object], *, stop_by: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    with open(f"{folder}/log", "wb") as log:
        process = subprocess.Popen(  # type: ignore[call-overload]  # as_user holds Popen's own
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, **as_user
        )
        try:
            yield process
        finally:
            process.send_signal(stop_by)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(answers: object, process: subprocess.Popen[bytes], name: str) -> None:
    assert callable(answers)
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise ServiceMissing(f"{name} was started and ended with status {process.returncode}")
        if answers():
            return
        time.sleep(0.05)
    raise ServiceMissing(f"{name} was started but did not answer within {START_S_MAX:.0f} s")
