"""SQLite has exactly one serving process; this lock file says so at start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gateway.errors import SetupError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class ServingLock:
    """
    Held from start to exit by the process that serves from an SQLite file.

    The operating system frees it when the process ends, however it ends; the file stays.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the file to the next process; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def take_serving_lock(database: Path) -> ServingLock:
    """Raises SetupError that names the process which serves from `database` already."""
    path = database.with_name(database.name + ".lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as e:
        raise SetupError(f"cannot write the lock file {path}: {e.strerror}") from e
    try:
        _lock(descriptor)
    except OSError as e:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise SetupError(
            f"process {holder} already serves from {database}; stop it, or use PostgreSQL "
            "(LOOPROUTER_DATABASE_URL) to run more than one"
        ) from e
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return ServingLock(descriptor)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        # Far behind the number, so that another process may still read that.
        os.lseek(descriptor, 4096, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
