"""The gateway's own answers: one request's record, and whom a key may ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.keys.wanted import NewKey
from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, answers, chat

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
DOWN = answers({"error": {"message": "down"}}, 500)


async def test_request_is_shown_with_each_attempt_as_it_was_booked(tmp_path: Path) -> None:
    async with edge(tmp_path, DOWN, answers(COMPLETION)) as world:
        for _ in range(20):  # until the endpoint that is down was tried first
            reply = await world.ask(CHAT, chat(stream=False))
            if reply.headers["x-looprouter-attempts"] == "2":
                break
        shown = (await world.ask(f"/v1/requests/{reply.headers['x-request-id']}")).json

    failed, good = shown["attempts"]
    assert (failed["endpoint"], failed["state"], failed["failure"]) == (
        "a/m",
        "released",
        "server_error",
    )
    assert (good["endpoint"], good["state"], good["failure"]) == ("b/m", "settled", "")
    assert good["cost"] == shown["cost"] == reply.headers["x-looprouter-cost"]
    assert (good["usage"]["input"], good["usage"]["output"]) == (11, 2)
    assert good["price"]["source"] == "policy"


async def test_key_of_a_model_may_name_its_endpoints_and_no_others(tmp_path: Path) -> None:
    key = NewKey(name="scoped", models=("chat",))
    async with edge(tmp_path, answers(COMPLETION), key=key) as world:
        by_id = await world.ask(CHAT, chat(stream=False) | {"model": "a/m"})
        by_suffix = await world.ask(CHAT, chat(stream=False) | {"model": "chat:floor"})
        other = await world.ask(CHAT, chat(stream=False) | {"model": "other"})

    assert (by_id.status, by_suffix.status, other.status) == (200, 200, 403)


async def test_key_of_one_api_may_not_use_another(tmp_path: Path) -> None:
    key = NewKey(name="scoped", routes=("messages",))
    async with edge(tmp_path, answers(COMPLETION), key=key) as world:
        refused = await world.ask(CHAT, chat(stream=False))

    assert refused.status == 403
    assert "it may use messages" in refused.json["error"]["message"]
