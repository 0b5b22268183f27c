"""SmolLM2 behind `looprouter up`: real, beside the simulated ones, restarted, and gone with it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from backend.cli.fetch_wheel import SMOLLM2
from backend.cli.model_store import ModelStore, Record, write_record
from gateway.app.own_backend import KEY_ENV, MODEL, model_yaml, provider_yaml
from tests.support.gateway_process import free_port, looprouter
from tests.support.gateway_world import problems_of, status_of, wait_until
from tests.support.text_models import smollm2_file
from tests.support.up_process import Up, is_alive, running_up, wait_gone

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

OWN = f"own/{MODEL}"
LOADED_S = 240.0  # torch is imported, C++ compiled, weights quantised, on a busy machine
STREAMS = 32
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def place_model(home: Path) -> None:
    """As `looprouter-backend models fetch smollm2` leaves it, from the package that tests have."""
    with ModelStore(home / "models").placing(SMOLLM2.name) as folder:
        os.symlink(smollm2_file(), folder / smollm2_file().name)
        write_record(
            folder,
            Record(
                name=SMOLLM2.name,
                served_name=SMOLLM2.served_name,
                source=SMOLLM2.requirement,
                licence=SMOLLM2.licence,
                size_bytes=SMOLLM2.member_bytes,
                file=smollm2_file().name,
                sha256=SMOLLM2.member_sha256,
            ),
        )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("own") / "state"
    home.mkdir()
    place_model(home)
    yield home
    with running_up(home, "--demo", "--lite", "--port", "0"):
        pass  # a start books what a killed gateway left in its journal
    assert problems_of(home) == []


def wait_ready(up: Up, times: int = 1) -> None:
    said = f"{MODEL} is ready"
    wait_until(lambda: up.said.count(said) >= times, f"{said!r}: {up.said}", wait_s=LOADED_S)


def own_row(up: Up) -> dict[str, Any]:
    (row,) = [each for each in status_of(up.base_url)["endpoints"] if each["id"] == OWN]
    return dict(row)


def child_of(up: Up) -> int:
    """The backend among the processes that `up` started; the other serves the simulated ones."""
    (found,) = [
        pid for pid in up.children() if b"backend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found


def ask(up: Up, **more: Any) -> str:
    """One streamed answer by the openai SDK, as text."""
    with OpenAI(base_url=f"{up.base_url}/v1", api_key=up.key, max_retries=0, timeout=120) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, temperature=0.0, **more
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def booked_of_own(home: Path) -> tuple[int, Decimal]:
    """Attempts and dollars of the own model so far; the tests of this file share a home."""
    rows = json.loads(looprouter("ledger", "report", "--by=endpoint", "--json", home=home))
    own = [each for each in rows if each["endpoint"] == OWN]
    return sum(each["attempts"] for each in own), sum(
        (Decimal(each["cost_usd"]) for each in own), Decimal(0)
    )


def test_real_model_answers_beside_the_simulated_ones(home: Path) -> None:
    with running_up(home, "--demo", "--lite", "--port", "0"):
        pass  # makes the ledger, and books what another test's killed gateway left
    attempts_before, _ = booked_of_own(home)
    with running_up(home, "--demo", "--port", "0") as up:
        assert f"own model    {MODEL}" in up.said
        assert "one real model on this machine" in up.said
        wait_ready(up)
        assert "Paris" in ask(up, max_tokens=24)
        rows = {each["id"]: each for each in status_of(up.base_url)["endpoints"]}
        assert [each["is_simulated"] for each in rows.values()].count(True) == 3
        assert not rows[OWN]["is_simulated"]
        assert rows[OWN]["models"] == [MODEL]
        assert "own machine, $0.006 an hour (electricity)" in rows[OWN]["machine_text"]
        assert "own machine, $0.006 an hour" in httpx.get(f"{up.base_url}/").text
        wait_until(lambda: own_row(up)["measured"]["machine"] is not None, "an account of its load")

        with ThreadPoolExecutor(STREAMS) as pool:
            texts = list(pool.map(lambda _: ask(up, max_tokens=16), range(STREAMS)))
        assert all(texts)
        wait_until(
            lambda: own_row(up)["measured"]["machine"]["num_running"] == 0, "all sequences to end"
        )
        assert own_row(up)["measured"]["machine"]["cache_use"] == 0.0
        assert own_row(up)["in_flight"] == 0

        child = child_of(up)
        os.kill(child, signal.SIGKILL)
        wait_ready(up, times=2)
        assert f"{MODEL} ended with exit code -9; started again" in up.said
        assert "Paris" in ask(up, max_tokens=24)

        children = up.children()
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(60) == 0, up.said
        assert not any(is_alive(pid) for pid in children)
    attempts, cost_usd = booked_of_own(home)
    assert cost_usd > 0
    assert attempts == attempts_before + STREAMS + 2
    log = (home / "own-backend.log").read_text()
    assert "Paris" not in log  # prompts and answers are nobody's business


def test_own_model_of_a_policy_is_served_where_it_says_and_dies_with_a_killed_gateway(
    home: Path, tmp_path: Path
) -> None:
    port = free_port()
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\nproviders:\n{provider_yaml(port)}models:\n{model_yaml()}"
        "routes: [{name: all, prefer: {by: fastest}}]\n"
    )
    key = "a-key-of-my-own-0123456789"
    environ = {KEY_ENV: key}
    with running_up(home, "--policy", str(policy), "--port", "0", environ=environ) as up:
        wait_ready(up)
        assert "Paris" in ask(up, max_tokens=24)
        assert "nothing reads" not in up.said
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key) as direct:
            assert [each.id for each in direct.models.list()] == [MODEL]
        child = child_of(up)
        up.process.kill()
        up.process.wait(10)
        wait_gone([child])


def test_without_the_model_or_with_lite_everything_else_runs(home: Path, tmp_path: Path) -> None:
    with running_up(tmp_path, "--demo", "--port", "0") as up:
        assert f"Without {MODEL}, a model on this machine: not fetched" in up.said
        assert len(up.children()) == 1
        assert len(status_of(up.base_url)["endpoints"]) == 3
    with running_up(home, "--demo", "--lite", "--port", "0") as up:
        assert MODEL not in up.said
        assert len(up.children()) == 1
