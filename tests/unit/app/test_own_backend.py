"""The own model's supervisor before real child processes that end, hang, lie or serve."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import fields

from backend.api.bodies import ChatBody, CompletionsBody
from gateway.app.own_backend import (
    FETCHED,
    KEY_ENV,
    LOG_BYTES_MAX,
    MODEL,
    PARAMETERS,
    OwnBackend,
    Timing,
    child_environ,
    is_healthy,
    missing,
    model_yaml,
    port_in,
    provider_yaml,
    serve_command,
    with_key,
)
from gateway.policy.load import load_policy
from gateway.simulator.demo import demo_policy_yaml, demo_profiles
from tests.support.gateway_process import free_port

pytestmark = pytest.mark.anyio

QUICK = Timing(
    health_every_s=0.02,
    ready_s_max=5.0,
    back_off_s=(0.05,),
    steady_s=60.0,
    failures_max=3,
    stop_s_max=0.5,
)
SERVER = """
import http.server, json, os, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"model": MODEL}).encode()
        self.send_response(STATUS)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
print("I serve", os.environ["LOOPROUTER_BACKEND_API_KEY"], flush=True)
http.server.HTTPServer(("127.0.0.1", PORT), Page).serve_forever()
"""


def serving(port: int, *, model: str = MODEL, status: int = 200) -> list[str]:
    script = SERVER.replace("MODEL", repr(model)).replace("PORT", str(port))
    return [sys.executable, "-c", script.replace("STATUS", str(status))]


@dataclass
class Told:
    lines: list[str] = field(default_factory=list)
    num_ready: int = 0
    task: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        self.num_ready += 1


@asynccontextmanager
async def supervised(
    home: Path, command: list[str], port: int = 0, timing: Timing = QUICK
) -> AsyncIterator[tuple[OwnBackend, Told]]:
    told = Told()
    own = OwnBackend(
        port, home, with_key({}), say=told.lines.append, command=command, timing=timing
    )
    told.task = asyncio.create_task(own.supervise(told.ready))
    try:
        yield own, told
    finally:
        told.task.cancel()
        await asyncio.gather(told.task, return_exceptions=True)
        await asyncio.to_thread(own.stop)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_server_is_ready_when_its_health_page_says_so_and_ends_with_us(
    tmp_path: Path,
) -> None:
    port = free_port()
    async with supervised(tmp_path, serving(port), port) as (own, told):
        await until(lambda: told.num_ready == 1)
        pid = own.pid
        assert pid is not None
        assert told.lines == []
        assert os.getsid(pid) == pid  # Ctrl-C on the terminal is not for it

    assert not is_alive(pid)
    log = (tmp_path / "own-backend.log").read_text()
    assert log.startswith("I serve ")
    assert (tmp_path / "own-backend.log").stat().st_mode & 0o077 == 0


async def test_server_that_dies_is_started_again_and_said_to_be(tmp_path: Path) -> None:
    port = free_port()
    async with supervised(tmp_path, serving(port), port) as (own, told):
        await until(lambda: told.num_ready == 1)
        assert own.pid is not None
        os.kill(own.pid, signal.SIGKILL)
        await until(lambda: told.num_ready == 2)

    assert len(told.lines) == 1
    assert told.lines[0].startswith(f"{MODEL} ended with exit code -9; started again in 0.05 s")


async def test_program_that_always_ends_is_left_out_after_some_tries(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    async with supervised(tmp_path, command) as (_, told):
        assert told.task is not None
        await asyncio.wait_for(told.task, 20)

    assert told.num_ready == 0
    assert [line.partition(";")[0] for line in told.lines] == [
        f"{MODEL} ended with exit code 3",
        f"{MODEL} ended with exit code 3",
        f"{MODEL} ended with exit code 3, 3 times in a row",
    ]
    assert "left out" in told.lines[-1]
    assert str(tmp_path / "own-backend.log") in told.lines[-1]
    assert (tmp_path / "own-backend.log").read_text() == "no such model\n" * 3


async def test_deaths_long_apart_are_not_counted_together(tmp_path: Path) -> None:
    port = free_port()
    steady = Timing(
        health_every_s=0.02, back_off_s=(0.02,), steady_s=0.0, failures_max=2, stop_s_max=0.5
    )
    async with supervised(tmp_path, serving(port), port, steady) as (own, told):
        for number in (1, 2, 3, 4):
            await until(lambda number=number: told.num_ready == number)
            assert own.pid is not None
            os.kill(own.pid, signal.SIGKILL)
        await until(lambda: told.num_ready == 5)


@pytest.mark.parametrize("health", [{"status": 503}, {"model": "another-model"}])
async def test_server_that_loads_for_ever_or_is_another_is_never_ready(
    tmp_path: Path, health: dict[str, object]
) -> None:
    port = free_port()
    impatient = Timing(
        health_every_s=0.02, ready_s_max=0.7, back_off_s=(0.01,), failures_max=1, stop_s_max=0.5
    )
    command = serving(port, **health)  # type: ignore[arg-type]
    async with supervised(tmp_path, command, port, impatient) as (_, told):
        assert told.task is not None
        await asyncio.wait_for(told.task, 20)

    assert told.num_ready == 0
    assert "was not ready within 1 s" in told.lines[0]


async def test_child_that_does_not_heed_the_request_to_end_is_killed(tmp_path: Path) -> None:
    port = free_port()
    deaf = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{serving(port)[-1]}"
    async with supervised(tmp_path, [sys.executable, "-c", deaf], port) as (own, told):
        await until(lambda: told.num_ready == 1)
        pid = own.pid
        assert pid is not None

    assert not is_alive(pid)


async def test_program_that_cannot_be_started_at_all_is_said_and_nothing_is_raised(
    tmp_path: Path,
) -> None:
    async with supervised(tmp_path, [str(tmp_path / "no-such-program")]) as (_, told):
        assert told.task is not None
        await asyncio.wait_for(told.task, 20)

    assert len(told.lines) == 1
    assert told.lines[0].startswith(f"{MODEL} cannot be served here: ")


async def test_long_log_is_put_aside_at_a_start(tmp_path: Path) -> None:
    (tmp_path / "own-backend.log").write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    command = [sys.executable, "-c", "print('fresh')"]
    async with supervised(tmp_path, command) as (_, told):
        assert told.task is not None
        await asyncio.wait_for(told.task, 20)

    assert (tmp_path / "own-backend.log").read_text().startswith("fresh")
    assert (tmp_path / "own-backend.log.1").stat().st_size == LOG_BYTES_MAX + 1


async def test_something_else_on_the_port_is_no_health(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        assert not is_healthy(busy.getsockname()[1])


def test_what_is_missing_is_said_with_what_mends_it(tmp_path: Path) -> None:
    assert f"looprouter-backend models fetch {FETCHED}" in missing(tmp_path)
    folder = tmp_path / "models" / FETCHED
    folder.mkdir(parents=True)
    (folder / "looprouter.json").write_text("{}")

    assert missing(tmp_path) == ""


def test_child_gets_its_key_and_home_and_nobody_elses_secrets(tmp_path: Path) -> None:
    ours = with_key(
        {
            "PATH": "/bin",
            "HF_HOME": "/models",
            "OPENAI_API_KEY": "sk-1",
            "HF_TOKEN": "hf-1",
            "LOOPROUTER_PEPPER": "p" * 40,
            "LOOPROUTER_DATABASE_URL": "postgresql://u:secret@h/d",
        }
    )
    child = child_environ(ours, tmp_path)

    assert child == {
        "PATH": "/bin",
        "HF_HOME": "/models",
        "LOOPROUTER_HOME": str(tmp_path),
        KEY_ENV: ours[KEY_ENV],
    }
    assert len(ours[KEY_ENV]) >= 32
    assert with_key({KEY_ENV: "given-key-1,given-key-2"})[KEY_ENV] == "given-key-1"
    assert ours[KEY_ENV] not in str(serve_command(1))


def test_policy_with_the_own_model_loads_and_says_where_it_is() -> None:
    ports = {each.name: 9_000 + idx for idx, each in enumerate(demo_profiles())}
    text = demo_policy_yaml(ports, more_providers=provider_yaml(18_111), more_models=model_yaml())
    with_own = load_policy(text.encode(), environ={KEY_ENV: "k" * 20})
    without = load_policy(demo_policy_yaml(ports).encode(), environ={})
    own = with_own.endpoints[f"own/{MODEL}"]

    assert port_in(with_own) == 18_111
    assert port_in(without) is None
    assert with_own.models[MODEL] == (own.id,)
    assert not own.is_simulated
    assert own.canonical_model == MODEL
    # 30 W at $0.20 a kWh.
    assert (own.usd_per_hour_nanos, own.billing) == (6_000_000, "owned")
    assert next(iter(with_own.models)) == "chat"  # what the greeting tries


@pytest.mark.parametrize(
    "base_url", ["http://10.0.0.7:18111/v1", "http://models.internal:18111/v1"]
)
def test_own_model_on_another_machine_is_not_started_here(base_url: str) -> None:
    text = (
        "version: 1\nproviders:\n"
        + provider_yaml(18_111).replace("http://127.0.0.1:18111/v1", base_url)
        + "models:\n"
        + model_yaml()
    )

    assert port_in(load_policy(text.encode(), environ=None)) is None


def test_fields_in_its_policy_are_those_that_the_backend_reads() -> None:
    """But for tools, of which this model knows nothing, and fields that every endpoint has."""
    read = {field.name for body in (ChatBody, CompletionsBody) for field in fields(body)}
    common = {
        *("model", "messages", "prompt", "stream", "stream_options", "max_tokens"),
        "max_completion_tokens",
    }
    tools = {"tools", "tool_choice", "parallel_tool_calls", "functions"}

    assert sorted(read - common - tools) == list(PARAMETERS)
