"""From the first line to the last: starting, keys, too much at once, draining, the end."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.dispatch import REFERENCE
from tests.support.backend_process import (
    TINY,
    RunningBackend,
    backend_command,
    health_status,
    run_backend,
    running_backend,
    start_backend,
)
from tests.support.gateway_process import cli_environ, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TEXT = "/v1/completions"
KEY = "a-key-for-this-test"
MODEL = "spelling"


def endless(max_tokens: int = 15_000) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "a", "max_tokens": max_tokens, "stream": True}


class Stream:
    """One stream, read in a thread."""

    def __init__(self, backend: RunningBackend, body: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", backend.port, timeout=60)
        headers = {"authorization": f"Bearer {backend.key}"} if backend.key else {}
        self._connection.request("POST", TEXT, body=json.dumps(body), headers=headers)
        self.lines: list[bytes] = []
        self.status = 0
        self.has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        answer = self._connection.getresponse()
        self.status = answer.status
        for line in answer:
            if line.strip():
                self.lines.append(line.strip())
            self.has_begun.set()
        self.has_begun.set()

    def join(self) -> list[bytes]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._connection.close()
        return self.lines

    def leave(self) -> None:
        sock = self._connection.sock
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        self.join()


@pytest.fixture(scope="module")
def small(
    spelling_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBackend]:
    """One sequence runs, two may wait; it wants a key."""
    options = (*TINY, "--sequences", "1", "--waiting", "2", "--first-token-limit", "3")
    home = tmp_path_factory.mktemp("small")
    with running_backend(spelling_model, home, *options, key=KEY) as backend:
        yield backend


@pytest.fixture(autouse=True)
def _no_block_stays_taken(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "small" in request.fixturenames:
        request.getfixturevalue("small").assert_all_blocks_free()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/models", 401), ("/v1/load", 401), ("/metrics", 401), ("/health", 200)],
)
def test_every_page_but_health_wants_the_key(small: RunningBackend, path: str, status: int) -> None:
    for wrong in ({"authorization": "Bearer wrong"}, {"authorization": ""}):
        assert small.ask("GET", path, headers=wrong)[0] == status
    assert small.ask("GET", path, headers={"authorization": f"Bearer {KEY}"})[0] == 200


def test_health_and_metrics_say_who_computes(small: RunningBackend) -> None:
    kernels = small.get("/health")["kernels"]
    metrics = small.ask("GET", "/metrics")[2].decode()

    assert kernels["served_by"].keys() == REFERENCE.keys()
    assert set(kernels["served_by"].values()) <= {"native", "reference"}
    # A CPU's ops are tested when they are built; the doctor is for GPUs.
    assert (kernels["doctor"], kernels["withheld"]) == ("not examined", {})
    assert "\nbackend_kernels_withheld 0.0\n" in metrics


def test_wrong_key_is_a_401_in_openais_shape(small: RunningBackend) -> None:
    headers = {"authorization": "Bearer wrong"}

    status, named, body = small.ask("POST", TEXT, endless(), headers)

    assert status == 401
    assert named["www-authenticate"] == "Bearer"
    assert json.loads(body)["error"]["code"] == "invalid_api_key"


def test_too_much_at_once_is_a_429_with_a_time_to_come_again(small: RunningBackend) -> None:
    running = Stream(small, endless())
    running.has_begun.wait(30)
    waiting = [Stream(small, endless(2)) for _ in range(2)]
    deadline_s = time.monotonic() + 10
    while small.get("/v1/load")["num_waiting"] < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)

    status, headers, body = small.ask("POST", TEXT, {**endless(), "stream": False})
    stream_status = small.ask("POST", TEXT, endless())[0]
    running.leave()

    assert (status, stream_status) == (429, 429)
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert int(headers["retry-after"]) >= 1
    assert headers["x-should-retry"] == "true"
    for each in waiting:  # as soon as there is room
        assert each.join()[-1] == b"data: [DONE]"


def test_choices_that_do_not_all_fit_are_refused_together(small: RunningBackend) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 5, "n": 9}

    assert small.ask("POST", TEXT, body)[0] == 429
    small.assert_all_blocks_free()


def test_request_that_waits_too_long_for_its_first_token_is_a_504(small: RunningBackend) -> None:
    running = Stream(small, endless())
    running.has_begun.wait(30)

    status, _, body = small.ask("POST", TEXT, {**endless(), "stream": False})
    running.leave()

    assert status == 504
    assert "first token within 3 s" in json.loads(body)["error"]["message"]


def test_greeting_names_the_address_and_a_line_that_works(small: RunningBackend) -> None:
    said = small.log()
    line = said[said.index("  curl ") :].split("\n20")[0]

    words = shlex.split(line.replace("\\\n", " "))
    assert words[0] == "curl"
    url, body = words[1], words[words.index("-d") + 1]
    headers = [words[idx + 1] for idx, word in enumerate(words) if word == "-H"]
    assert "authorization: Bearer $LOOPROUTER_BACKEND_API_KEY" in headers
    assert url.startswith(small.v1)
    status, _, answer = small.ask("POST", url.partition(str(small.port))[2], body.encode())
    assert status == 200
    assert json.loads(answer)["choices"][0]["message"]["content"].startswith("Hello")
    assert f"{MODEL} is ready on {small.v1} (llama, cpu, float32, 1 thread, context 16384)" in said


def test_drain_lets_answers_finish_and_refuses_new_ones(
    spelling_model: Path, tmp_path: Path
) -> None:
    backend = start_backend(spelling_model, tmp_path, *TINY)
    running = Stream(backend, endless(1_500))
    running.has_begun.wait(30)
    # A connection that was open before: the drain closes the listening socket in the end only.
    backend.process.send_signal(signal.SIGTERM)
    deadline_s = time.monotonic() + 5
    while health_status(backend) != 503 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    status, headers, body = backend.ask("POST", TEXT, endless())
    lines = running.join()

    assert status == 503
    assert headers["x-should-retry"] == "true"
    assert json.loads(body)["error"]["code"] == "unavailable"
    assert lines[-1] == b"data: [DONE]"
    assert len(lines) >= 1_500
    assert backend.process.wait(20) == 0
    assert "Traceback" not in backend.log()


def test_drain_has_an_end_and_says_so_in_the_stream(spelling_model: Path, tmp_path: Path) -> None:
    backend = start_backend(spelling_model, tmp_path, *TINY, "--drain", "0.3")
    running = Stream(backend, endless())
    running.has_begun.wait(30)

    began_at_s = time.monotonic()
    assert backend.stop() == 0

    assert time.monotonic() - began_at_s < 10
    last = json.loads(running.join()[-1].removeprefix(b"data: "))
    assert last["error"]["code"] == "unavailable"
    assert "shutting down" in last["error"]["message"]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_ends_at_once(spelling_model: Path, tmp_path: Path, sig: int) -> None:
    backend = start_backend(spelling_model, tmp_path, *TINY)

    began_at_s = time.monotonic()
    assert backend.stop(sig) == 0

    assert time.monotonic() - began_at_s < 5
    assert "Traceback" not in backend.log()


def test_server_of_a_parent_ends_with_it(spelling_model: Path, tmp_path: Path) -> None:
    port = free_port()
    command = backend_command("serve", str(spelling_model), "--port", str(port), "--with-parent")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *TINY],
            env=cli_environ(tmp_path),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    backend = RunningBackend(port, process, tmp_path / "log")
    deadline_s = time.monotonic() + 60
    while health_status(backend) != 200 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert process.poll() is None, backend.log()

    assert process.stdin is not None
    process.stdin.close()

    assert process.wait(20) == 0


def _with_pickles(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            os.link(path, target / path.name)
    (target / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    return target


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("nosuch", "models fetch smollm2"),
        ("no.gguf", "no .gguf file"),
        ("pickles", "safetensors"),
        ("open", "LOOPROUTER_BACKEND_API_KEY"),
        ("short key", "fewer than 8 characters"),
        ("busy", "choose another with --port"),
        ("no memory", "cache"),
        ("too much memory", "--kv-cache-mib"),
        ("too long", "16384"),
        ("bad template", "chat template"),
    ],
)
def test_refusal_is_one_clear_line_and_exit_code_3(
    spelling_model: Path, tmp_path: Path, case: str, said: str
) -> None:
    arguments: list[str] = [str(spelling_model), *TINY]
    environ: dict[str, str] = {}
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen()
    port = held.getsockname()[1] if case == "busy" else 0
    if case in ("nosuch", "no.gguf"):
        arguments[0] = case
    elif case == "pickles":
        arguments[0] = str(_with_pickles(spelling_model, tmp_path / "pickles"))
    elif case == "open":
        arguments += ["--host", "0.0.0.0"]
    elif case == "short key":
        environ["LOOPROUTER_BACKEND_API_KEY"] = "short"
    elif case == "no memory":
        arguments += ["--kv-cache-mib", "1"]
    elif case == "too much memory":
        arguments += ["--kv-cache-mib", "500000000"]
    elif case == "too long":
        arguments += ["--context", "20000"]
    elif case == "bad template":
        arguments[0] = str(_with_template(spelling_model, tmp_path / "bad", "{{ messages | }}"))

    done = run_backend("serve", *arguments, "--port", str(port), home=tmp_path, environ=environ)
    held.close()

    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    [line] = [each for each in done.stderr.splitlines() if each.startswith("looprouter-backend:")]
    assert said in line
    assert "is ready" not in done.stdout


def _with_template(source: Path, target: Path, template: str) -> Path:
    target.mkdir()
    for path in source.iterdir():
        os.link(path, target / path.name)
    config = target / "tokenizer_config.json"
    changed = {**json.loads(config.read_text()), "chat_template": template}
    config.unlink()
    config.write_text(json.dumps(changed))
    return target
