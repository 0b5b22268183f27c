"""The official OpenAI SDK: tools, structured output and the helpers that parse them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, OpenAI, pydantic_function_tool
from pydantic import BaseModel

from tests.support.sdk_world import SdkWorld

pytestmark = pytest.mark.e2e
both_dialects = pytest.mark.parametrize("model", ["gpt", "claude"])
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"enum": ["C", "F"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather", "get_time")
]


@pytest.fixture(scope="module")
def client(world: SdkWorld) -> Iterator[OpenAI]:
    with OpenAI(base_url=world.gateway.v1, api_key=world.keys["main"]) as client:
        yield client


@pytest.fixture
async def async_client(world: SdkWorld) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=world.gateway.v1, api_key=world.keys["main"]) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@both_dialects
def test_parallel_tool_calls_and_their_results(world: SdkWorld, client: OpenAI, model: str) -> None:
    question = user("call get_weather and get_time")

    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=question, tools=TOOLS
    )

    choice = raw.parse().choices[0]
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in calls if call.type == "function"] == [
        "get_weather",
        "get_time",
    ]
    assert len({call.id for call in calls}) == 2
    for call in calls:
        assert call.type == "function"
        assert json.loads(call.function.arguments)["unit"] in ("C", "F")
    world.check_paid(raw.headers, model=model, surface="chat")

    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": f"result {place}"}
        for place, call in enumerate(calls)
    ]
    followed = client.chat.completions.with_raw_response.create(
        model=model, messages=[*question, choice.message, *results], tools=TOOLS
    )

    assert followed.parse().choices[0].finish_reason == "stop"
    received = json.dumps(world.last_received(world.provider_of(model)))
    for place, call in enumerate(calls):
        assert f"result {place}" in received
        assert received.count(call.id) == 2
    world.check_paid(followed.headers, model=model, surface="chat")


@both_dialects
def test_streamed_tool_calls_add_up_to_the_plain_ones(client: OpenAI, model: str) -> None:
    asked: Any = {
        "model": model,
        "messages": user("call get_weather and get_time"),
        "tools": TOOLS,
        "temperature": 0,
    }
    plain = client.chat.completions.create(**asked).choices[0].message.tool_calls or []

    calls: dict[int, dict[str, str]] = {}
    finishes = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        finishes += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        for part in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            assert part.function is not None
            call["id"] += part.id or ""
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""

    assert finishes == ["tool_calls"]
    assert [calls[index] for index in sorted(calls)] == [
        {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
        for call in plain
        if call.type == "function"
    ]


@both_dialects
def test_tool_choice_and_serial_calls_are_obeyed(client: OpenAI, model: str) -> None:
    def called(**fields: Any) -> list[str]:
        done = client.chat.completions.create(
            model=model, messages=user("call get_weather and get_time"), tools=TOOLS, **fields
        )
        return [
            call.function.name
            for call in done.choices[0].message.tool_calls or []
            if call.type == "function"
        ]

    assert called(parallel_tool_calls=False) == ["get_weather"]
    assert called(tool_choice={"type": "function", "function": {"name": "get_time"}}) == [
        "get_time"
    ]
    assert called(tool_choice="none") == []
    assert called(tool_choice="required") == ["get_weather", "get_time"]


class Weather(BaseModel):
    city: str
    degrees: int
    sky: Literal["clear", "cloudy"]


@both_dialects
def test_parse_helper_gives_the_model_it_was_asked_for(client: OpenAI, model: str) -> None:
    done = client.chat.completions.parse(
        model=model, messages=user("weather"), response_format=Weather
    )

    weather = done.choices[0].message.parsed
    assert isinstance(weather, Weather)
    assert weather.sky in ("clear", "cloudy")


@both_dialects
def test_stream_helper_parses_content_and_tools(
    world: SdkWorld, client: OpenAI, model: str
) -> None:
    with client.chat.completions.stream(
        model=model,
        messages=user("weather"),
        response_format=Weather,
        stream_options={"include_usage": True},
    ) as stream:
        kinds = [event.type for event in stream]
        headers = stream._response.headers
        final = stream.get_final_completion()

    assert kinds.count("content.done") == 1
    assert kinds.count("content.delta") > 1
    assert isinstance(final.choices[0].message.parsed, Weather)
    assert final.usage is not None
    world.check_paid(headers, model=model, surface="chat")

    with client.chat.completions.stream(
        model=model, messages=user("go"), tools=[pydantic_function_tool(Weather)]
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [type(call.function.parsed_arguments) for call in calls] == [Weather]


@both_dialects
def test_json_mode(client: OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=user("json please"), response_format={"type": "json_object"}
    )

    if model == "claude":  # that dialect has a schema or nothing
        assert "response_format" in raw.headers["x-looprouter-warning"]
    else:
        assert json.loads(raw.parse().choices[0].message.content or "")["simulated"] is True


@pytest.mark.anyio
@both_dialects
async def test_async_stream_helper(async_client: AsyncOpenAI, model: str) -> None:
    async with async_client.chat.completions.stream(
        model=model, messages=user("hi"), tools=TOOLS, tool_choice="none"
    ) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()

    assert "".join(deltas) == final.choices[0].message.content
