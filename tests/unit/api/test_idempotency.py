"""`Idempotency-Key`: what uses a key up, and what gives it back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
import structlog.testing

from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, answers, chat
from tests.support.scripted_server import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHAT = "/v1/chat/completions"
KEY = {"idempotency-key": "one"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model": "chat",', 400),
        (b'{"model": "chat", "messages": [], "stream": "yes"}', 400),
        (b'{"model": "nope", "messages": []}', 404),
    ],
)
async def test_refused_request_gives_its_key_back(tmp_path: Path, body: bytes, status: int) -> None:
    async with edge(tmp_path, answers(COMPLETION)) as world:
        first = await world.ask(CHAT, body, KEY)
        again = await world.ask(CHAT, body, KEY)
        mended = await world.ask(CHAT, chat(stream=False), KEY)

    assert (first.status, again.status, mended.status) == (status, status, 200)
    assert first.body == again.body


async def test_answer_is_repeated_and_not_done_again(tmp_path: Path) -> None:
    async with edge(tmp_path, answers(COMPLETION)) as world:
        first = await world.ask(CHAT, chat(stream=False), KEY)
        again = await world.ask(CHAT, chat(stream=False), KEY)
        other = await world.ask(CHAT, chat(stream=False, seed=2), KEY)
        num_sent = len(world.servers[0].requests)

    assert (first.status, again.status, other.status) == (200, 200, 422)
    assert first.body == again.body
    assert again.headers["x-looprouter-idempotent-replay"] == "true"
    assert first.headers["x-looprouter-cost"] == again.headers["x-looprouter-cost"]
    assert num_sent == 1


async def test_failure_of_every_endpoint_is_the_outcome(tmp_path: Path) -> None:
    async with edge(tmp_path, answers({"error": {"message": "down"}}, 500)) as world:
        first = await world.ask(CHAT, chat(stream=False), KEY)
        again = await world.ask(CHAT, chat(stream=False), KEY)
        num_sent = len(world.servers[0].requests)

    assert (first.status, again.status, num_sent) == (502, 502, 1)
    told, kept = first.json["error"], again.json["error"]
    # The provider's own words may repeat the request: they are told once and not stored.
    assert told.pop("message") == kept.pop("message") + ": down"
    assert told == kept


async def test_upstreams_own_refusal_gives_the_key_back(tmp_path: Path) -> None:
    async with edge(tmp_path, answers({"error": {"message": "too odd"}}, 400)) as world:
        first = await world.ask(CHAT, chat(stream=False), KEY)
        again = await world.ask(CHAT, chat(stream=False, seed=2), KEY)
        num_sent = len(world.servers[0].requests)

    assert (first.status, again.status, num_sent) == (400, 400, 2)
    assert first.body == again.body


def rename(home: Path, old: str, new: str) -> None:
    with contextlib.closing(sqlite3.connect(home / "looprouter.db")) as connection:
        connection.execute(f"ALTER TABLE {old} RENAME TO {new}")


async def test_without_its_database_nothing_is_sent(tmp_path: Path) -> None:
    async with edge(tmp_path, answers(COMPLETION)) as world:
        await asyncio.to_thread(rename, tmp_path, "idempotency", "away")
        refused = await world.ask(CHAT, chat(stream=False), KEY)
        num_sent = len(world.servers[0].requests)
        await asyncio.to_thread(rename, tmp_path, "away", "idempotency")
        mended = await world.ask(CHAT, chat(stream=False), KEY)

    assert (refused.status, refused.json["error"]["code"]) == (503, "idempotency_unavailable")
    assert refused.headers["retry-after"] == "1"
    assert (num_sent, mended.status) == (0, 200)


async def test_outcome_is_kept_though_the_database_was_away_at_the_end(tmp_path: Path) -> None:
    async def script(connection: Connection) -> None:
        while await connection.read_request() is not None:
            await asyncio.to_thread(rename, tmp_path, "idempotency", "away")
            await connection.send_answer(json.dumps(COMPLETION).encode())

    async with edge(tmp_path, script) as world:
        with structlog.testing.capture_logs() as logged:
            asking = asyncio.create_task(world.ask(CHAT, chat(stream=False), KEY))
            async with asyncio.timeout(10):
                while not any("Idempotency-Key" in entry["event"] for entry in logged):
                    await asyncio.sleep(0.01)
            assert world.gateway.claims
            await asyncio.to_thread(rename, tmp_path, "away", "idempotency")
            first = await asking
        again = await world.ask(CHAT, chat(stream=False), KEY)

    assert (first.status, again.status) == (200, 200)
    assert again.headers["x-looprouter-idempotent-replay"] == "true"
    assert not world.gateway.claims
