"""Rescued streams through a real relay, ledger and transport: what is sent, told and paid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger.records import Hold, HoldRequest
from tests.support.relaying import (
    DONE,
    GOOD,
    INPUT_NANOS,
    OUTPUT_NANOS,
    ROLE,
    STOP,
    frame,
    hangs,
    relay_world,
    streams,
    token,
    usage_frame,
)
from tests.support.scripted_server import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COST = 11 * INPUT_NANOS + 2 * OUTPUT_NANOS
HEDGE = "rescue: {hedge: {share_max: 1}}\n"
CONTINUE = "rescue: {continue_by_prefill: true}\n"
FLOOR = "decode_floor: {tokens_per_second: 20, grace: 300ms}"
PREFILL = "assistant_prefill: message"
BEGUN = "Once upon a time "
REST = streams(ROLE, token("there was"), token(" a cat."), STOP, usage_frame(40, 5), DONE)


async def breaks(connection: Connection) -> None:
    """Half an answer, and the connection is cut."""
    await connection.read_request()
    await connection.begin_stream()
    await connection.send_chunk(ROLE + token(BEGUN))
    await asyncio.sleep(0.05)
    connection.reset()


async def stalls(connection: Connection) -> None:
    """Half an answer, and then nothing."""
    await connection.read_request()
    await connection.begin_stream()
    await connection.send_chunk(ROLE + token(BEGUN))
    await connection.until_peer_closes()


async def ponders(connection: Connection) -> None:
    """Reasoning, far too slowly."""
    await connection.read_request()
    await connection.begin_stream()
    await connection.send_chunk(ROLE)
    for _ in range(100):
        await connection.send_chunk(frame({"reasoning_content": "hm. "}))
        await asyncio.sleep(0.15)


# Hedges


async def test_late_first_token_is_hedged_and_both_attempts_are_booked(tmp_path: Path) -> None:
    async with relay_world(tmp_path, hangs, GOOD, policy=HEDGE) as world:
        world.fleet.ttft_p95_s = lambda endpoint_id, facts: 0.1  # type: ignore[method-assign]  # a known delay
        result, client = await world.run()
        rows = await world.booked()

    assert client.text == "Hello"
    assert client.headers["x-looprouter-endpoint"] == "b/m"
    assert client.headers["x-looprouter-attempts"] == "2"
    assert [outcome.failure for outcome in result.outcomes] == ["outpaced", ""]
    assert [row.state for row in rows] == ["settled", "settled"]
    assert (rows[0].billed_nanos, rows[1].billed_nanos) == (0, COST)
    assert rows[0].cost_nanos > 0, "the loser's prompt is paid, by the operator"
    assert result.cost_nanos == rows[0].cost_nanos + COST
    assert result.usage is not None
    assert result.usage.output_total == 2
    live = world.fleet.by_key
    assert [each.in_flight for each in live.values()] == [0, 0]
    assert [each.waiting.num for each in live.values()] == [0, 0]


async def test_share_of_hedges_is_kept(tmp_path: Path) -> None:
    policy = "rescue: {first_token_timeout: 400ms, hedge: {share_max: 0.5}}\n"
    async with relay_world(tmp_path, hangs, GOOD, policy=policy) as world:
        world.fleet.ttft_p95_s = lambda endpoint_id, facts: 0.05  # type: ignore[method-assign]  # a known delay
        failures = [(await world.run())[0].outcomes[0].failure for _ in range(4)]

    assert failures == ["timeout_first_token", "outpaced"] * 2


async def test_key_without_budget_for_both_is_not_hedged(tmp_path: Path) -> None:
    async def late(connection: Connection) -> None:
        await connection.read_request()
        await asyncio.sleep(0.4)
        await connection.begin_stream()
        await connection.send_chunk(ROLE + token("late") + STOP + usage_frame(11, 2) + DONE)
        await connection.end_stream()

    for budget_nanos, winner in ((700_000, "a/m"), (50_000_000, "b/m")):
        home = tmp_path / winner[0]
        home.mkdir()
        async with relay_world(home, late, GOOD, policy=HEDGE, budget_nanos=budget_nanos) as world:
            world.fleet.ttft_p95_s = lambda endpoint_id, facts: 0.1  # type: ignore[method-assign]  # a known delay
            result, client = await world.run()
        assert client.headers["x-looprouter-endpoint"] == winner, budget_nanos
        assert result.error is None


async def test_hedge_that_is_blocked_holds_no_place_while_the_first_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(connection: Connection) -> None:
        await connection.read_request()
        await asyncio.sleep(0.6)
        await connection.begin_stream()
        await connection.send_chunk(ROLE + token("late") + STOP + usage_frame(11, 2) + DONE)
        await connection.end_stream()

    async with relay_world(tmp_path, late, GOOD, policy=HEDGE) as world:
        world.fleet.ttft_p95_s = lambda endpoint_id, facts: 0.1  # type: ignore[method-assign]  # a known delay
        reserve, num_asked = world.ledger.reserve, 0

        async def once(request: HoldRequest) -> Hold:
            nonlocal num_asked
            num_asked += 1
            if num_asked > 1:
                raise LedgerUnavailable("gone")
            return await reserve(request)

        monkeypatch.setattr(world.ledger, "reserve", once)
        running = asyncio.ensure_future(world.run())
        await asyncio.sleep(0.4)
        assert num_asked == 2
        assert sorted(each.in_flight for each in world.fleet.by_key.values()) == [0, 1]
        result, client = await running

        assert [each.in_flight for each in world.fleet.by_key.values()] == [0, 0]
    assert client.text == "late"
    assert [outcome.failure for outcome in result.outcomes] == [""]


# The floor


async def test_slow_reasoning_is_answered_by_another_and_paid_by_us(tmp_path: Path) -> None:
    policy = f"rescue: {{{FLOOR}}}\n"
    async with relay_world(tmp_path, ponders, GOOD, policy=policy) as world:
        result, client = await world.run()
        rows = await world.booked()
        live = world.fleet.by_key

        assert [each.waiting.num for each in live.values()] == [0, 0]
    assert client.text == "Hello"
    assert b"hm." not in client.body
    assert [outcome.failure for outcome in result.outcomes] == ["too_slow", ""]
    assert (rows[0].billed_nanos, rows[1].billed_nanos) == (0, COST)


# Continuation


@pytest.mark.parametrize("how", ["message", "prefix", "continue_final_message"])
async def test_broken_answer_is_continued_in_the_same_stream(tmp_path: Path, how: str) -> None:
    async with relay_world(
        tmp_path, breaks, REST, policy=CONTINUE, endpoint=f"assistant_prefill: {how}"
    ) as world:
        result, client = await world.run(stream_options={"include_usage": True})
        rows = await world.booked()
        asked = json.loads(world.servers[1].requests[0].body)

    assert client.text == BEGUN + "there was a cat."
    assert client.body.count(b": continued by b/m\n\n") == 1
    assert client.frames[-1] == "[DONE]"
    told = [json.loads(line) for line in client.frames[:-1]]
    assert {each["id"] for each in told} == {"c1"}
    assert sum("role" in c["delta"] for each in told for c in each["choices"]) == 1
    last = {"role": "assistant", "content": BEGUN}
    assert asked["messages"][-1] == ({**last, "prefix": True} if how == "prefix" else last)
    assert asked.get("continue_final_message", False) is (how == "continue_final_message")
    assert asked["max_tokens"] < 100
    assert [outcome.failure for outcome in result.outcomes] == ["stream_broken", ""]
    assert [row.billed_nanos for row in rows] == [row.cost_nanos for row in rows]
    assert result.cost_nanos == sum(row.cost_nanos for row in rows)
    assert rows[1].cost_nanos == 40 * INPUT_NANOS + 5 * OUTPUT_NANOS
    usage = told[-1]["usage"]
    assert usage["completion_tokens"] == result.usage.output_total > 5  # type: ignore[union-attr]  # it has one
    assert usage["cost"] == pytest.approx(result.cost_nanos / 1e9)
    assert usage["is_estimated"]


async def test_stalled_answer_is_continued_long_before_its_idle_time_out(tmp_path: Path) -> None:
    policy = f"rescue: {{continue_by_prefill: true, {FLOOR}}}\n"
    async with relay_world(tmp_path, stalls, REST, policy=policy, endpoint=PREFILL) as world:
        result, client = await asyncio.wait_for(world.run(), 5.0)

    assert client.text == BEGUN + "there was a cat."
    assert [outcome.failure for outcome in result.outcomes] == ["too_slow", ""]
    assert [outcome.is_committed for outcome in result.outcomes] == [True, True]


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [TOOL]},
        {"n": 2},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"reasoning_effort": "high"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_what_is_more_than_one_text_is_never_continued(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    async with relay_world(tmp_path, breaks, REST, policy=CONTINUE, endpoint=PREFILL) as world:
        result, client = await world.run(**more)

    assert client.text == BEGUN
    assert len(result.outcomes) == 1
    assert result.error_code == "stream_interrupted"
    assert "[DONE]" not in client.frames


@pytest.mark.parametrize(
    ("policy", "endpoint"), [("", PREFILL), (CONTINUE, "")], ids=["not asked", "cannot"]
)
async def test_continuation_needs_policy_and_endpoint(
    tmp_path: Path, policy: str, endpoint: str
) -> None:
    async with relay_world(tmp_path, breaks, REST, policy=policy, endpoint=endpoint) as world:
        result, client = await world.run()

    assert client.text == BEGUN
    assert len(result.outcomes) == 1


async def test_translated_answer_is_never_continued(tmp_path: Path) -> None:
    async def half(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        start = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m",
                 "usage": {"input_tokens": 3, "output_tokens": 1}}  # fmt: skip
        for event in (
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0,
             "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0,
             "delta": {"type": "text_delta", "text": BEGUN}},
        ):  # fmt: skip
            said = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            await connection.send_chunk(said.encode())
        await asyncio.sleep(0.05)
        connection.reset()

    async with relay_world(
        tmp_path, half, REST, apis=["anthropic", "openai"], policy=CONTINUE, endpoint=PREFILL
    ) as world:
        result, client = await world.run()

    assert client.text == BEGUN
    assert len(result.outcomes) == 1
