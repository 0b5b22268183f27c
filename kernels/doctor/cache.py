"""Verdicts on disk, one file a key. A file that cannot be read is as good as none."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kernels.cache_folder import cache_folder
from kernels.doctor.verdict import FORMAT, Key, Verdict

VERDICTS_KEPT = 32
FILE_BYTES_MAX = 1 << 20
_log = logging.getLogger(__name__)


class VerdictCache:
    """A folder; the platform's own cache unless another one is given."""

    def __init__(self, folder: Path | None = None) -> None:
        """Raises OSError where there is no home folder."""
        self.folder = folder or cache_folder("doctor")

    def path_of(self, key: Key) -> Path:
        digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:24]
        return self.folder / f"verdict-{digest}.json"

    def read(self, key: Key) -> Verdict | None:
        path = self.path_of(key)
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
            found = msgspec.json.decode(path.read_bytes(), type=Verdict)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            _log.warning("%s is not a verdict (%s); the kernels are checked anew", path, error)
            return None
        return found if found.format == FORMAT and found.key == key else None

    def write(self, verdict: Verdict) -> None:
        """In one rename: a reader sees the old one or the new one. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".verdict-", dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(verdict)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path_of(verdict.key))
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        self._forget_old()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One doctor at a time: two on one GPU would find each other slow. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _forget_old(self) -> None:
        kept = sorted(self.folder.glob("verdict-*.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-VERDICTS_KEPT]:
            path.unlink(missing_ok=True)
