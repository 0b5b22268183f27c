"""The official Anthropic SDK: tools and structured output, in both dialects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from anthropic import (
    Anthropic,
)
from pydantic import BaseModel

from tests.support.sdk_world import (
    SdkWorld,
)

pytestmark = pytest.mark.e2e
both_dialects = pytest.mark.parametrize("model", ["claude", "gpt"])
MAX = 500
TOOLS: list[Any] = [
    {
        "name": name,
        "description": "A tool.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    }
    for name in ("get_weather", "get_time")
]


@pytest.fixture(scope="module")
def client(world: SdkWorld) -> Iterator[Anthropic]:
    with Anthropic(base_url=world.gateway.base_url, api_key=world.keys["main"]) as client:
        yield client


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


@both_dialects
def test_parallel_tools_and_their_results(world: SdkWorld, client: Anthropic, model: str) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": MAX,
        "tools": TOOLS,
        "extra_body": {"temperature": 0},
    }
    question = user("call get_weather and get_time")

    raw = client.messages.with_raw_response.create(messages=question, **asked)
    with client.messages.stream(messages=question, **asked) as stream:
        streamed = stream.get_final_message()

    message = raw.parse()
    assert message.stop_reason == streamed.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [call.name for call in calls] == ["get_weather", "get_time"]
    assert len({call.id for call in calls}) == 2
    assert all(call.input["unit"] in ("C", "F") for call in calls)
    assert [
        (block.id, block.name, block.input)
        for block in streamed.content
        if block.type == "tool_use"
    ] == [(call.id, call.name, call.input) for call in calls]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"result {place}"}
        for place, call in enumerate(calls)
    ]
    followed = client.messages.with_raw_response.create(
        messages=[*question, {"role": "assistant", "content": message.content}, *user(results)],
        **asked,
    )
    assert followed.parse().stop_reason == "end_turn"
    received = json.dumps(world.last_received(world.provider_of(model)))
    for place, call in enumerate(calls):
        assert f"result {place}" in received
        assert received.count(call.id) == 2
    for headers in (raw.headers, stream.response.headers, followed.headers):
        world.check_paid(headers, model=model, surface="messages")


@both_dialects
def test_tool_choice_is_obeyed(client: Anthropic, model: str) -> None:
    def called(choice: Any) -> list[str]:
        message = client.messages.create(
            model=model,
            max_tokens=MAX,
            messages=user("call get_weather and get_time"),
            tools=TOOLS,
            tool_choice=choice,
        )
        return [block.name for block in message.content if block.type == "tool_use"]

    assert called({"type": "auto", "disable_parallel_tool_use": True}) == ["get_weather"]
    assert called({"type": "tool", "name": "get_time"}) == ["get_time"]
    assert called({"type": "none"}) == []
    assert called({"type": "any"}) == ["get_weather", "get_time"]


class Weather(BaseModel):
    city: str
    degrees: int
    sky: Literal["clear", "cloudy"]


@both_dialects
def test_structured_output_plain_and_streamed(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": MAX,
        "messages": user("weather"),
        "output_format": Weather,
    }

    parsed = client.messages.parse(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()

    assert isinstance(parsed.parsed_output, Weather)
    assert isinstance(streamed.parsed_output, Weather)
    world.check_paid(stream.response.headers, model=model, surface="messages")
