"""The official OpenAI SDK on the other surfaces: completions, responses, embeddings, models."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from tests.support.sdk_world import IMAGE_PNG, PROFILES, SdkWorld, nanos

pytestmark = pytest.mark.e2e
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": name,
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    }
    for name in ("get_weather", "get_time")
]


class Weather(BaseModel):
    city: str
    sky: Literal["clear", "cloudy"]


@pytest.fixture(scope="module")
def client(world: SdkWorld) -> Iterator[OpenAI]:
    with OpenAI(base_url=world.gateway.v1, api_key=world.keys["main"]) as client:
        yield client


@pytest.fixture
async def async_client(world: SdkWorld) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=world.gateway.v1, api_key=world.keys["main"]) as client:
        yield client


# Completions


def test_completion_plain_with_choices_logprobs_and_echo(world: SdkWorld, client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="gpt", prompt="[[sim tokens=50]]Once", n=2, logprobs=1, echo=True, max_tokens=7
    )

    done = raw.parse()
    assert done.object == "text_completion"
    assert [choice.finish_reason for choice in done.choices] == ["length", "length"]
    for choice in done.choices:
        assert choice.text.startswith("[[sim tokens=50]]Once[simulated]")
        assert choice.logprobs is not None
        assert choice.text.endswith("Once" + "".join(choice.logprobs.tokens or []))
    assert done.usage is not None
    assert done.usage.completion_tokens == 14
    world.check_paid(raw.headers, model="gpt", surface="completions")


def test_completion_stream_equals_the_plain_text(world: SdkWorld, client: OpenAI) -> None:
    asked: Any = {"model": "gpt", "prompt": "Once", "temperature": 0, "max_tokens": 30}

    plain = client.completions.create(**asked)
    silent = list(client.completions.create(**asked, stream=True))
    raw = client.completions.with_raw_response.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(raw.parse())

    for each in (silent, chunks):
        text = "".join(choice.text for chunk in each for choice in chunk.choices)
        assert text == plain.choices[0].text
    assert all(chunk.usage is None and chunk.choices for chunk in silent)
    assert [chunk for chunk in chunks if chunk.usage is not None] == chunks[-1:]
    assert chunks[-1].choices == []
    record = world.check_paid(raw.headers, model="gpt", surface="completions")
    usage = chunks[-1].usage
    assert usage is not None
    assert nanos(f"{(usage.model_extra or {})['cost']:.9f}") == nanos(record["cost"])


def test_completion_stop_and_token_prompt(world: SdkWorld, client: OpenAI) -> None:
    asked: Any = {"model": "gpt", "prompt": [11, 22, 33], "temperature": 0, "max_tokens": 40}
    whole = client.completions.create(**asked).choices[0].text
    word = whole.split()[7]

    raw = client.completions.with_raw_response.create(**asked, stop=word)

    choice = raw.parse().choices[0]
    assert choice.text == whole[: whole.index(word)]
    assert choice.finish_reason == "stop"
    assert world.last_received("openai-sim")["prompt"] == [11, 22, 33]
    world.check_paid(raw.headers, model="gpt", surface="completions")


@pytest.mark.anyio
async def test_completion_async(world: SdkWorld, async_client: AsyncOpenAI) -> None:
    asked: Any = {"model": "gpt", "prompt": "Once", "temperature": 0}

    raw = await async_client.completions.with_raw_response.create(**asked)
    stream = await async_client.completions.create(**asked, stream=True)
    text = "".join([choice.text async for chunk in stream for choice in chunk.choices])

    assert text == raw.parse().choices[0].text
    world.check_paid(raw.headers, model="gpt", surface="completions")


# Responses


def test_response_plain(world: SdkWorld, client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="gpt",
        instructions="Be brief.",
        input="hello",
        metadata={"trace": "1"},
        extra_body={"vendor_knob": 1},
    )

    done = raw.parse()
    assert done.status == "completed"
    assert done.model == "gpt-sim"
    assert done.output_text.startswith("[simulated]")
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    received = world.providers["openai-sim"].received[-1]
    sent = raw.http_request.content
    assert received.body == sent.replace(b'"model":"gpt"', b'"model":"gpt-sim"')
    record = world.check_paid(raw.headers, model="gpt", surface="responses")
    assert record["usage"]["output"] == done.usage.output_tokens


def test_response_stream_events_are_in_order_and_complete(world: SdkWorld, client: OpenAI) -> None:
    asked: Any = {"model": "gpt", "input": "hello", "temperature": 0}
    plain = client.responses.create(**asked)

    raw = client.responses.with_raw_response.create(**asked, stream=True)
    events = list(raw.parse())

    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.done") == 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == plain.output_text
    world.check_paid(raw.headers, model="gpt", surface="responses")


def test_response_stream_helper_and_parse_helper(world: SdkWorld, client: OpenAI) -> None:
    parsed = client.responses.parse(model="gpt", input="weather", text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)

    with client.responses.stream(model="gpt", input="weather", text_format=Weather) as stream:
        snapshots = [
            event.snapshot for event in stream if event.type == "response.output_text.delta"
        ]
        final = stream.get_final_response()
        headers = stream._response.headers

    assert len(snapshots) > 1
    assert isinstance(final.output_parsed, Weather)
    assert Weather.model_validate_json(snapshots[-1]) == final.output_parsed
    world.check_paid(headers, model="gpt", surface="responses")


@pytest.mark.parametrize("is_parallel", [True, False])
def test_response_tools_and_their_results(
    world: SdkWorld, client: OpenAI, is_parallel: bool
) -> None:
    question: list[Any] = [{"role": "user", "content": "call get_weather and get_time"}]
    asked: Any = {"model": "gpt", "tools": TOOLS, "parallel_tool_calls": is_parallel}

    first = client.responses.create(input=question, temperature=0, **asked)
    with client.responses.stream(input=question, temperature=0, **asked) as stream:
        arguments = [
            event.arguments
            for event in stream
            if event.type == "response.function_call_arguments.done"
        ]

    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["get_weather", "get_time"][: 1 + is_parallel]
    assert arguments == [call.arguments for call in calls]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"result {place}"}
        for place, call in enumerate(calls)
    ]
    raw = client.responses.with_raw_response.create(
        input=[*question, *first.output, *results], **asked
    )
    assert raw.parse().output_text.startswith("[simulated]")
    assert "result 0" in json.dumps(world.last_received("openai-sim"))
    world.check_paid(raw.headers, model="gpt", surface="responses")


def test_response_reasoning_image_and_length_limit(world: SdkWorld, client: OpenAI) -> None:
    raw = client.responses.with_raw_response.create(
        model="gpt",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "what is this? [[sim tokens=90]]"},
                    {
                        "type": "input_image",
                        "image_url": f"data:image/png;base64,{IMAGE_PNG}",
                        "detail": "low",
                    },
                ],
            }
        ],
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=40,
    )

    done = raw.parse()
    assert done.status == "incomplete"
    assert done.incomplete_details is not None
    assert done.incomplete_details.reason == "max_output_tokens"
    assert [item.type for item in done.output] == ["reasoning", "message"]
    assert done.usage is not None
    assert done.usage.output_tokens_details.reasoning_tokens == 24
    assert done.usage.output_tokens == 40
    record = world.check_paid(raw.headers, model="gpt", surface="responses")
    assert record["usage"]["reasoning"] == 24
    assert record["facts"]["num_images"] == 1


@pytest.mark.anyio
async def test_response_async(world: SdkWorld, async_client: AsyncOpenAI) -> None:
    asked: Any = {"model": "gpt", "input": "hello", "temperature": 0}

    raw = await async_client.responses.with_raw_response.create(**asked)
    stream = await async_client.responses.create(**asked, stream=True)
    deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]

    assert "".join(deltas) == raw.parse().output_text
    world.check_paid(raw.headers, model="gpt", surface="responses")


# Embeddings


def test_embeddings_as_floats_and_as_base64_are_the_same(world: SdkWorld, client: OpenAI) -> None:
    floats = client.embeddings.with_raw_response.create(
        model="gpt", input=["a", "bb"], encoding_format="float", dimensions=8
    )
    coded = client.embeddings.with_raw_response.create(
        model="gpt", input=["a", "bb"], encoding_format="base64", dimensions=8
    )
    default = client.embeddings.create(model="gpt", input=["a", "bb"], dimensions=8)

    vectors = [entry.embedding for entry in floats.parse().data]
    assert [len(vector) for vector in vectors] == [8, 8]
    decoded: list[Any] = [entry.embedding for entry in coded.parse().data]
    assert [
        pytest.approx(struct.unpack("<8f", base64.b64decode(text))) for text in decoded
    ] == vectors
    assert [pytest.approx(entry.embedding) for entry in default.data] == vectors
    assert default.usage.prompt_tokens == default.usage.total_tokens > 0
    for headers in (floats.headers, coded.headers):
        record = world.check_paid(headers, model="gpt", surface="embeddings")
        assert set(record["usage"]) == {"input"}


@pytest.mark.anyio
async def test_embeddings_async(world: SdkWorld, async_client: AsyncOpenAI) -> None:
    raw = await async_client.embeddings.with_raw_response.create(model="gpt", input="hello")

    assert len(raw.parse().data[0].embedding) == 256
    world.check_paid(raw.headers, model="gpt", surface="embeddings")


def test_surfaces_without_a_translation_are_refused_clearly(
    world: SdkWorld, client: OpenAI
) -> None:
    before = world.providers["anthropic-sim"].stats()["requests_seen"]

    for ask in (
        lambda: client.completions.create(model="claude", prompt="Once"),
        lambda: client.completions.create(model="claude", prompt="Once", stream=True),
        lambda: client.responses.create(model="claude", input="hi"),
        lambda: client.responses.create(model="claude", input="hi", stream=True),
        lambda: client.embeddings.create(model="claude", input="hi"),
    ):
        with pytest.raises(BadRequestError, match="anthropic-sim/claude-sim"):
            ask()

    assert world.providers["anthropic-sim"].stats()["requests_seen"] == before


# Models


def test_models_list_and_retrieve(world: SdkWorld, client: OpenAI) -> None:
    client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "hi"}])

    listed = {model.id: model for model in client.models.list()}
    assert set(listed) == {"gpt", "claude", "slow-gpt", "slow-claude", "broken", "pair"}
    model = client.models.retrieve("gpt")
    assert model.object == "model"
    (endpoint,) = (model.model_extra or {})["looprouter"]["endpoints"]
    profile = next(each for each in PROFILES if each.name == "openai-sim")
    assert endpoint["id"] == "openai-sim/gpt-sim"
    assert endpoint["simulated"] is True
    assert endpoint["context_tokens_max"] == profile.context_tokens_max
    assert (endpoint["prices"][0]["input"], endpoint["prices"][0]["output"]) == ("0.137", "0.593")
    assert endpoint["measured"]["success"]["n"] > 0
    pair = (listed["pair"].model_extra or {})["looprouter"]["endpoints"]
    assert [each["provider"] for each in pair] == ["broken-sim", "openai-sim"]


def test_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.models.retrieve("nobody")

    assert missing.value.code == "model_not_found"


def test_scoped_key_lists_only_its_models(world: SdkWorld, client: OpenAI) -> None:
    scoped = client.with_options(api_key=world.keys["scoped"])

    assert [model.id for model in scoped.models.list()] == ["gpt"]
    with pytest.raises(NotFoundError):
        scoped.models.retrieve("claude")
