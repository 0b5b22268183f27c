"""The model on this machine that `looprouter up` serves: started, watched, restarted, stopped.

It is `looprouter-backend serve smollm2` as a child process; the two meet only over HTTP. Whatever
becomes of it, the gateway serves on: without it, a line says why.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gateway.core import Endpoint
from gateway.policy.policy import Policy

PROVIDER = "own"
MODEL = "smollm2-135m-instruct"
FETCHED = "smollm2"  # the backend's short name of it
# Request fields that the backend reads, beside those that every endpoint has; SmolLM2 has no tools.
PARAMETERS = (
    "best_of", "chat_template_kwargs", "echo", "frequency_penalty", "ignore_eos", "logit_bias",
    "logprobs", "min_p", "n", "presence_penalty", "priority", "reasoning_effort",
    "repetition_penalty", "response_format", "seed", "speculation", "stop", "stop_token_ids",
    "suffix", "temperature", "top_k", "top_logprobs", "top_p",
)  # fmt: skip
KEY_ENV = "LOOPROUTER_BACKEND_API_KEY"
# Fixed where free, so that what was learned of it is found again on the next run.
PORT_FIRST = 18_111
LOG_FILE = "own-backend.log"
LOG_BYTES_MAX = 4 * 1024 * 1024  # at a start; what is longer becomes LOG_FILE.1
HEALTH_EVERY_S = 0.5
HEALTH_ANSWER_S_MAX = 5.0
HEALTH_BYTES_MAX = 64 * 1024
READY_S_MAX = 300.0  # weights are read, a first forward is run, C++ is compiled once
BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)
STEADY_S = 60.0  # ready for so long: what made it end before is over
FAILURES_MAX = 5  # in a row; then it is left alone
STOP_S_MAX = 12.0

_NEEDED = ("torch", "tokenizers", "gguf", "safetensors")
# Nothing that the child does not need: no provider's key, no address with a password in it.
_PRIVATE_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_URL", "_PEPPER")

Say = Callable[[str], None]


def missing(home: Path) -> str:
    """Why the model cannot be served here, with what mends it; "" when it can."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return (
            f"{', '.join(absent)} not installed; from a checkout: make run, else: "
            "pip install 'looprouter[backend]'"
        )
    if not (home / "models" / FETCHED / "looprouter.json").is_file():
        return f"not fetched (93 MB); looprouter-backend models fetch {FETCHED}"
    return ""


def provider_yaml(port: int) -> str:
    """Its provider in a policy: a machine whose electricity alone is counted, 30 W of it."""
    return (
        f"  {PROVIDER}:\n"
        f"    api: openai\n"
        f'    base_url: "http://127.0.0.1:{port}/v1"\n'
        f"    network: private\n"
        f"    key_env: {KEY_ENV}\n"
        f"    self_hosted: {{billing: owned, watts: 30, usd_per_kwh: 0.20, "
        f"tokens_per_hour: 100000}}\n"
    )


def model_yaml() -> str:
    """Its public model: no other endpoint of the first policies is the same model."""
    return (
        f"  {MODEL}:\n"
        f"    - provider: {PROVIDER}\n"
        f"      model: {MODEL}\n"
        f"      canonical: {MODEL}\n"
        f"      context: 8192\n"
        f"      capabilities: [text, n, logprobs]\n"
        f"      surfaces: [chat, completions]\n"
        f"      parameters: [{', '.join(PARAMETERS)}]\n"
    )


def port_in(policy: Policy) -> int | None:
    """Where a policy expects it: its endpoint, if that is on this machine and takes its key."""
    endpoint: Endpoint | None = policy.endpoints.get(f"{PROVIDER}/{MODEL}")
    if endpoint is None or endpoint.key_env != KEY_ENV:
        return None
    address = urlsplit(endpoint.base_url)
    return address.port if address.hostname in ("127.0.0.1", "localhost") else None


