"""Runs the real `looprouter serve` as a process of its own and waits until it is ready."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

READY_S_MAX = 60.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def looprouter(*arguments: str, home: Path, environ: Mapping[str, str] | None = None) -> str:
    """Standard output of one CLI command; fails the test with its error output otherwise."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        env=cli_environ(home, environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stderr}\n{done.stdout}"
    return done.stdout


def cli_environ(home: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process without any LoopRouter or provider variable, plus ours."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LOOPROUTER_") and not name.endswith("_API_KEY")
    }
    # Compiling every module anew at each start would cost more than all else that a test does.
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return {
        **kept,
        "LOOPROUTER_HOME": str(home),
        "LOOPROUTER_LOG_FORMAT": "json",
        **(environ or {}),
    }


@dataclass(slots=True)
class RunningGateway:
    base_url: str  # without /v1
    port: int
    home: Path
    key: str
    process: subprocess.Popen[bytes]
    log_path: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def v1(self) -> str:
        return f"{self.base_url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def create_key(self, *options: str) -> str:
        out = looprouter("keys", "create", "--json", *options, home=self.home, environ=self.environ)
        return str(json.loads(out)["key"])

    def stop(self, sig: int = signal.SIGTERM, wait_s: float = 20.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(5)


def start_gateway(
    policy: str,
    home: Path,
    *,
    environ: Mapping[str, str] | None = None,
    key_options: Sequence[str] = (),
    port: int = 0,
    arguments: Sequence[str] = (),
    key: str = "",
) -> RunningGateway:
    """Write the policy into `home`, create a key, serve, wait for /readyz."""
    home.mkdir(parents=True, exist_ok=True)
    policy_path = home / "policy.yaml"
    policy_path.write_text(policy)
    environ = environ or {}
    if not key:
        out = looprouter("keys", "create", "--json", *key_options, home=home, environ=environ)
        key = str(json.loads(out)["key"])
    port = port or free_port()
    log_path = home / "gateway.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gateway",
                "serve",
                "--policy",
                str(policy_path),
                "--port",
                str(port),
                *arguments,
            ],
            env=cli_environ(home, environ),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    running = RunningGateway(
        f"http://127.0.0.1:{port}", port, home, key, process, log_path, dict(environ)
    )
    wait_ready(running)
    return running


def wait_ready(running: RunningGateway) -> None:
    deadline_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline_s:
        if running.process.poll() is not None:
            raise AssertionError(f"the gateway ended at start:\n{running.log()[-4000:]}")
        if status_of_path(running.port, "/readyz") == 200:
            return
        time.sleep(0.02)
    running.process.kill()
    raise AssertionError(f"the gateway was not ready in time:\n{running.log()[-4000:]}")


def status_of_path(port: int, path: str) -> int:
    """The status of one GET on this machine; 0 while nothing listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@contextmanager
def running_gateway(policy: str, home: Path, **options: object) -> Iterator[RunningGateway]:
    gateway = start_gateway(policy, home, **options)  # type: ignore[arg-type]
    try:
        yield gateway
    finally:
        gateway.stop()
