"""`looprouter up` as a newcomer meets it: on a terminal and off it, the first time and again."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.gateway_process import free_port, looprouter, status_of_path
from tests.support.gateway_world import Client, chat, problems_of, status_of
from tests.support.up_process import Up, running_up, wait_gone

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

FOUND_KEY = {"OPENAI_API_KEY": "sk-found-in-the-environment-0123456789"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("newcomer") / "state"


def test_two_runs_and_a_kill(home: Path) -> None:
    key, port = first_run(home)
    second_run(home, key, port)
    third_run(home, key)


def log_in_as_printed(up: Up) -> None:
    """The first admin's password is printed by the first start, and opens the dashboard."""
    [(name, password)] = re.findall(r"log in as (\S+), password (\S+);", up.said)
    with httpx.Client(base_url=up.base_url, headers={"origin": up.base_url}) as client:
        csrf = client.get("/admin/api/session").json()["csrf"]
        said = {"name": name, "password": password}
        answer = client.post("/admin/api/session", json=said, headers={"x-csrf-token": csrf})
        page = client.get("/admin/keys")

    assert (answer.status_code, answer.json()["role"]) == (200, "owner")
    assert page.status_code == 200
    assert "first key of looprouter up" in page.text


def first_run(home: Path) -> tuple[str, int]:
    """Without a terminal: found keys are named and left alone; a busy port is passed over."""
    busy = socket.socket()
    busy.bind(("127.0.0.1", 0))
    busy.listen()
    port = busy.getsockname()[1]
    with busy, running_up(home, "--port", str(port), environ=FOUND_KEY) as up:
        assert f"Port {port} is busy; using {up.port}." in up.said
        assert up.port > port
        assert "OPENAI_API_KEY" in up.said
        assert "not used" in up.said
        assert FOUND_KEY["OPENAI_API_KEY"] not in up.said
        assert "a new key with a $5 budget" in up.said
        log_in_as_printed(up)
        status = status_of(up.base_url)
        assert all(each["is_simulated"] for each in status["endpoints"])
        assert len(status["endpoints"]) == 3

        done = subprocess.run(
            ["bash", "-c", up.curl], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.split("\n") if line]
        assert len(lines) > 5
        assert all(line.startswith((":", "data: ")) for line in lines)
        assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
        assert lines[-1] == "data: [DONE]"

        providers = up.children()
        assert len(providers) == 1
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(30) == 0, up.said
        wait_gone(providers)
        assert status_of_path(up.port, "/healthz") == 0
        return up.key, up.port


def second_run(home: Path, key: str, port: int) -> None:
    """The same key and data; the budget holds; a SIGKILL leaves no provider behind."""
    with running_up(home, "--demo", "--port", str(port), environ=FOUND_KEY) as up:
        assert "OPENAI_API_KEY" not in up.said
        assert up.key == key
        assert "the key of your last run" in up.said
        assert "password" not in up.said  # of the first admin: once
        assert up.port == port
        spent = status_of(up.base_url)["spend_usd"]
        assert float(spent) > 0  # the first run's

        client = Client(up.base_url, up.key)
        # 32 choices of the longest answer at the dear endpoint: $7.8 may be spent on it.
        beyond = client.ask(
            chat("[[sim tokens=2]]", n=32, max_tokens=16_384, provider={"only": ["simulated-fast"]})
        )
        assert (beyond.status, beyond.code) == (429, "insufficient_quota")
        assert "$5" in beyond.json["error"]["message"]
        assert beyond.headers["x-should-retry"] == "false"
        assert client.ask(chat("[[sim tokens=2]]", max_tokens=8)).status == 200

        providers = up.children()
        up.process.kill()
        up.process.wait(10)
        wait_gone(providers)


def third_run(home: Path, key: str) -> None:
    """On a terminal it asks; `n` means no. What the killed run left is booked."""
    controller, terminal = pty.openpty()
    os.write(controller, b"n\n")
    try:
        with running_up(home, "--port", "0", environ=FOUND_KEY, stdin=terminal) as up:
            assert "Use them? Requests will be billed to them" in up.said
            assert "They are not used" in up.said
            assert up.key == key
            assert Client(up.base_url, key).ask(chat("[[sim tokens=2]]")).status == 200
            # Ctrl-C is SIGINT to the whole group; ours alone must do.
            up.process.send_signal(signal.SIGINT)
            assert up.process.wait(30) == 0, up.said
    finally:
        os.close(controller)
        os.close(terminal)
    assert problems_of(home) == []
    (row,) = json.loads(looprouter("keys", "list", "--json", home=home))
    assert row["budgets"] == ["$5.00/total"]


def test_yes_uses_the_keys_found_and_sends_nothing_by_itself(tmp_path: Path) -> None:
    port = free_port()
    with running_up(tmp_path, "--yes", "--port", str(port), environ=FOUND_KEY) as up:
        assert f"Wrote a first policy to {tmp_path / 'policy.yaml'}" in up.said
        assert not up.children()
        status = status_of(up.base_url)
        assert status["endpoints"]
        assert not any(each["is_simulated"] for each in status["endpoints"])
        assert {each["id"].partition("/")[0] for each in status["endpoints"]} == {"openai"}
        assert status["requests_total"] == 0
        assert all(each["measured"]["share"]["started"] == 0 for each in status["endpoints"])
        page = httpx.get(f"{up.base_url}/").text
    everything = (
        up.said
        + page
        + "".join(
            path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()
        )
    )
    assert FOUND_KEY["OPENAI_API_KEY"] not in everything
    assert (tmp_path / "first-key").stat().st_mode & 0o077 == 0
