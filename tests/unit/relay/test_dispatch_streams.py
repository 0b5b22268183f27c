"""Streams through a real relay, ledger and transport: text, failover, cancel, back-pressure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Overloaded, UpstreamFailed, UpstreamTimeout
from gateway.wire.pieces import Surface
from tests.support.relaying import (
    CLIENT_KEY,
    DONE,
    GOOD,
    INPUT_NANOS,
    OUTPUT_NANOS,
    ROLE,
    SECRET,
    STOP,
    WAIT_S,
    Client,
    answers,
    frame,
    hangs,
    relay_world,
    resets,
    streams,
    token,
    usage_frame,
)
from tests.support.scripted_server import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COST = 11 * INPUT_NANOS + 2 * OUTPUT_NANOS


async def test_stream_passes_with_payloads_unchanged_and_is_paid_as_reported(
    tmp_path: Path,
) -> None:
    async with relay_world(tmp_path, GOOD) as world:
        result, client = await world.run()
        rows = await world.booked()

    assert client.text == "Hello"
    assert b"".join([ROLE, token("Hel"), token("lo"), STOP, DONE]) == client.body
    assert client.headers["content-type"] == "text/event-stream"
    assert client.headers["x-looprouter-endpoint"] == "a/m"
    assert client.headers["x-looprouter-attempts"] == "1"
    assert (result.status, result.endpoint_id, result.error) == (200, "a/m", None)
    assert (result.cost_nanos, result.billed_nanos) == (COST, COST)
    assert not result.is_estimated
    assert [(row.state, row.cost_nanos, row.billed_nanos) for row in rows] == [
        ("settled", COST, COST)
    ]


async def test_request_carries_our_key_and_asks_for_usage(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD) as world:
        await world.run()
        request = world.servers[0].requests[0]

    body = json.loads(request.body)
    assert request.target == "/v1/chat/completions"
    assert request.header("authorization") == f"Bearer {SECRET}"
    assert CLIENT_KEY not in str(request.headers)
    assert body["model"] == "m"
    assert body["stream_options"] == {"include_usage": True}


async def test_usage_frame_with_cost_comes_only_if_asked_for(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD) as world:
        _, client = await world.run(stream_options={"include_usage": True})

    last = json.loads(client.frames[-2])
    assert client.frames[-1] == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["cost"] == COST / 1e9
    assert f'"cost":{COST / 1e9:.9f}'.rstrip("0") in client.body.decode()


async def test_first_token_is_forwarded_before_the_second_exists(tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(ROLE)
        await connection.send_chunk(token("one"))
        await asyncio.wait_for(seen.wait(), WAIT_S)
        await connection.send_chunk(token("two") + STOP + DONE)
        await connection.end_stream()

    async with relay_world(tmp_path, script) as world:
        client = Client()
        task = asyncio.create_task(world.run(client))
        await asyncio.wait_for(client.has_data.wait(), WAIT_S)
        assert client.text == "one"
        seen.set()
        await task

    assert client.text == "onetwo"


@pytest.mark.parametrize(
    "bad",
    [
        resets,
        answers({"error": {"message": "down", "type": "server_error"}}, 500),
        answers({"error": {"message": "slow down", "type": "rate_limit_error"}}, 429),
        answers({"error": {"message": "You exceeded your current quota", "code":
                           "insufficient_quota"}}, 429),
        answers({"error": {"message": "no credit"}}, 402),
        answers({"error": {"message": "bad key"}}, 401),
        answers({"error": {"message": "no such model", "code": "model_not_found"}}, 404),
        answers({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, 529),
        answers(b"", 200, {"content-type": "text/event-stream"}),
        answers(b"<html><title>Sign in</title></html>", 200, {"content-type": "text/html"}),
        answers({"error": {"message": "inside a 200", "type": "server_error"}}),
        answers(b"", 302, {"location": "https://elsewhere.example/"}),
        streams(b'data: {"error": {"message": "first event", "code": 502}}\n\n'),
        streams(ROLE, b'data: {"error": {"message": "quota", "code": "insufficient_quota"}}\n\n'),
        streams(ROLE),
        streams(ROLE, STOP, DONE),
        streams(b": only comments\n\n"),
        streams(b"data: {broken json\n\n"),
        streams(frame({"role": "assistant", "content": "", "padding": "x" * 70_000}), token("a")),
    ],
)  # fmt: skip
async def test_failure_before_the_first_token_is_invisible_to_the_client(
    tmp_path: Path, bad: Any
) -> None:
    async with relay_world(tmp_path, bad, GOOD) as world:
        result, client = await world.run()
        rows = await world.booked()

    assert client.text == "Hello"
    assert client.frames.count("[DONE]") == 1
    assert client.headers["x-looprouter-attempts"] == "2"
    assert client.headers["x-looprouter-endpoint"] == "b/m"
    assert len(result.outcomes) == 2
    assert result.outcomes[0].failure
    assert result.billed_nanos == COST
    assert rows[0].billed_nanos == 0


async def test_responses_created_then_quota_error_falls_over(tmp_path: Path) -> None:
    """gateways.md 4, item 6."""
    created = (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,'
        b'"response":{"id":"r","object":"response","status":"in_progress","output":[]}}\n\n'
    )
    quota = (
        b'event: error\ndata: {"type":"error","code":"insufficient_quota","message":"quota"}\n\n'
    )
    delta = (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
        b'"sequence_number":1,"item_id":"i","output_index":0,"content_index":0,"delta":"Hi"}\n\n'
    )
    completed = (
        b'event: response.completed\ndata: {"type":"response.completed","sequence_number":2,'
        b'"response":{"id":"r","object":"response","status":"completed","output":[],'
        b'"usage":{"input_tokens":11,"output_tokens":2,"total_tokens":13}}}\n\n'
    )
    body = {"model": "chat", "input": "hi", "stream": True}
    async with relay_world(
        tmp_path, streams(created, quota), streams(created, delta, completed)
    ) as world:
        result, client = await world.run(body=body, surface=Surface.RESPONSES)

    assert client.body.count(b"event: response.created") == 1
    assert b'"delta":"Hi"' in client.body
    assert client.body.endswith(completed)
    assert result.outcomes[0].failure == "quota"
    assert result.cost_nanos == COST


@pytest.mark.parametrize("how", ["reset", "close", "no_chunk_end"])
async def test_break_in_the_middle_is_told_in_band_and_billed_as_delivered(
    tmp_path: Path, how: str
) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(ROLE + token("Half an answer"))
        if how == "reset":
            await asyncio.sleep(0.02)  # an RST would take the unread bytes with it
            connection.reset()
        elif how == "close":
            await connection.end_stream()

    async with relay_world(tmp_path, script, GOOD) as world:
        result, client = await world.run()
        rows = await world.booked()

    assert client.text == "Half an answer"
    error = json.loads(client.frames[-1])["error"]
    assert (error["type"], error["code"]) == ("upstream_error", "stream_interrupted")
    assert "[DONE]" not in client.frames
    assert client.is_finished
    assert len(result.outcomes) == 1
    assert result.error is not None
    assert result.is_estimated
    assert result.usage is not None
    assert result.usage.output == 4  # 14 characters at 4 a token
    assert rows[0].billed_nanos == result.cost_nanos > 0


async def test_error_event_after_tokens_keeps_its_message(tmp_path: Path) -> None:
    error = b'data: {"error": {"message": "GPU fell off", "type": "server_error", "code": "gpu"}}'
    async with relay_world(tmp_path, streams(token("Hi"), error + b"\n\n"), GOOD) as world:
        _, client = await world.run()

    said = json.loads(client.frames[-1])["error"]
    assert "GPU fell off" in said["message"]
    assert said["code"] == "gpu"
    assert "[DONE]" not in client.frames


async def test_missing_done_after_the_finish_reason_is_repaired(tmp_path: Path) -> None:
    async with relay_world(tmp_path, streams(token("Hi"), STOP)) as world:
        result, client = await world.run()

    assert client.frames[-1] == "[DONE]"
    assert result.error is None
    assert result.outcomes[0].failure == ""
    assert result.outcomes[0].protocol_faults == 1


async def test_failure_after_the_finish_reason_is_booked_as_the_upstream_counted(
    tmp_path: Path,
) -> None:
    late = b'data: {"error": {"message": "too late", "type": "server_error"}}\n\n'
    said = streams(token("Hi"), STOP, usage_frame(11, 2), late)
    async with relay_world(tmp_path, said) as world:
        result, client = await world.run()
        rows = await world.booked()

    assert client.frames[-1] == "[DONE]"
    assert (result.error, result.is_estimated) == (None, False)
    assert rows[0].billed_nanos == result.cost_nanos == COST


async def test_done_inside_the_text_ends_nothing(tmp_path: Path) -> None:
    """gateways.md 4, item 9."""
    async with relay_world(tmp_path, streams(token("data: [DONE]"), token("!"), STOP, DONE)) as w:
        _, client = await w.run()

    assert client.text == "data: [DONE]!"


async def test_silent_endpoint_is_left_for_another(tmp_path: Path) -> None:
    policy = "rescue: {first_token_timeout: 100ms}\n"
    async with relay_world(tmp_path, hangs, GOOD, policy=policy) as world:
        result, client = await world.run()
        rows = await world.booked()

    assert client.text == "Hello"
    assert result.outcomes[0].failure == "timeout_first_token"
    assert (rows[0].billed_nanos, rows[0].waste_nanos > 0) == (0, True)


async def test_all_endpoints_failing_is_one_error_that_names_the_last(tmp_path: Path) -> None:
    down = answers({"error": {"message": f"broken with {SECRET}"}}, 500)
    async with relay_world(tmp_path, down, down, down, down) as world:
        result, client = await world.run()

    assert isinstance(result.error, UpstreamFailed)
    assert (result.error.status, result.error.should_retry) == (502, False)
    assert "3 attempts failed" in result.error.message
    assert "c/m" in result.error.message
    assert SECRET not in result.error.message
    assert not client.is_started
    assert (len(result.outcomes), result.cost_nanos) == (3, 0)


async def test_retry_after_of_a_saturated_endpoint_reaches_the_client(tmp_path: Path) -> None:
    busy = answers({"error": {"message": "busy"}}, 429, {"retry-after": "7"})
    async with relay_world(tmp_path, busy) as world:
        result, _ = await world.run()

    assert isinstance(result.error, Overloaded)
    assert result.error.retry_after_s == 7.0


async def test_timeout_everywhere_is_a_504(tmp_path: Path) -> None:
    async with relay_world(
        tmp_path, hangs, policy="rescue: {first_token_timeout: 50ms}\n"
    ) as world:
        result, _ = await world.run()

    assert isinstance(result.error, UpstreamTimeout)


async def test_status_line_and_keep_alives_go_out_while_waiting_and_errors_are_in_band(
    tmp_path: Path,
) -> None:
    policy = (
        "timeouts: {status_line: 50ms}\nkeep_alive: {every: 50ms}\n"
        "rescue: {first_token_timeout: 400ms}\n"
    )
    async with relay_world(tmp_path, hangs, policy=policy) as world:
        result, client = await world.run()

    assert client.status == 200
    assert client.body.startswith(b": keep-alive\n\n")
    assert client.body.count(b": keep-alive") >= 2
    assert json.loads(client.frames[-1])["error"]["code"] == "stream_timeout"
    assert isinstance(result.error, UpstreamTimeout)


async def test_failover_still_works_after_the_early_status_line(tmp_path: Path) -> None:
    policy = "timeouts: {status_line: 20ms}\nrescue: {first_token_timeout: 200ms}\n"
    async with relay_world(tmp_path, hangs, GOOD, policy=policy) as world:
        _, client = await world.run()

    assert client.text == "Hello"


async def test_connection_is_reused_after_a_stream(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD) as world:
        for _ in range(3):
            await world.run()
            await asyncio.sleep(0.02)

        assert [len(one.requests) for one in world.servers[0].connections] == [3]


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_split_of_the_bytes_does_not_matter(tmp_path: Path, size: int) -> None:
    """reliability E at three chunkings, with multi-byte text."""
    text = "Grüße, 世界 👋"
    whole = ROLE + token(text).replace(b"\n\n", b"\r\n\r\n") + b": hi\n\n" + STOP + DONE
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    async with relay_world(tmp_path, streams(*parts)) as world:
        _, client = await world.run()

    assert client.text == text
    assert client.frames[-1] == "[DONE]"


async def test_stamps_are_in_order_and_counted(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD) as world:
        result, _ = await world.run()

    one = result.outcomes[0]
    stamps = [one.dispatched_at_s, one.headers_at_s, one.first_byte_at_s, one.first_generated_at_s,
              one.last_generated_at_s, one.ended_at_s]  # fmt: skip
    assert None not in stamps
    assert stamps == sorted(stamps)  # type: ignore[type-var]
    assert (one.num_frames, len(one.frame_stamps_s), one.visible_chars) == (2, 2, 5)
    assert one.first_visible_at_s == one.first_generated_at_s
