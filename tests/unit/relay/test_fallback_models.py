"""OpenRouter's `models`: the next model's endpoints take over while the request runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, GOOD, answers, chat

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
DOWN = answers({"error": {"message": "down"}}, 500)
POLICY = """
version: 1
providers:
  a: {base_url: "URL0/v1", network: private}
  b: {base_url: "URL1/v1", network: private}
  c: {base_url: "URL2/v1", network: private}
  d: {base_url: "URL3/v1", network: private}
  e: {base_url: "URL4/v1", network: private}
models:
  first:
    - {provider: a, model: m, price: {input: 1, output: 2}}
    - {provider: b, model: m, price: {input: 1, output: 2}}
    - {provider: c, model: m, price: {input: 1, output: 2}}
    - {provider: d, model: m, price: {input: 1, output: 2}}
  spare:
    - {provider: e, model: other, price: {input: 1, output: 2}}
"""


async def spent_by_model(world: Any) -> dict[str, int]:
    from gateway.ledger.report import report

    await world.gateway.ledger.flush()
    return {row["model"]: row["attempts"] for row in await report(world.gateway.store, by="model")}


@pytest.mark.parametrize("stream", [True, False])
async def test_fallback_model_answers_when_the_endpoints_of_the_first_fail(
    tmp_path: Path, stream: bool
) -> None:
    good = GOOD if stream else answers(COMPLETION)
    body = chat(stream=stream) | {"model": "first", "models": ["spare"]}
    async with edge(tmp_path, DOWN, DOWN, DOWN, DOWN, good, policy=POLICY) as world:
        reply = await world.ask(CHAT, body)
        alone = await world.ask(CHAT, body | {"models": []})
        by_model = await spent_by_model(world)

    assert (reply.status, reply.headers["x-looprouter-endpoint"]) == (200, "e/other")
    assert reply.headers["x-looprouter-attempts"] == "4"
    assert alone.status == 502
    assert by_model["spare"] == 1
