"""Plain answers, the other dialect, and what a request costs, through a real relay."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.errors import BudgetExhausted, InvalidRequest, LedgerUnavailable, UpstreamFailed
from gateway.relay.dispatch import RelayLimits
from gateway.wire.pieces import Surface
from tests.support.ledgers import only_window
from tests.support.relaying import (
    COMPLETION,
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
    relay_world,
    resets,
    streams,
    token,
    usage_frame,
)
from tests.support.scripted_server import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COST = 11 * INPUT_NANOS + 2 * OUTPUT_NANOS
GOOD_PLAIN = answers(COMPLETION)
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 2},
}


async def test_plain_answer_passes_byte_for_byte_with_its_cost(tmp_path: Path) -> None:
    odd = json.dumps(COMPLETION, indent=3).encode() + b"\n"
    headers = {
        "x-request-id": "up-1",
        "openai-processing-ms": "12",
        "x-ratelimit-remaining-requests": "1",
        "set-cookie": "a=b",
        "server": "secret-software",
    }
    async with relay_world(tmp_path, answers(odd, headers=headers)) as world:
        result, client = await world.run(stream=False)
        rows = await world.booked()

    assert client.body == odd
    assert client.headers == {
        "content-type": "application/json",
        "content-length": str(len(odd)),
        "x-looprouter-cost": "0.000015",
        "x-looprouter-endpoint": "a/m",
        "x-looprouter-attempts": "1",
        "x-upstream-request-id": "up-1",
        "openai-processing-ms": "12",
    }
    assert (result.cost_nanos, result.tokens_total, rows[0].cost_nanos) == (COST, 13, COST)


@pytest.mark.parametrize(
    "bad",
    [
        resets,
        answers({"error": {"message": "down"}}, 500),
        answers({"error": {"message": "inside a 200"}}),
        answers(b"<!doctype html><title>Login</title>", 200, {"content-type": "text/html"}),
        answers(b""),
        answers(b"{}"),
        answers(b"[1,2]"),
        answers({**COMPLETION, "choices": []}),
        answers({**COMPLETION, "usage": None, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
        ]}),
        answers(b'{"choices": [{"mess', 200, {"content-length": "100"}),
        answers(b"x" * 3_000_000),
    ],
)  # fmt: skip
async def test_plain_failure_falls_over(tmp_path: Path, bad: Any) -> None:
    limits = RelayLimits(answer_bytes_max=2_000_000)

    async def once(connection: Connection) -> None:
        if bad is resets:
            await bad(connection)
            return
        task = asyncio.create_task(bad(connection))
        await asyncio.sleep(0.05)  # one answer, then the connection closes
        task.cancel()

    async with relay_world(tmp_path, once, GOOD_PLAIN, limits=limits) as world:
        result, client = await world.run(stream=False)

    assert json.loads(client.body) == COMPLETION
    assert result.outcomes[0].failure
    assert result.billed_nanos == COST
    assert b"<" not in client.body


async def test_error_of_the_callers_own_passes_unchanged(tmp_path: Path) -> None:
    said = {"error": {"message": "bad tool", "type": "invalid_request_error", "param": "tools",
                      "code": None, "extra": 1}}  # fmt: skip
    async with relay_world(tmp_path, answers(said, 400), GOOD_PLAIN) as world:
        result, client = await world.run(stream=False)
        rows = await world.booked()

    assert (client.status, json.loads(client.body)) == (400, said)
    assert (result.status, result.error) == (400, None)
    assert (result.cost_nanos, rows[0].state) == (0, "released")
    assert len(world.servers[1].requests) == 0


async def test_too_long_for_one_is_tried_on_the_next_and_told_if_none_takes_it(
    tmp_path: Path,
) -> None:
    long = {"error": {"message": "maximum context length is 8192", "code":
                      "context_length_exceeded", "type": "invalid_request_error"}}  # fmt: skip
    async with relay_world(tmp_path, answers(long, 400), answers(long, 400)) as world:
        result, client = await world.run(stream=False)

    assert (client.status, json.loads(client.body)["error"]["code"]) == (
        400, "context_length_exceeded",
    )  # fmt: skip
    assert len(result.outcomes) == 2


async def test_client_that_leaves_a_plain_request_closes_upstream(tmp_path: Path) -> None:
    """gateways.md 4, item 12."""
    has_request = asyncio.Event()
    closed_at_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        has_request.set()
        await connection.until_peer_closes()
        closed_at_s.set_result(asyncio.get_running_loop().time())

    async with relay_world(tmp_path, script) as world:
        client = Client()
        task = asyncio.create_task(world.run(client, stream=False))
        await asyncio.wait_for(has_request.wait(), WAIT_S)
        left_at_s = asyncio.get_running_loop().time()
        client.gone.set()
        result, _ = await task
        took_s = await asyncio.wait_for(closed_at_s, WAIT_S) - left_at_s
        rows = await world.booked()

    assert took_s <= 0.25
    assert (result.status, result.is_estimated) == (499, True)
    assert rows[0].billed_nanos > 0  # gateways.md 4, item 11: never zero spend


async def test_embeddings_pass_and_are_paid(tmp_path: Path) -> None:
    answer = {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    body = {"model": "chat", "input": "hello"}
    async with relay_world(tmp_path, answers(answer)) as world:
        result, client = await world.run(body=body, surface=Surface.EMBEDDINGS)

    assert json.loads(client.body) == answer
    assert result.cost_nanos == 4 * INPUT_NANOS


async def test_chat_request_meets_an_anthropic_endpoint(tmp_path: Path) -> None:
    async with relay_world(tmp_path, answers(MESSAGE), apis=["anthropic"]) as world:
        result, client = await world.run(stream=False, seed=7)
        request = world.servers[0].requests[0]

    said = json.loads(client.body)
    assert said["choices"][0]["message"]["content"] == "Hello"
    assert request.target == "/v1/messages"
    assert (request.header("x-api-key"), request.header("authorization")) == (SECRET, None)
    assert request.header("anthropic-version") == "2023-06-01"
    assert "seed" in client.headers["x-looprouter-warning"]
    assert result.cost_nanos == COST


async def test_field_that_cannot_be_carried_is_an_error_if_all_must_be(tmp_path: Path) -> None:
    async with relay_world(tmp_path, answers(MESSAGE), apis=["anthropic"]) as world:
        result, _ = await world.run(stream=False, seed=7, provider={"require_parameters": True})

    assert isinstance(result.error, InvalidRequest)
    assert "seed" in result.error.message
    assert world.servers[0].requests == []


async def test_messages_stream_meets_a_chat_endpoint_and_gets_errors_under_their_name(
    tmp_path: Path,
) -> None:
    """gateways.md 4, item 8."""
    body = {
        "model": "chat",
        "max_tokens": 50,
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with relay_world(tmp_path, streams(ROLE, token("Half"))) as world:
        _, client = await world.run(body=body, surface=Surface.MESSAGES)

    assert b'"text":"Half"' in client.body.replace(b": ", b":")
    assert b"event: error\ndata: " in client.body
    assert b"message_stop" not in client.body


async def test_budget_that_cannot_cover_the_hold_sends_nothing(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD, GOOD, budget_nanos=1_000) as world:
        result, client = await world.run()

    assert isinstance(result.error, BudgetExhausted)
    assert not client.is_started
    assert [one.requests for one in world.servers] == [[], []]
    assert result.outcomes == []


async def test_budget_is_charged_the_cost_and_nothing_stays_held(tmp_path: Path) -> None:
    async with relay_world(tmp_path, resets, GOOD, budget_nanos=10**9) as world:
        result, _ = await world.run()
        await world.ledger.flush()
        await world.ledger.close()
        window = await only_window(world.bench.store, "bud")

    assert (window.spent, window.leased) == (COST, 0)
    assert result.billed_nanos == COST


async def test_parallel_requests_cannot_pass_a_budget(tmp_path: Path) -> None:
    budget = 20 * 1_000_000
    async with relay_world(tmp_path, GOOD, budget_nanos=budget) as world:
        jobs = [world.job(max_tokens=900) for _ in range(40)]
        results = await asyncio.gather(*(world.relay.run(job, Client()) for job in jobs))
        await world.ledger.flush()
        await world.ledger.close()
        window = await only_window(world.bench.store, "bud")

    assert window.spent == sum(one.billed_nanos for one in results) <= budget
    assert {type(one.error) for one in results} <= {type(None), BudgetExhausted}


async def test_key_with_a_budget_gets_max_tokens_set_and_is_told(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD_PLAIN, budget_nanos=10**10) as world:
        _, client = await world.run(stream=False, max_tokens=None)
        sent = json.loads(world.servers[0].requests[0].body)

    assert sent["max_tokens"] == 4096
    assert "max_tokens=4096" in client.headers["x-looprouter-warning"]


async def test_key_without_a_budget_keeps_its_body(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD_PLAIN) as world:
        await world.run(stream=False, max_tokens=None)
        sent = json.loads(world.servers[0].requests[0].body)

    assert sent["max_tokens"] is None


async def test_closed_ledger_sends_nothing(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD) as world:
        await world.ledger.close()
        result, _ = await world.run()

    assert isinstance(result.error, LedgerUnavailable)
    assert world.servers[0].requests == []


@pytest.mark.parametrize(
    ("usage", "expected", "is_estimated"),
    [
        ([], 4 * INPUT_NANOS + 2 * OUTPUT_NANOS, True),
        ([usage_frame(11, 2), usage_frame(11, 3)], 11 * INPUT_NANOS + 3 * OUTPUT_NANOS, False),
        ([usage_frame(11, 2), usage_frame(11, -3)], 11 * INPUT_NANOS + 2 * OUTPUT_NANOS, False),
        ([usage_frame(11, 2), usage_frame(11, 10**12)], COST, False),
        ([usage_frame(0, 0)], 0, False),  # gateways.md 4, item 18: an explicit zero stays one
        ([usage_frame(11, 2, prompt_tokens_details={"cached_tokens": 10})], COST, False),
    ],
)
async def test_usage_omitted_repeated_insane_or_zero(
    tmp_path: Path, usage: list[bytes], expected: int, is_estimated: bool
) -> None:
    """reliability D.2, the row on usage."""
    async with relay_world(tmp_path, streams(token("Hello"), STOP, *usage, DONE)) as world:
        result, _ = await world.run()

    assert (result.cost_nanos, result.is_estimated) == (expected, is_estimated)


async def test_usage_after_done_is_ignored(tmp_path: Path) -> None:
    parts = [token("Hello"), STOP, usage_frame(11, 2), DONE, usage_frame(99, 99)]
    async with relay_world(tmp_path, streams(*parts)) as world:
        result, _ = await world.run()

    assert result.cost_nanos == COST


async def test_usage_beside_choices_counts(tmp_path: Path) -> None:
    """gateways.md 4, items 2 and 4."""
    usage = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}
    last = frame({}, "stop", usage=usage)
    async with relay_world(tmp_path, streams(token("Hello"), last, DONE)) as world:
        result, _ = await world.run()

    assert result.cost_nanos == COST


async def test_answer_dearer_than_its_hold_bills_the_client_the_hold(tmp_path: Path) -> None:
    dear = streams(token("Hello"), STOP, usage_frame(11, 1_000_000), DONE)
    async with relay_world(tmp_path, dear, budget_nanos=10**10) as world:
        result, _ = await world.run(max_tokens=10)
        rows = await world.booked()

    assert result.cost_nanos > result.billed_nanos == rows[0].hold_nanos
    assert rows[0].overrun_nanos == result.cost_nanos - result.billed_nanos
    assert "overrun" in " ".join(world.bench.alert_kinds)


async def test_url_that_the_network_rule_forbids_is_a_refused_attempt(tmp_path: Path) -> None:
    async with relay_world(tmp_path, GOOD_PLAIN) as world:
        endpoint = world.policy.endpoints["a/m"]
        world.policy.endpoints["a/m"] = msgspec.structs.replace(
            endpoint, base_url="http://169.254.169.254/v1"
        )
        result, _ = await world.run(stream=False)
        rows = await world.booked()

    assert isinstance(result.error, UpstreamFailed)
    assert "169.254" not in result.error.message
    assert (result.outcomes[0].failure, rows[0].state) == ("misconfigured", "released")


async def test_f10_general_failure_makes_no_retry_storm(tmp_path: Path) -> None:
    """Each request wants two retries; attempts stay within 1.2 × requests + 3.

    The failure is one that opens no breaker, so that only the retry budget holds it back.
    """
    long = answers({"error": {"message": "long", "code": "context_length_exceeded"}}, 400)
    async with relay_world(tmp_path, long, long, long) as world:
        num_attempts = 0
        for _ in range(10):
            batch = [world.relay.run(world.job(stream=False), Client()) for _ in range(10)]
            num_attempts += sum(len(one.outcomes) for one in await asyncio.gather(*batch))
        num_sent = sum(len(server.requests) for server in world.servers)

    assert num_attempts == num_sent
    assert 103 <= num_sent <= 1.2 * 100 + 3
