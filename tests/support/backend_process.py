"""Runs the real `looprouter-backend serve` as a process of its own and waits until it is ready."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.gateway_process import cli_environ, free_port

READY_S_MAX = 120.0  # kernels may be compiled in it
FREE_S_MAX = 5.0


def backend_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "backend", *arguments]


def run_backend(
    *arguments: str, home: Path, environ: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """One command to its end, whatever its exit code."""
    return subprocess.run(
        backend_command(*arguments),
        env=cli_environ(home, environ),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@dataclass(slots=True)
class RunningBackend:
    port: int
    process: subprocess.Popen[bytes]
    log_path: Path
    key: str = ""

    @property
    def v1(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def model(self) -> str:
        return str(self.get("/v1/models")["data"][0]["id"])

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one exchange on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = dict(headers or {})
        if self.key:
            sent.setdefault("authorization", f"Bearer {self.key}")
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
        try:
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, named, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.ask("GET", path)
        assert status == 200, (status, body)
        return json.loads(body)

    def post(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, _, answer = self.ask("POST", path, body, named)
        assert status == 200, (status, answer)
        return json.loads(answer)

    def assert_all_blocks_free(self) -> None:
        """Nothing runs, nothing waits, no block is held: soon, as the engine's step has an end."""
        deadline_s = time.monotonic() + FREE_S_MAX
        while True:
            load = self.get("/v1/load")
            held = {name: load[name] for name in ("kv_blocks_used", "num_running", "num_waiting")}
            if not any(held.values()):
                return
            assert time.monotonic() < deadline_s, held
            time.sleep(0.02)

    def stop(self, sig: int = signal.SIGTERM, wait_s: float = 40.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            raise AssertionError(f"the backend did not end:\n{self.log()[-4000:]}") from None


def start_backend(
    model: Path | str,
    home: Path,
    *options: str,
    environ: Mapping[str, str] | None = None,
    key: str = "",
    waits: bool = True,
) -> RunningBackend:
    """One thread, as everything in a test; a key also goes into the server's environment."""
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log_path = home / "backend.log"
    given = dict(environ or {})
    if key:
        given["LOOPROUTER_BACKEND_API_KEY"] = key
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            backend_command("serve", str(model), "--port", str(port), "--threads", "1", *options),
            env=cli_environ(home, given),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    running = RunningBackend(port, process, log_path, key)
    if waits:
        wait_ready(running)
    return running


def wait_ready(running: RunningBackend) -> None:
    deadline_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline_s:
        if running.process.poll() is not None:
            raise AssertionError(f"the backend ended at start:\n{running.log()[-4000:]}")
        if health_status(running) == 200:
            return
        time.sleep(0.05)
    running.process.kill()
    raise AssertionError(f"the backend was not ready in time:\n{running.log()[-4000:]}")


def health_status(running: RunningBackend) -> int:
    """0 while nothing listens."""
    try:
        return running.ask("GET", "/health")[0]
    except OSError:
        return 0


@contextmanager
def running_backend(
    model: Path | str, home: Path, *options: str, **more: Any
) -> Iterator[RunningBackend]:
    backend = start_backend(model, home, *options, **more)
    try:
        yield backend
    finally:
        backend.stop()


TINY: Sequence[str] = ("--dtype", "float32", "--quantization", "none", "--kv-cache-mib", "16")
