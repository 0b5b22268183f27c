"""Self-hosted servers are asked for their load, nobody else is; the router knows what they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from gateway.api.status import SpendCache, status_summary
from gateway.app.load_polling import ANSWER_S_MAX, LoadPoller, machines_of
from gateway.prices.machine_meter import MachineMeter
from gateway.providers.httpx_transport import HttpxTransport
from tests.support.edge_world import SECRET, Edge, edge
from tests.support.relaying import COMPLETION, chat
from tests.support.scripted_server import Connection, Script

pytestmark = pytest.mark.anyio

LOAD = {
    "num_running": 2,
    "num_waiting": 0,
    "kv_blocks_total": 100,
    "kv_blocks_used": 25,
    "tokens_per_s": 80.0,
    "prompt_tokens_per_s": 400.0,
    "decode_step_s": {"1": 0.01, "4": 0.02},
    "prefill_token_s": 0.001,
}
POLICY = """
version: 1
providers:
  own: {base_url: "URL0/v1", network: private, key_env: KEY, headers: {x-site: lab},
        self_hosted: {usd_per_hour: 3.6, tokens_per_hour: 1000}}
  paid: {base_url: "URL1/v1", network: private}
models:
  chat:
    - {provider: own, model: m, canonical: m, surfaces: [chat]}
    - {provider: paid, model: m, canonical: m, surfaces: [chat], price: {input: 1, output: 2}}
  other: [{provider: own, model: n}]