def with_key(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with a key for the child: the first given, or one made for this run."""
    given = environ.get(KEY_ENV, "").partition(",")[0].strip()
    return {**environ, KEY_ENV: given or secrets.token_urlsafe(24)}


def child_environ(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environ.items()
        if not name.endswith(_PRIVATE_ENDINGS) and not name.startswith("LOOPROUTER_")
    }
    return {**kept, "LOOPROUTER_HOME": str(home), KEY_ENV: environ[KEY_ENV]}


def serve_command(port: int) -> list[str]:
    serve = ["serve", FETCHED, "--host", "127.0.0.1", "--port", str(port), "--with-parent"]
    return [sys.executable, "-m", "backend", *serve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How patient the supervisor is; tests are less."""

    health_every_s: float = HEALTH_EVERY_S
    ready_s_max: float = READY_S_MAX
    back_off_s: Sequence[float] = BACK_OFF_S
    steady_s: float = STEADY_S
    failures_max: int = FAILURES_MAX
    stop_s_max: float = STOP_S_MAX


class _Health(msgspec.Struct):
    """What is read of `/health`."""

    model: str = ""


class OwnBackend:
    """One child at a time. `environ` must hold its key; `say` prints one line."""

    def __init__(
        self,
        port: int,
        home: Path,
        environ: Mapping[str, str],
        *,
        say: Say,
        command: Sequence[str] = (),
        timing: Timing | None = None,
    ) -> None:
        self.port = port
        self.log_path = home / LOG_FILE
        self._command = [*(command or serve_command(port))]
        self._environ = child_environ(environ, home)
        self._say = say
        self._timing = timing or Timing()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def supervise(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        """
        Keep it running until cancelled; return when it has failed too often in a row.

        `on_ready` is awaited each time that it has become ready.
        """
        try:
            await self._keep(on_ready)
        except OSError as error:
            self._say(f"{MODEL} cannot be served here: {error}")

    async def _keep(self, on_ready: Callable[[], Awaitable[None]]) -> None:
        timing, num_failed = self._timing, 0
        while True:
            self._start()
            why = await self._until_ready()
            if not why:
                ready_at_s = time.monotonic()
                await on_ready()
                why = await self._until_end()
                if time.monotonic() - ready_at_s >= timing.steady_s:
                    num_failed = 0
            await asyncio.to_thread(self.stop)
            num_failed += 1
            if num_failed >= timing.failures_max:
                self._say(f"{MODEL} {why}, {num_failed} times in a row; left out ({self.log_path})")
                return
            wait_s = timing.back_off_s[min(num_failed, len(timing.back_off_s)) - 1]
            self._say(f"{MODEL} {why}; started again in {wait_s:g} s ({self.log_path})")
            await asyncio.sleep(wait_s)

    def _start(self) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_name(f"{LOG_FILE}.1"))
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # A session of its own: Ctrl-C reaches us first, and we stop it after the drain. Its
            # standard input tells it when we are gone, however that came about.
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no user text in it
                self._command,
                stdin=subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                env=self._environ,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    async def _until_ready(self) -> str:
        """ "" once /health says so, else what happened instead."""
        deadline_s = time.monotonic() + self._timing.ready_s_max
        while time.monotonic() < deadline_s:
            if ended := self._ended():
                return ended
            if await asyncio.to_thread(is_healthy, self.port):
                return ""
            await asyncio.sleep(self._timing.health_every_s)
        return f"was not ready within {self._timing.ready_s_max:.0f} s"

    async def _until_end(self) -> str:
        while True:
            if ended := self._ended():
                return ended
            await asyncio.sleep(self._timing.health_every_s)

    def _ended(self) -> str:
        assert self._process is not None

        code = self._process.poll()
        return "" if code is None else f"ended with exit code {code}"

    def stop(self) -> None:
        """End the child: SIGTERM, on which it drains, and SIGKILL if that takes too long."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(self._timing.stop_s_max)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None


def is_healthy(port: int) -> bool:
    """Whether the server on this port says that it would answer a request, with our model."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTH_ANSWER_S_MAX)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        said = msgspec.json.decode(answer.read(HEALTH_BYTES_MAX), type=_Health)
        return answer.status == 200 and said.model == MODEL
    except (OSError, http.client.HTTPException, msgspec.MsgspecError):
        return False
    finally:
        connection.close()
