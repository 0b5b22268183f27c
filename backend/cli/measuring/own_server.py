"""Our own server as a child of a command: started, waited for, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.cli.measuring.http_client import Address, ConnectionBroken, HttpClient
from backend.errors import SetupError

START_S = 180.0
STOP_S = 20.0
POLL_S = 0.2
LINES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Child:
    address: Address
    command: tuple[str, ...]
    process_id: int


def free_port() -> int:
    """A port that was free a moment ago; the kernel does not give it out again at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve_command(model: str, port: int, options: Sequence[str]) -> list[str]:
    program = [sys.executable, "-m", "backend", "serve", model]
    return [*program, "--host", "127.0.0.1", "--port", str(port), *options]


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, variables: Mapping[str, str], *, start_s: float = START_S
) -> Iterator[Child]:
    """A server on this port while the block lasts. Raises SetupError with its last words."""
    address = Address.parse(f"http://127.0.0.1:{port}")
    with tempfile.TemporaryDirectory(prefix="looprouter-bench-") as folder:
        log = Path(folder, "said.log")
        with log.open("wb") as said:
            process = subprocess.Popen(  # noqa: S603 - the caller's own command, no shell
                list(command),
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_ready(process, address, log, start_s)
            yield Child(address, tuple(command), process.pid)
            if process.poll() is not None:
                raise SetupError(f"the server ended during the run:\n{_last_words(log)}")
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to its group, SIGKILL after a while."""
    for signum, limit_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)


def _wait_ready(
    process: subprocess.Popen[bytes], address: Address, log: Path, start_s: float
) -> None:
    deadline_s = time.monotonic() + start_s
    while not asyncio.run(_is_ready(address)):
        if process.poll() is not None:
            raise SetupError(
                f"the server ended with exit code {process.returncode} before it was ready:\n"
                f"{_last_words(log)}"
            )
        if time.monotonic() > deadline_s:
            raise SetupError(
                f"the server was not ready within {start_s:.0f} s; it said:\n{_last_words(log)}"
            )
        time.sleep(POLL_S)


async def _is_ready(address: Address) -> bool:
    client = HttpClient(address)
    try:
        async with asyncio.timeout(5.0):
            status = await client.request("GET", "/health", {}, b"", lambda _data, _at_s: None)
    except (ConnectionBroken, TimeoutError):
        return False
    finally:
        await client.close()
    return status == 200


def _last_words(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-LINES_SHOWN:]) or "(it said nothing)"
