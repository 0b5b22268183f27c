"""The engine itself fails: health says so, everybody is told, nothing hangs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from backend.api.run import ServeOptions, serve_model
from backend.api.server import listen
from backend.config import DType, EngineConfig
from backend.engine.interface import EngineRequest, TokenEvent
from backend.serving.job import TimeLimits
from backend.serving.loading import load_served
from backend.serving.service import Loaded
from tests.support.backend_process import READY_S_MAX

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

CONFIG = EngineConfig(dtype=DType.FLOAT32, num_threads=1, kv_cache_bytes=16 * 1024 * 1024)
ENDLESS = {"model": "spelling", "prompt": "a", "max_tokens": 10_000, "stream": True}
SHORT = {"model": "spelling", "prompt": "<|go|>", "max_tokens": 3}


class Sabotaged:
    """The real engine, until a test breaks it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.before_step: Callable[[], None] = lambda: None
        self.before_add: Callable[[EngineRequest], None] = lambda request: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add(self, request: EngineRequest) -> None:
        self.before_add(request)
        self._engine.add(request)

    def step(self) -> list[TokenEvent]:
        self.before_step()
        events: list[TokenEvent] = self._engine.step()
        return events


class World:
    """A server in this process whose engine can be broken."""

    def __init__(self, port: int) -> None:
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.engine: Sabotaged | None = None

    @property
    def broken(self) -> Sabotaged:
        assert self.engine is not None
        return self.engine

    async def post(self, body: dict[str, Any]) -> httpx.Response:
        return await self.client.post("/v1/completions", json=body)


@pytest.fixture
async def world(spelling_model: Path) -> AsyncIterator[World]:
    sock, port = listen("127.0.0.1", 0)
    made = World(port)
    ready = asyncio.Event()

    def load() -> Loaded:
        loaded = load_served(spelling_model, CONFIG)
        made.engine = Sabotaged(loaded.engine)
        return replace(loaded, engine=made.engine)

    limits = TimeLimits(quiet_s=0.3)
    options = ServeOptions(served_name="spelling", version="0", limits=limits, drain_s=0.1)
    serving = asyncio.create_task(serve_model(options, load, sock, lambda _: ready.set()))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait((serving, waiting), timeout=READY_S_MAX, return_when="FIRST_COMPLETED")
    assert ready.is_set(), "the server did not become ready"
    yield made
    await made.client.aclose()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def _fail() -> None:
    raise ZeroDivisionError("a tensor went missing")


async def _lines(world: World) -> tuple[int, list[str]]:
    async with world.client.stream("POST", "/v1/completions", json=ENDLESS) as answer:
        return answer.status_code, [line async for line in answer.aiter_lines() if line]


async def test_engine_that_stops_fails_all_with_a_reason_and_health_says_so(world: World) -> None:
    streams = [asyncio.create_task(_lines(world)) for _ in range(3)]
    await asyncio.sleep(0.3)

    world.broken.before_step = _fail
    told = await asyncio.wait_for(asyncio.gather(*streams), 20)
    health = await world.client.get("/health")
    later = await world.post(SHORT)

    for status, lines in told:
        assert status == 200
        error = json.loads(lines[-1].removeprefix("data: "))["error"]
        assert "a tensor went missing" in error["message"]
        assert "data: [DONE]" not in lines
    assert health.status_code == 503
    assert health.json()["status"] == "failed"
    assert "a tensor went missing" in health.json()["error"]
    assert later.status_code == 503
    assert later.headers["x-should-retry"] == "false"
    assert (await world.client.get("/v1/load")).json()["status"] == "failed"


async def test_request_that_breaks_on_its_way_in_fails_alone(world: World) -> None:
    stream = asyncio.create_task(_lines(world))
    await asyncio.sleep(0.2)

    def refuse(request: EngineRequest) -> None:
        if request.params.seed == 666:
            _fail()

    world.broken.before_add = refuse
    bad = await world.post({**SHORT, "seed": 666})
    good = await world.post(SHORT)
    stream.cancel()

    assert bad.status_code == 500
    assert bad.json()["error"]["code"] == "request_failed"
    assert good.json()["choices"][0]["text"] == "Hello world"
    assert (await world.client.get("/health")).status_code == 200


async def test_hanging_step_shows_in_health(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.serving.service.STALL_S", 0.2)
    released = threading.Event()
    world.broken.before_step = lambda: released.wait(20) and None
    waiting = asyncio.create_task(world.post(SHORT))
    await asyncio.sleep(0.6)

    health = await world.client.get("/health")
    refused = await world.post(SHORT)
    released.set()

    assert (health.status_code, health.json()["status"]) == (503, "stalled")
    assert "one step has been running" in health.json()["error"]
    assert refused.status_code == 503
    assert (await waiting).json()["choices"][0]["text"] == "Hello world"
    assert (await world.client.get("/health")).status_code == 200


async def test_quiet_stream_shows_signs_of_life(world: World) -> None:
    released = threading.Event()
    world.broken.before_step = lambda: released.wait(20) and None
    seen: list[str] = []

    async def read() -> None:
        async with world.client.stream("POST", "/v1/completions", json=ENDLESS) as answer:
            async for line in answer.aiter_lines():
                seen.append(line)
                if line.startswith(":"):
                    released.set()
                if line.startswith("data:"):
                    return

    await asyncio.wait_for(read(), 40)

    assert seen[0] == ": waiting"
    assert seen[-1].startswith("data: {")