"""


def tells(load: object = LOAD, *, status: int = 200, chat_too: bool = True) -> Script:
    """Answers GET /v1/load with `load`, anything else as a model would."""

    async def script(connection: Connection) -> None:
        while (request := await connection.read_request()) is not None:
            if request.target == "/v1/load":
                body = load if isinstance(load, bytes) else json.dumps(load).encode()
                await connection.send_answer(body, status)
            elif chat_too:
                await connection.send_answer(json.dumps(COMPLETION).encode())

    return script


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def seen(world: Edge, endpoint_id: str) -> Any:
    return world.gateway.fleet.metrics(endpoint_id)["machine"]


async def test_only_own_machines_are_asked_and_all_their_endpoints_know(tmp_path: Path) -> None:
    async with edge(tmp_path, tells(), tells(), policy=POLICY) as world:
        await until(lambda: seen(world, "own/m") is not None)
        await until(lambda: len(world.servers[0].requests) >= 2)  # again and again
        shown = await status_summary(world.gateway, SpendCache(), "1")

        assert seen(world, "own/n")["num_running"] == seen(world, "own/m")["num_running"] == 2
        assert seen(world, "paid/m") is None
        assert world.servers[1].requests == []
        (first, *_) = world.servers[0].requests
        assert (first.method, first.target) == ("GET", "/v1/load")
        assert first.header("authorization") == f"Bearer {SECRET}"
        assert first.header("x-site") == "lab"
        assert len(world.servers[0].connections) == 1  # kept alive
        texts = {each.id: each.machine_text for each in shown.endpoints}
        assert texts["own/m"] == (
            "own machine, $3.60 an hour (on demand) · 2 running, 0 waiting, cache 25%, 80 tok/s"
        )
        assert texts["paid/m"] == ""
        assert not any(each.is_simulated for each in shown.endpoints)


async def test_router_prices_the_machine_by_the_seconds_a_request_adds(tmp_path: Path) -> None:
    async with edge(tmp_path, tells(), tells(), policy=POLICY) as world:
        await until(lambda: seen(world, "own/m") is not None)
        body = {**chat(stream=False), "max_tokens": 10}
        answer = await world.ask("/v1/chat/completions", body, {"x-looprouter-explain": "only"})
    terms = {each["endpoint"]: each["terms"] for each in answer.json["candidates"]}

    # $3.60 an hour is $0.001 a second.
    added_s = terms["own/m"]["machine_s"]
    assert 0.0 < added_s < 1.0
    assert float(terms["own/m"]["cost_usd"]) == pytest.approx(added_s * 0.001, abs=2e-9)
    assert "machine_s" not in terms["paid/m"]


@pytest.mark.parametrize(
    ("load", "status", "said"),
    [
        ({"detail": "no such page"}, 404, "it answers 404"),
        ({"error": "key"}, 401, "it answers 401"),
        (b"{" + b" " * 70_000 + b"}", 200, "longer than 65536 bytes"),
        (b"not JSON", 200, "not understood"),
        ({**LOAD, "num_running": -1}, 200, "num_running"),
    ],
)
async def test_what_is_no_account_is_logged_once_and_the_endpoint_serves_on(
    tmp_path: Path, load: object, status: int, said: str
) -> None:
    with structlog.testing.capture_logs() as logged:
        async with edge(tmp_path, tells(load, status=status), tells(), policy=POLICY) as world:
            await until(lambda: any("load is not told" in each["event"] for each in logged))
            poller = LoadPoller(world.gateway, HttpxTransport())
            (machine,) = machines_of(world.gateway.policy())
            before = len(logged)
            await poller.ask(machine)
            await poller.ask(machine)
            answer = await world.ask(
                "/v1/chat/completions", {**chat(stream=False), "model": "own/m"}
            )

            assert answer.status == 200
            assert seen(world, "own/m") is None
            assert len(logged) == before + 1  # the second poller's own first time
    told = [each for each in logged if each["event"] == "load is not told"]
    assert said in told[0]["error"]
    assert SECRET not in str(logged)


@pytest.mark.slow
async def test_server_that_keeps_silent_is_given_up_and_then_counts_as_full(tmp_path: Path) -> None:
    is_silent = asyncio.Event()

    async def script(connection: Connection) -> None:
        while await connection.read_request() is not None:
            if is_silent.is_set():
                await asyncio.Event().wait()
            await connection.send_answer(json.dumps(LOAD).encode())

    async with edge(tmp_path, script, tells(), policy=POLICY) as world:
        await until(lambda: seen(world, "own/m") is not None)
        assert not seen(world, "own/m")["is_full"]
        is_silent.set()
        await until(lambda: seen(world, "own/m")["is_full"])

        assert seen(world, "own/m")["age_s"] > 2.0
        assert ANSWER_S_MAX < 2.0
        batch = {**chat(stream=False), "model": "chat:batch"}
        answer = await world.ask("/v1/chat/completions", batch, {"x-looprouter-explain": "only"})
        left_out = {each["endpoint"]: each["reason"] for each in answer.json["candidates"]}
        assert answer.json["order"] == ["paid/m"]
        assert left_out["own/m"].startswith("capacity: it is silent of late")


async def test_tokens_served_make_the_price_of_the_next_window(tmp_path: Path) -> None:
    at_s = 1_800_000_000.0
    async with edge(tmp_path, tells(), tells(), policy=POLICY) as world:
        gateway = world.gateway
        (assumed,) = gateway.fleet.snapshot().prices["own/m"]
        gateway.wall_clock, gateway.meter = lambda: at_s, MachineMeter(began_s=at_s - 600.0)
        for _ in range(20):
            await world.ask("/v1/chat/completions", {**chat(stream=False), "model": "own/m"})
            await world.ask("/v1/chat/completions", {**chat(stream=False), "model": "paid/m"})
        (row,) = gateway.meter.rows(gateway.policy().endpoints["own/m"], at_s + 600.0)
    usage = COMPLETION["usage"]
    num_tokens = 20 * (usage["prompt_tokens"] + usage["completion_tokens"])

    assert (assumed.source, assumed.price_id) == ("self_hosted", "assumed:own/m")
    assert assumed.input == 3_600_000_000
    assert row.price_id.endswith(f":{num_tokens}")
    assert row.output == -(-600_000_000_000 // num_tokens)  # ten minutes at $3.60 an hour
