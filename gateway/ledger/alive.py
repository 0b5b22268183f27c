"""When this process was last alive, to a tenth of a second, for whoever books what it left open.

A whole answer tells nothing on its way. How far it had come when its gateway was killed is bounded
by how long it was under way, and that ends with the gateway: the kernel closes its connections. So
a thread stamps a file every few milliseconds while money is held. A thread, for the event loop may
be busy. Stamps count only within one boot of the machine: a power loss may lose the newest.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

ALIVE_NAME = "alive"
STAMP_EVERY_S = 0.025
STAMP_SLACK_S = 0.1  # no stamp is older while its process runs
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_STAMP = struct.Struct("<d36s")


def boot_id() -> bytes:
    """Of this boot of the machine; empty where the system does not tell."""
    try:
        return BOOT_ID.read_bytes().strip()[:36]
    except OSError:
        return b""


class AliveMark:
    """Stamps `directory` while `is_needed`. `begin` is cheap once it runs."""

    def __init__(
        self, directory: Path, *, unix_now: Callable[[], float], is_needed: Callable[[], bool]
    ) -> None:
        self._path = directory / ALIVE_NAME
        self._unix_now = unix_now
        self._is_needed = is_needed
        self._boot_id = boot_id()
        self._wanted = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._fd: int | None = None

    def start(self) -> None:
        if not self._boot_id:
            return
        with contextlib.suppress(OSError):  # without a stamp an estimate is the whole answer
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            self._thread = threading.Thread(target=self._run, name="looprouter-alive", daemon=True)
            self._thread.start()

    def begin(self) -> None:
        """Something is about to be held: from now on there are stamps."""
        if self._thread is not None and not self._wanted.is_set():
            self._stamp()
            self._wanted.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._is_stopping:
                return
            self._stamp()
            time.sleep(STAMP_EVERY_S)
            if not self._is_needed():
                self._wanted.clear()
                if self._is_needed() or self._is_stopping:  # it began between the two
                    self._wanted.set()

    def _stamp(self) -> None:
        if self._fd is None:
            return
        try:
            os.pwrite(self._fd, _STAMP.pack(self._unix_now(), self._boot_id), 0)
        except OSError:
            # An old stamp would make estimates too small; none makes them whole.
            with contextlib.suppress(OSError):
                self._path.unlink()


def alive_until(directory: Path) -> float | None:
    """
    When the dead process of a journal was alive at the latest; None if nothing sure is known.

    By that process's own ledger clock, which its records are stamped by.
    """
    here = boot_id()
    try:
        stamp = (directory / ALIVE_NAME).read_bytes()
    except OSError:
        return None
    if not here or len(stamp) != _STAMP.size:
        return None
    at_s, there = _STAMP.unpack(stamp)
    return float(at_s) + STAMP_SLACK_S if there == here else None
