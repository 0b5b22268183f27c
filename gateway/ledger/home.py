"""The directory of one holder's journal: its name, its lock, where the next file begins."""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

import sqlalchemy as sa

from gateway.errors import SetupError
from gateway.ledger.journal import Position, file_numbers, lock_directory
from gateway.store.engine import Store
from gateway.store.ledger_tables import holders

_HOLDER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def host_name() -> str:
    """This machine, in letters that are safe in a directory's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip(".-")[:60] or "host"


def new_holder_id() -> str:
    """A name that no other process has or had."""
    return f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}"


class JournalHome:
    """A directory under `root` that one living ledger owns."""

    def __init__(self, root: Path, holder_id: str) -> None:
        if _HOLDER_ID.fullmatch(holder_id) is None:
            raise SetupError(
                f"ledger holder id {holder_id!r} must be 1 to 100 letters, digits, '.', '_' or '-'"
            )
        self.root = root
        self.directory = root / holder_id
        self._holder_id = holder_id
        self._lock: int | None = None

    def enter(self) -> None:
        """Own the directory until `leave`, or until the process dies. SetupError if taken."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = lock_directory(self.directory)
        except OSError as e:
            raise SetupError(
                f"cannot write the ledger's journal in {self.directory}: {e.strerror}; mend its "
                "permissions, or set LOOPROUTER_HOME"
            ) from e
        if self._lock is None:
            raise SetupError(
                f"another process keeps the ledger's journal in {self.directory}; stop it, or "
                "give this one another holder id"
            )

    def leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def next_start(self, store: Store) -> Position:
        """The start of a file that never was: numbers only grow, whatever was deleted."""
        async with store.read() as connection:
            c = holders.c
            query = sa.select(c.applied_file).where(c.holder_id == self._holder_id)
            applied = (await connection.execute(query)).scalar() or 0
        return Position(1 + max([applied, *file_numbers(self.directory)]), 0)
