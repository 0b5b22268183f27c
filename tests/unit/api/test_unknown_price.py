"""`unpriced: allow`: an unknown cost is never told as $0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.keys.wanted import Budget, NewKey
from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, GOOD, answers, chat

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHAT = "/v1/chat/completions"
POLICY = """
version: 1
providers: {a: {base_url: "URL0/v1", network: private}}
models: {chat: [{provider: a, model: nobody-lists-this}]}
unpriced: allow
"""


async def test_unknown_cost_is_left_out_and_said_to_be_unknown(tmp_path: Path) -> None:
    async with edge(tmp_path, answers(COMPLETION), policy=POLICY) as world:
        reply = await world.ask(CHAT, chat(stream=False))

    assert reply.status == 200
    assert "x-looprouter-cost" not in reply.headers
    assert "price of this endpoint is unknown" in reply.headers["x-looprouter-warning"]


async def test_unknown_cost_is_left_out_of_a_streams_usage(tmp_path: Path) -> None:
    async with edge(tmp_path, GOOD, policy=POLICY) as world:
        reply = await world.ask(CHAT, chat(stream_options={"include_usage": True}))

    usage = json.loads(reply.body.decode().split("data: ")[-2])["usage"]
    assert (usage["prompt_tokens"], "cost" in usage) == (11, False)


async def test_key_with_a_budget_is_not_served_at_an_unknown_price(tmp_path: Path) -> None:
    key = NewKey(name="budgeted", budgets=(Budget(limit_nanos=10**9, period="total"),))
    async with edge(tmp_path, answers(COMPLETION), policy=POLICY, key=key) as world:
        reply = await world.ask(CHAT, chat(stream=False))
        num_sent = len(world.servers[0].requests)

    assert (reply.status, num_sent) == (503, 0)
    assert reply.json["error"]["detail"][0]["rule"] == "unpriced"
