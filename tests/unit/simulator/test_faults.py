"""Faults show as they would at a real provider, and each leaves the right line on the invoice."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.simulator.meter import CLOSED_MAX, Books
from tests.support.simulated import Exchange, SimulatedWorld, chat, messages

pytestmark = pytest.mark.anyio

STREAM = {"stream": True}


def _fault(mode: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"mode": mode, **fields}]


async def _faulty(mode: str, **fields: Any) -> SimulatedWorld:
    world = SimulatedWorld()
    await world.control(faults=_fault(mode, **fields))
    return world


def _generated(done: Exchange) -> int:
    return sum(1 for each in done.chunks for c in each["choices"] if c["delta"].get("content"))


async def test_error_answers_at_once_in_the_dialect_and_bills_nothing() -> None:
    world = await _faulty("error", status=529)

    openai = await world.ask("chat", chat())
    anthropic = await world.ask("messages", messages())

    assert (openai.status, anthropic.status) == (529, 529)
    assert openai.json["error"]["type"] == "server_error"
    assert anthropic.json["error"]["type"] == "overloaded_error"
    assert anthropic.json["type"] == "error"
    assert world.elapsed_s == 0.0
    assert await world.invoice() == []


async def test_forced_rate_limit_carries_retry_after() -> None:
    done = await (await _faulty("rate_limited", retry_after_s=7)).ask("chat", chat())

    assert done.status == 429
    assert done.headers["retry-after"] == "7"


async def test_html_page_has_status_200() -> None:
    done = await (await _faulty("html_200")).ask("chat", chat(**STREAM))

    assert done.status == 200
    assert done.headers["content-type"].startswith("text/html")
    assert done.body.startswith(b"<!DOCTYPE html>")


async def test_error_body_has_status_200() -> None:
    done = await (await _faulty("error_200")).ask("chat", chat(**STREAM))

    assert done.status == 200
    assert done.json["error"]["message"] == "simulated failure"


async def test_dead_provider_closes_without_a_byte() -> None:
    world = await _faulty("dead")

    done = await world.ask("chat", chat())

    assert done.transport.ended == "aborted"
    assert (done.status, done.body) == (0, b"")
    assert (await world.stats())["faults"] == {"dead": 1}


async def test_hang_before_headers_lasts_until_the_client_leaves() -> None:
    world = await _faulty("hang_before_headers")

    done = await world.ask("chat", chat(), leave_at_s=45.0)

    assert done.status == 0
    assert world.elapsed_s == 45.0
    assert (await world.stats())["closed"][0]["at_s"] == 45.0
    assert await world.invoice() == []


async def test_hang_has_a_limit() -> None:
    world = await _faulty("hang_before_headers")

    done = await world.ask("chat", chat())

    assert world.elapsed_s == 900.0
    assert done.transport.ended == "closed"


async def test_cut_stream_ends_without_end_mark_and_bills_what_was_written() -> None:
    world = await _faulty("cut_mid_stream", after_tokens=3)

    done = await world.ask("chat", chat("[[sim tokens=9]]", **STREAM))

    assert done.transport.ended == "closed"
    assert not done.is_complete
    assert b"[DONE]" not in done.body
    assert _generated(done) == 3
    line = (await world.invoice())[0]
    assert (line["ended"], line["output"]) == ("cut", 3)


async def test_cut_plain_answer_is_billed_to_the_cut() -> None:
    world = await _faulty("cut_mid_stream", after_tokens=3)

    done = await world.ask("chat", chat("[[sim tokens=9]]"))

    assert done.body == b""
    assert (await world.invoice())[0]["output"] == 3


async def test_hang_mid_stream_stays_silent_until_the_client_leaves() -> None:
    world = await _faulty("hang_mid_stream", after_tokens=2)

    done = await world.ask("chat", chat("[[sim tokens=9]]", **STREAM), leave_at_s=30.0)

    assert _generated(done) == 2
    assert world.elapsed_s == 30.0
    line = (await world.invoice())[0]
    assert (line["ended"], line["output"]) == ("hang", 2)


async def test_slow_decode_stretches_the_stream_but_not_the_first_token() -> None:
    world = await _faulty("slow_decode", factor=0.5)

    done = await world.ask("chat", chat("[[sim tokens=3]]", **STREAM))

    assert done.stamps_s[1:4] == pytest.approx([1.0, 1.2, 1.4])


async def test_slow_first_token_delays_only_it() -> None:
    world = await _faulty("slow_first_token", factor=0.25)

    done = await world.ask("chat", chat("[[sim tokens=2]]", **STREAM))

    assert done.stamps_s[1:3] == pytest.approx([4.0, 4.1])


async def test_fault_shows_only_in_its_window() -> None:
    world = await _faulty("error", starts_s=10.0, ends_s=20.0)
    statuses = []

    for at_s in (5.0, 15.0, 25.0):
        world.timers.now_s = world.started_s + at_s
        statuses.append((await world.ask("chat", chat("[[sim tokens=1]]"))).status)

    assert statuses == [200, 500, 200]


async def test_fault_hits_its_share_of_requests() -> None:
    world = await _faulty("error", share=0.3)

    statuses = [(await world.ask("count_tokens", chat())).status for _ in range(400)]

    assert statuses.count(500) == pytest.approx(120, abs=35)


async def test_prompt_can_ask_for_a_fault() -> None:
    world = SimulatedWorld()

    refused = await world.ask("chat", chat("[[sim fault=error status=503]]"))
    cut = await world.ask("chat", chat("[[sim tokens=9 fault=cut_mid_stream after=4]]", **STREAM))
    plain = await world.ask("chat", chat("[[sim fault=nonsense]]"))

    assert (refused.status, plain.status) == (503, 200)
    assert _generated(cut) == 4


async def test_leaving_mid_stream_bills_exactly_what_was_written() -> None:
    world = SimulatedWorld()

    done = await world.ask("chat", chat("[[sim tokens=50]]", **STREAM), leave_at_s=1.55)

    assert _generated(done) == 6  # at 1.0, 1.1 … 1.5 s
    line = (await world.invoice())[0]
    assert (line["ended"], line["output"]) == ("client_gone", 6)
    assert line["cost_nanos"] == -(-(line["input"] * 100_000 + 6 * 400_000) // 1000)
    stats = await world.stats()
    assert stats["closed"] == [{"id": line["id"], "at_s": pytest.approx(1.55), "tokens_written": 6}]


async def test_leaving_a_plain_request_bills_what_was_generated_by_then() -> None:
    world = SimulatedWorld()

    await world.ask("chat", chat("[[sim tokens=50]]"), leave_at_s=1.55)

    assert (await world.invoice())[0]["output"] == 6


async def test_leaving_before_the_first_token_costs_nothing_unless_the_profile_says_so() -> None:
    lenient = SimulatedWorld()
    strict = SimulatedWorld(bills_prompt_from="accepted")

    for world in (lenient, strict):
        await world.ask("chat", chat("x" * 400, **STREAM), leave_at_s=0.5)

    assert await lenient.invoice() == []
    line = (await strict.invoice())[0]
    assert line["input"] > 100
    assert line["output"] == 0


async def test_number_of_remembered_cancellations_is_bounded() -> None:
    books = Books()

    for number in range(CLOSED_MAX + 5):
        books.note_cancelled(f"r{number}", at_s=0.0, tokens=0)

    assert len(books.closed) == CLOSED_MAX
    assert books.closed[0]["id"] == "r5"
    assert books.cancelled == CLOSED_MAX + 5
