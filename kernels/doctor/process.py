"""One op in a process of its own, under a time limit; what becomes of the process is a finding."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec

import kernels
from kernels.doctor.checking import Task
from kernels.doctor.child import READY
from kernels.doctor.verdict import OpReport, Outcome

START_S_MAX = 180.0  # torch is imported in it, perhaps from a cold disk
KILL_S_MAX = 10.0
ANSWER_BYTES_MAX = 1 << 20
SAID_BYTES = 4096  # of a dying process' last words
SAID_CHARS = 200


class ChildFailed(Exception):
    """The process did not start."""


class Child:
    """Started at once; `try_op` when its turn comes, then `close`."""

    def __init__(self) -> None:
        # Our own packages come first, wherever this process found them; the folder that the
        # command was started in does not come at all (-P).
        own = str(Path(kernels.__file__).resolve().parents[1])
        paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernels.doctor.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # so that compilers it started go with it
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def try_op(self, task: Task, limit_s: float) -> OpReport:
        """What the op did. Raises ChildFailed if the process never came up."""
        if self._line(START_S_MAX) != READY:
            raise ChildFailed(f"a process to try kernels in does not start: {self._last_words()}")
        began_at_s = time.monotonic()
        answer = None
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            given = msgspec.structs.replace(task, limit_s=limit_s)
            self._process.stdin.write(msgspec.json.encode(given) + b"\n")
            self._process.stdin.flush()
            answer = self._line(limit_s)
        took_s = time.monotonic() - began_at_s
        if answer is None and took_s >= limit_s and self._process.poll() is None:
            reason = f"no end within {limit_s:g} s"
            if not self.close():
                reason += "; its process cannot be killed"
            return OpReport(op=task.op, outcome=Outcome.HUNG, reason=reason, took_s=took_s)
        try:
            report = msgspec.json.decode(answer or b"", type=OpReport)
        except msgspec.DecodeError:
            return OpReport(
                op=task.op, outcome=Outcome.CRASHED, reason=self._death(), took_s=took_s
            )  # fmt: skip
        return msgspec.structs.replace(report, took_s=took_s)

    def close(self) -> bool:
        """Ends the process and what it started. False if the system cannot: it waits for a device
        that does not answer."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(KILL_S_MAX)
            except subprocess.TimeoutExpired:
                return False
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._said.close()
        return True

    def _line(self, limit_s: float) -> bytes | None:
        """None: the limit has passed, or the process ended without one."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + limit_s
        read = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not read.endswith(b"\n") and len(read) < ANSWER_BYTES_MAX:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    return None
                part = os.read(self._process.stdout.fileno(), 65536)
                if not part:
                    return None
                read += part
        return bytes(read)

    def _death(self) -> str:
        """How the process ended, and its last words: the driver says there what the fault was."""
        try:
            code = self._process.wait(KILL_S_MAX)
        except subprocess.TimeoutExpired:
            return "it closed its pipe and does not end"
        how = f"exit code {code}"
        if code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        words = self._last_words()
        return f"{how}: {words}" if words else how

    def _last_words(self) -> str:
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - SAID_BYTES))
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:SAID_CHARS] if lines else ""
