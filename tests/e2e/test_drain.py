"""SIGTERM of a running gateway: what runs ends whole, what is new is refused, then it is gone."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.simulator.profile import ProviderProfile
from tests.support.gateway_process import RunningGateway, start_gateway, status_of_path
from tests.support.gateway_world import (
    CHAT,
    Client,
    bearer,
    budget,
    chat,
    issue_key,
    problems_of,
    rows_of,
    status_of,
    texts_of,
    wait_until,
)
from tests.support.simulator_process import (
    BRISK,
    SimulatorProcess,
    policy_over,
    simulator_processes,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LONG = "[[sim tokens=30]]"  # three seconds
ENDLESS = "[[sim tokens=2000]]"
SLOW: dict[str, Any] = {**BRISK, "tokens_per_s": 10.0, "tokens_per_event": 1}
PROFILES = (
    ProviderProfile(**{**SLOW, "name": "calm", "model": "sim"}),
    ProviderProfile(**{**SLOW, "name": "claude", "model": "sim"}),
)
Providers = dict[str, SimulatorProcess]


class Listener(threading.Thread):
    """One request in a thread of its own; `began` is set at the first byte of the answer."""

    def __init__(self, gateway: RunningGateway, path: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.began = threading.Event()
        self.status = 0
        self.text = ""
        self._url, self._body = gateway.base_url + path, body
        self._headers = {**bearer(gateway.key), "anthropic-version": "2023-06-01"}
        self.start()

    def run(self) -> None:
        with httpx.stream(
            "POST", self._url, json=self._body, headers=self._headers, timeout=120
        ) as answer:
            self.status = answer.status_code
            for part in answer.iter_text():
                self.text += part
                self.began.set()

    def ended(self) -> Listener:
        self.join(60)
        assert not self.is_alive()
        return self


@pytest.fixture(scope="module")
def providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Providers]:
    with simulator_processes(PROFILES, tmp_path_factory.mktemp("providers")) as running:
        yield running


def gateway_over(providers: Providers, home: Path, drain: str) -> RunningGateway:
    policy = policy_over(
        providers,
        {"chat": ("calm",), "claude": ("claude",)},
        anthropic=("claude",),
        more=f"drain: {drain}\n",
    )
    key = issue_key(home, budgets=budget(1_000))
    return start_gateway(policy, home, key=key)


def test_streams_end_whole_within_the_limit_and_new_requests_are_refused(
    providers: Providers, tmp_path: Path
) -> None:
    gateway = gateway_over(providers, tmp_path, "60s")
    streams = [Listener(gateway, CHAT, chat(LONG, stream=True)) for _ in range(3)]
    plain = Listener(gateway, CHAT, chat(LONG))
    known = Client(gateway.base_url, gateway.key)  # a connection that is open already
    assert known.ask(chat("[[sim tokens=1]]")).status == 200
    for each in streams:
        assert each.began.wait(30)
    wait_until(lambda: status_of(gateway.base_url)["in_flight"] >= 4, "the plain one to be in")

    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: status_of_path(gateway.port, "/readyz") == 503, "readyz to say no")

    refused = known.ask(chat("Too late?"))
    assert (refused.status, refused.code) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) >= 1
    strange = Client(gateway.base_url, gateway.key).ask(
        {"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
        path="/v1/messages",
    )
    assert strange.status == 503
    assert strange.json["type"] == "error"
    assert status_of_path(gateway.port, "/healthz") == 200
    assert all(each.is_alive() for each in streams), "they ended too early to prove anything"
    for each in streams:
        text, events = texts_of(each.ended().text)
        assert len(text.split()) >= 20
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        assert each.text.rstrip().endswith("data: [DONE]")
    assert plain.ended().status == 200
    assert json.loads(plain.text)["choices"][0]["finish_reason"] == "stop"
    assert gateway.process.wait(20) == 0, gateway.log()[-3000:]
    assert status_of_path(gateway.port, "/healthz") == 0
    for line in gateway.log().splitlines():
        assert line.startswith("LoopRouter serves on") or json.loads(line)["event"], line
    assert problems_of(tmp_path) == []
    rows = rows_of(tmp_path, "SELECT state, is_estimated, failure FROM attempts")
    assert {tuple(row.values()) for row in rows} == {("settled", 0, "")}
    again = start_gateway(  # the second run finds everything in order
        (tmp_path / "policy.yaml").read_text(), tmp_path, key=gateway.key, port=gateway.port
    )
    assert Client(again.base_url, again.key).ask(chat("[[sim tokens=1]]")).status == 200
    assert again.stop(signal.SIGINT) == 0, again.log()[-3000:]


def test_beyond_the_limit_streams_end_with_an_error_in_band_and_are_paid(
    providers: Providers, tmp_path: Path
) -> None:
    gateway = gateway_over(providers, tmp_path, "1s")
    stream = Listener(gateway, CHAT, chat(ENDLESS, stream=True))
    message = Listener(
        gateway,
        "/v1/messages",
        {
            "model": "claude",
            "max_tokens": 4_000,
            "stream": True,
            "messages": [{"role": "user", "content": ENDLESS}],
        },
    )
    plain = Listener(gateway, CHAT, chat(ENDLESS, max_tokens=2_000))
    assert stream.began.wait(30)
    assert message.began.wait(30)
    wait_until(lambda: providers["calm"].stats()["in_flight"] == 2, "both at the provider")

    began_s = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(30) == 0, gateway.log()[-3000:]

    assert 1.0 <= time.monotonic() - began_s < 15.0
    _, events = texts_of(stream.ended().text)
    assert events[-1]["error"]["code"] == "shutting_down"
    assert "[DONE]" not in stream.text
    assert "event: error" in message.ended().text
    assert "message_stop" not in message.text
    assert plain.ended().status == 503
    assert json.loads(plain.text)["error"]["code"] == "shutting_down"
    assert problems_of(tmp_path) == []
    attempts = rows_of(tmp_path, "SELECT * FROM attempts")
    assert {row["state"] for row in attempts} == {"settled"}
    for row in attempts:
        if row["stream"]:
            # What was generated is paid for, and marked as our own count.
            assert row["billed_nanos"] == row["cost_nanos"] > 0
            assert row["output_tokens"] > 3
            assert row["is_estimated"] == 1
    for provider in providers.values():
        wait_until(lambda p=provider: p.stats()["in_flight"] == 0, "the upstream to be closed")  # type: ignore[misc]


def test_a_second_signal_ends_it_at_once_and_the_next_start_books_the_rest(
    providers: Providers, tmp_path: Path
) -> None:
    gateway = gateway_over(providers, tmp_path, "10m")
    stream = Listener(gateway, CHAT, chat(ENDLESS, stream=True))
    assert stream.began.wait(30)
    gateway.process.send_signal(signal.SIGTERM)
    wait_until(lambda: status_of_path(gateway.port, "/readyz") == 503, "readyz to say no")

    gateway.process.send_signal(signal.SIGTERM)

    assert gateway.process.wait(20) == 0, gateway.log()[-3000:]
    assert problems_of(tmp_path) == []
    (attempt,) = rows_of(tmp_path, "SELECT * FROM attempts")
    assert attempt["state"] == "settled"
    assert attempt["cost_nanos"] > 0
