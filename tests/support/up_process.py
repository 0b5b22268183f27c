"""Runs the real `looprouter up` as a newcomer would, and reads what it says."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.gateway_process import cli_environ
from tests.support.gateway_world import wait_until

READY_S = 90.0


@dataclass
class Up:
    """One run of `looprouter up` and what it has said so far."""

    process: subprocess.Popen[str]
    home: Path
    lines: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    @property
    def base_url(self) -> str:
        found = re.search(r"status page +(http://127\.0\.0\.1:\d+)/", self.said)
        assert found, self.said
        return found.group(1)

    @property
    def port(self) -> int:
        return int(self.base_url.rpartition(":")[2])

    @property
    def key(self) -> str:
        found = re.search(r"API key +(lr-\S+)", self.said)
        assert found, self.said
        return found.group(1)

    @property
    def login(self) -> tuple[str, str]:
        """Name and password of the first admin, which are said once."""
        found = re.search(r"log in as (\w+), password (\S+?);", self.said)
        assert found, self.said
        return found[1], found[2]

    @property
    def curl(self) -> str:
        """The three printed lines, as someone would copy them."""
        found = re.search(r"^curl -N .*?'$", self.said, re.MULTILINE | re.DOTALL)
        assert found, self.said
        lines = self.said[found.start() :].split("\n")
        return "\n".join(lines[:3])

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [
            int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()
        ]


@contextmanager
def running_up(
    home: Path,
    *options: str,
    environ: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[Up]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "up", *options],
        env=cli_environ(home, environ) | dict(environ or {}),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    up = Up(process, home)
    reader = threading.Thread(target=up.read, daemon=True)
    reader.start()
    try:
        wait_until(
            lambda: "Stop with Ctrl-C" in up.said or process.poll() is not None,
            "the greeting",
            wait_s=READY_S,
        )
        assert process.poll() is None, up.said
        yield up
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(30)
        reader.join(10)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_gone(pids: Sequence[int]) -> None:
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the child processes to end")
