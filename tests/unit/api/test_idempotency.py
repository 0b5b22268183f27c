"""`Idempotency-Key`: what uses a key up, and what gives it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, answers, chat

pytestmark = pytest.mark.anyio

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
    assert first.body == again.body
