"""Every surface, streamed and whole: well-formed, equal text, usage equal to the invoice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.simulated import SimulatedWorld, chat, messages

pytestmark = pytest.mark.anyio

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
            },
        },
    }
    for name in ("weather", "tides")
]
MESSAGE_TOOLS = [
    {"name": each["function"]["name"], "input_schema": each["function"]["parameters"]}
    for each in TOOLS
]
RESPONSE_TOOLS = [{"type": "function", **each["function"]} for each in TOOLS]


def _delta_text(chunks: list[Any], index: int = 0, field: str = "content") -> str:
    return "".join(
        choice["delta"].get(field) or ""
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


async def test_chat_stream_has_role_deltas_finish_usage_and_one_end_mark() -> None:
    world = SimulatedWorld()

    done = await world.ask(
        "chat", chat("[[sim tokens=5]]", stream=True, stream_options={"include_usage": True})
    )

    first, *_, finish, usage = done.chunks
    assert done.headers["content-type"].startswith("text/event-stream")
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert _delta_text(done.chunks).startswith("[simulated] ")
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert all(each["usage"] is None for each in done.chunks[:-1])
    assert done.body.endswith(b"data: [DONE]\n\n")
    assert done.body.count(b"[DONE]") == 1


async def test_chat_stream_without_usage_asked_shows_none() -> None:
    done = await SimulatedWorld().ask("chat", chat("[[sim tokens=3]]", stream=True))

    assert all("usage" not in each for each in done.chunks)


async def test_continuous_usage_counts_up_to_the_invoice() -> None:
    world = SimulatedWorld(usage_every_event=True)

    done = await world.ask("chat", chat("[[sim tokens=4]]", stream=True))

    counts = [each["usage"]["completion_tokens"] for each in done.chunks]
    assert counts == [0, 1, 2, 3, 4, 4, 4]
    assert (await world.invoice())[0]["output"] == 4


async def test_same_seed_gives_same_text_streamed_or_whole() -> None:
    world = SimulatedWorld()

    streamed = await world.ask("chat", chat("tell", seed=3, stream=True))
    whole = await world.ask("chat", chat("tell", seed=3))
    other = await world.ask("chat", chat("tell", seed=4))

    text = whole.json["choices"][0]["message"]["content"]
    assert _delta_text(streamed.chunks) == text
    assert other.json["choices"][0]["message"]["content"] != text


async def test_unseeded_answers_differ_and_greedy_ones_do_not() -> None:
    world = SimulatedWorld()

    async def text(**fields: Any) -> str:
        done = await world.ask("chat", chat("tell", **fields))
        return str(done.json["choices"][0]["message"]["content"])

    assert await text() != await text()
    assert await text(temperature=0) == await text(temperature=0)


async def test_max_tokens_cuts_and_says_length() -> None:
    world = SimulatedWorld()

    done = await world.ask("chat", chat("[[sim tokens=50]]", max_completion_tokens=7))

    assert done.json["choices"][0]["finish_reason"] == "length"
    assert done.json["usage"]["completion_tokens"] == 7


async def test_stop_string_ends_the_text_before_it() -> None:
    world = SimulatedWorld()
    whole = await world.ask("chat", chat("tell [[sim tokens=40]]", seed=1))
    text = whole.json["choices"][0]["message"]["content"]
    stop = text[60:66]

    done = await world.ask("chat", chat("tell [[sim tokens=40]]", seed=1, stop=[stop]))

    assert done.json["choices"][0]["message"]["content"] == text[: text.index(stop)]
    assert done.json["choices"][0]["finish_reason"] == "stop"
    assert done.json["usage"]["completion_tokens"] < 40


async def test_n_choices_take_turns_and_all_are_billed() -> None:
    world = SimulatedWorld()

    done = await world.ask("chat", chat("[[sim tokens=3]]", n=2, stream=True))

    order = [
        choice["index"]
        for chunk in done.chunks
        for choice in chunk["choices"]
        if choice["delta"].get("content")
    ]
    assert order == [0, 1, 0, 1, 0, 1]
    assert (await world.invoice())[0]["output"] == 6


async def test_logprobs_come_one_a_token() -> None:
    done = await SimulatedWorld().ask(
        "chat", chat("[[sim tokens=3]]", logprobs=True, top_logprobs=2)
    )

    choice = done.json["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == choice["message"]["content"]
    assert all(len(each["top_logprobs"]) == 2 for each in content)


async def test_reasoning_comes_before_text_and_is_counted_apart() -> None:
    world = SimulatedWorld(reasoning_tokens=6)

    done = await world.ask(
        "chat",
        chat(
            "[[sim tokens=4]]",
            reasoning_effort="high",
            stream=True,
            stream_options={"include_usage": True},
        ),
    )

    details = done.chunks[-1]["usage"]
    assert details["completion_tokens"] == 10
    assert details["completion_tokens_details"]["reasoning_tokens"] == 6
    assert _delta_text(done.chunks, field="reasoning_content").startswith("[simulated]")
    line = (await world.invoice())[0]
    assert (line["output"], line["reasoning"]) == (4, 6)


async def test_chat_calls_every_tool_the_user_names_with_valid_arguments() -> None:
    world = SimulatedWorld()
    body = chat("weather and tides please", tools=TOOLS, seed=1)

    whole = (await world.ask("chat", body)).json["choices"][0]
    chunks = (await world.ask("chat", {**body, "stream": True})).chunks

    calls = whole["message"]["tool_calls"]
    assert whole["finish_reason"] == "tool_calls"
    assert [each["function"]["name"] for each in calls] == ["weather", "tides"]
    joined = {0: "", 1: ""}
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            joined[call["index"]] += call["function"]["arguments"]
    for index, call in enumerate(calls):
        arguments = json.loads(call["function"]["arguments"])
        assert isinstance(arguments["city"], str)
        assert isinstance(arguments["days"], int)
        assert joined[index] == call["function"]["arguments"]


async def test_tool_loop_ends_in_text_after_a_result() -> None:
    body = chat("weather", tools=TOOLS)
    body["messages"] += [{"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]

    done = await SimulatedWorld().ask("chat", body)

    assert done.json["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("surface", ["chat", "messages"])
async def test_json_schema_answer_satisfies_the_schema(surface: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "green"]},
            "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
        },
        "required": ["colour", "sizes"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    output_config = {"format": {"type": "json_schema", "schema": schema}}
    is_chat = surface == "chat"
    body = chat(response_format=form) if is_chat else messages(output_config=output_config)

    done = (await SimulatedWorld().ask(surface, body)).json

    text = done["choices"][0]["message"]["content"] if is_chat else done["content"][0]["text"]
    value = json.loads(text)
    assert value["colour"] in ("red", "green")
    assert len(value["sizes"]) >= 2


async def test_schema_beyond_the_simulator_is_refused_not_answered_wrongly() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "a+"}}}

    done = await SimulatedWorld().ask("chat", chat(response_format=form))

    assert done.status == 400
    assert "pattern" in done.json["error"]["message"]


async def test_json_object_answer_is_an_object() -> None:
    done = await SimulatedWorld().ask("chat", chat(response_format={"type": "json_object"}))

    assert json.loads(done.json["choices"][0]["message"]["content"])["simulated"] is True


async def test_completions_echo_and_stream() -> None:
    world = SimulatedWorld()
    body = {"model": "m", "prompt": "once ", "seed": 1, "echo": True, "max_tokens": 4}

    whole = await world.ask("completions", body)
    streamed = await world.ask("completions", {**body, "stream": True})

    text = whole.json["choices"][0]["text"]
    assert text.startswith("once [simulated]")
    assert "".join(each["choices"][0]["text"] for each in streamed.chunks) == text


async def test_responses_stream_tells_every_item_from_added_to_done() -> None:
    world = SimulatedWorld(reasoning_tokens=2)
    body = {
        "model": "m",
        "input": "hello [[sim tokens=2]]",
        "reasoning": {"effort": "low"},
        "stream": True,
    }

    done = await world.ask("responses", body)

    assert [name.removeprefix("response.") for name, _ in done.events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [each["sequence_number"] for each in done.chunks] == list(range(17))
    assert all(name == payload["type"] for name, payload in done.events)
    usage = done.chunks[-1]["response"]["usage"]
    assert usage["output_tokens"] == 4
    assert usage["output_tokens_details"]["reasoning_tokens"] == 2


async def test_responses_tool_call_and_incomplete() -> None:
    world = SimulatedWorld()
    body = {"model": "m", "input": "weather", "tools": RESPONSE_TOOLS, "seed": 2}

    called = (await world.ask("responses", body)).json
    cut = await world.ask(
        "responses", {"model": "m", "input": "x", "max_output_tokens": 2, "stream": True}
    )

    assert called["output"][0]["type"] == "function_call"
    assert isinstance(json.loads(called["output"][0]["arguments"])["days"], int)
    assert cut.events[-1][0] == "response.incomplete"
    assert cut.chunks[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_messages_stream_and_whole_agree() -> None:
    world = SimulatedWorld(reasoning_tokens=3)
    body = messages("[[sim tokens=3]]", seed=1, thinking={"type": "enabled", "budget_tokens": 64})

    whole = (await world.ask("messages", body)).json
    streamed = await world.ask("messages", {**body, "stream": True})

    assert [name for name, _ in streamed.events] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 4,  # three of thinking, then its signature
        "content_block_stop",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    text = "".join(
        each["delta"]["text"]
        for each in streamed.chunks
        if each.get("delta", {}).get("type") == "text_delta"
    )
    assert whole["content"][0]["type"] == "thinking"
    assert whole["content"][1]["text"] == text
    assert streamed.chunks[-2]["usage"] == whole["usage"]
    assert whole["usage"]["output_tokens"] == 6
    assert whole["usage"]["output_tokens_details"] == {"thinking_tokens": 3}


async def test_messages_tool_use_streams_its_json() -> None:
    world = SimulatedWorld()
    body = messages("weather", tools=MESSAGE_TOOLS, seed=1, stream=True)

    done = await world.ask("messages", body)

    joined = "".join(
        each["delta"]["partial_json"]
        for each in done.chunks
        if each.get("delta", {}).get("type") == "input_json_delta"
    )
    assert isinstance(json.loads(joined)["days"], int)
    assert done.chunks[-2]["delta"]["stop_reason"] == "tool_use"


async def test_messages_stop_sequence_is_named() -> None:
    done = await SimulatedWorld().ask("messages", messages(stop_sequences=["ulated"]))

    assert done.json["stop_reason"] == "stop_sequence"
    assert done.json["stop_sequence"] == "ulated"
    assert done.json["content"][0]["text"] == "[sim"
