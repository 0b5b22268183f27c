"""Answers that the caller's dialect cannot hold, and usage that the upstream never told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import UpstreamFailed
from gateway.wire.pieces import Surface
from tests.support.relaying import (
    DONE,
    INPUT_NANOS,
    OUTPUT_NANOS,
    ROLE,
    STOP,
    WAIT_S,
    Client,
    answers,
    frame,
    relay_world,
    streams,
    token,
)
from tests.support.scripted_server import Connection

pytestmark = pytest.mark.anyio

MESSAGES: dict[str, Any] = {
    "model": "chat",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Say something nice."}],
}


def call(index: int, arguments: str) -> bytes:
    function = {"name": f"f{index}", "arguments": arguments}
    return frame({"tool_calls": [{"index": index, "id": f"c{index}", "function": function}]})


async def test_stream_that_cannot_be_put_in_order_ends_in_an_error_and_spares_the_rest(
    tmp_path: Path,
) -> None:
    is_closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(ROLE + token("Hello") + call(0, '{"open": "'))
        for _ in range(6):  # a second call cannot be told before the first is whole
            await connection.send_chunk(call(1, "x" * 900_000))
        await connection.until_peer_closes()
        is_closed.set()

    async with relay_world(tmp_path, script) as world:
        client = Client()
        job = world.job(body={**MESSAGES, "stream": True}, surface=Surface.MESSAGES)
        result = await asyncio.wait_for(world.relay.run(job, client), WAIT_S)
        await asyncio.wait_for(is_closed.wait(), WAIT_S)
        rows = await world.booked()

    assert isinstance(result.error, UpstreamFailed)
    assert (result.status, result.error_code) == (200, "stream_too_large")
    assert client.is_finished
    assert client.body.count(b"event: error") == 1
    assert b"message_stop" not in client.body
    assert [outcome.failure for outcome in result.outcomes] == ["untranslatable"]
    assert (rows[0].state, rows[0].is_estimated) == ("settled", True)
    # The client pays for what was generated, within its hold; the rest is the operator's.
    assert 0 < result.billed_nanos == rows[0].hold_nanos < result.cost_nanos


async def test_plain_answer_without_words_in_the_callers_dialect_is_not_the_callers_to_pay(
    tmp_path: Path,
) -> None:
    odd = {
        "choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 2},
    }
    async with relay_world(tmp_path, answers(odd)) as world:
        job = world.job(body=MESSAGES, surface=Surface.MESSAGES)
        result = await asyncio.wait_for(world.relay.run(job, Client()), WAIT_S)

    assert isinstance(result.error, UpstreamFailed)
    assert (result.cost_nanos, result.billed_nanos) == (11 * INPUT_NANOS + 2 * OUTPUT_NANOS, 0)
    assert result.outcomes[0].failure == "untranslatable"


async def test_usage_that_the_upstream_never_told_is_estimated_and_marked(tmp_path: Path) -> None:
    silent = streams(ROLE, token("Hello there"), STOP, DONE)
    async with relay_world(tmp_path, silent) as world:
        result, client = await world.run(stream_options={"include_usage": True})
        _, other = await world.run()

    said = json.loads(client.frames[-2])
    assert (said["id"], said["choices"], client.frames[-1]) == ("c1", [], "[DONE]")
    assert result.usage is not None
    assert said["usage"]["completion_tokens"] == result.usage.output_total > 0
    assert said["usage"]["is_estimated"] is True
    assert said["usage"]["cost"] == result.cost_nanos / 1e9
    assert b"usage" not in other.body


async def test_messages_stream_over_a_silent_upstream_tells_an_estimate_instead_of_zero(
    tmp_path: Path,
) -> None:
    silent = streams(ROLE, token("Hello there"), STOP, DONE)
    async with relay_world(tmp_path, silent) as world:
        client = Client()
        job = world.job(body={**MESSAGES, "stream": True}, surface=Surface.MESSAGES)
        await asyncio.wait_for(world.relay.run(job, client), WAIT_S)

    usage = next(json.loads(f)["usage"] for f in client.frames if "message_delta" in f)
    assert usage["output_tokens"] > 0
    assert usage["is_estimated"] is True
    assert "cost" not in usage


async def test_plain_answers_tell_their_length(tmp_path: Path) -> None:
    async with relay_world(
        tmp_path, answers({"choices": [{"message": {"content": "x"}}]})
    ) as world:
        _, client = await world.run(stream=False)

    assert client.headers["content-length"] == str(len(client.body))
