"""The official OpenAI SDK, only base URL and key changed: chat, in its own dialect and translated.

`gpt` is served in the OpenAI dialect, so bytes pass; `claude` in Anthropic's, so all is translated.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.support.sdk_world import IMAGE_PNG, SdkWorld, nanos

pytestmark = pytest.mark.e2e
both_dialects = pytest.mark.parametrize("model", ["gpt", "claude"])


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


def joined(chunks: list[ChatCompletionChunk], choice: int = 0) -> str:
    """The text of one choice of a stream."""
    return "".join(
        each.delta.content or ""
        for chunk in chunks
        for each in chunk.choices
        if each.index == choice
    )


@both_dialects
def test_plain_answer_is_whole_paid_and_labelled(
    world: SdkWorld, client: OpenAI, model: str
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[
            {"role": "system", "content": "Be brief."},
            *user("hello"),
            {"role": "assistant", "content": "Hello!"},
            *user("and now?"),
        ],
    )

    done = raw.parse()
    assert done.object == "chat.completion"
    assert done.model == world.upstream_model(model)
    assert done.choices[0].finish_reason == "stop"
    assert (done.choices[0].message.content or "").startswith("[simulated]")
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done._request_id == raw.headers["x-request-id"]
    assert raw.headers["x-request-id"] == raw.headers["x-looprouter-request-id"]
    assert raw.headers["content-type"] == "application/json"
    record = world.check_paid(raw.headers, model=model, surface="chat")
    assert record["stream"] is False
    assert record["usage"]["output"] == done.usage.completion_tokens


def test_same_dialect_request_reaches_the_provider_byte_for_byte(
    world: SdkWorld, client: OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="gpt",
        messages=user("Füße 🚀 \u2028 1e400"),
        temperature=0.30000000000000004,
        extra_body={"vendor_knob": {"deep": [1, 2.50, None], "é": True}, "min_p": 0.05},
    )

    received = world.providers["openai-sim"].received[-1]
    sent = raw.http_request.content
    assert b"vendor_knob" in sent
    assert received.body == sent.replace(b'"model":"gpt"', b'"model":"gpt-sim"')
    assert received.headers["authorization"] == "Bearer sk-upstream-openai"
    assert world.keys["main"] not in str(received.headers)
    assert "x-looprouter-warning" not in raw.headers


def test_fields_that_translation_cannot_carry_are_listed(world: SdkWorld, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="claude", messages=user("hi"), seed=7, extra_body={"vendor_knob": 1}
    )

    warning = raw.headers["x-looprouter-warning"]
    assert "seed" in warning
    assert "vendor_knob" in warning
    assert "vendor_knob" not in world.last_received("anthropic-sim")
    world.check_paid(raw.headers, model="claude", surface="chat")


def test_require_parameters_turns_an_uncarried_field_into_an_error(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="vendor_knob"):
        client.chat.completions.create(
            model="claude",
            messages=user("hi"),
            extra_body={"vendor_knob": 1, "provider": {"require_parameters": True}},
        )


@both_dialects
def test_stream_with_usage_ends_with_one_usage_chunk(
    world: SdkWorld, client: OpenAI, model: str
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=user("hi"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(raw.parse())

    assert joined(chunks).startswith("[simulated]")
    assert [chunk for chunk in chunks if chunk.usage is not None] == chunks[-1:]
    last = chunks[-1]
    assert last.usage is not None
    assert last.choices == []
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    record = world.check_paid(raw.headers, model=model, surface="chat")
    assert record["stream"] is True
    assert record["ttft_visible_ms"] > 0
    assert record["usage"]["output"] == last.usage.completion_tokens
    cost = (last.usage.model_extra or {})["cost"]
    assert nanos(f"{cost:.9f}") == nanos(record["cost"])


@both_dialects
def test_stream_without_usage_shows_none_and_is_paid_exactly(
    world: SdkWorld, client: OpenAI, model: str
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=user("hi"), stream=True
    )
    chunks = list(raw.parse())

    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"
    world.check_paid(raw.headers, model=model, surface="chat")


@both_dialects
def test_stream_and_plain_answer_carry_the_same_text(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": user("the same twice"), "temperature": 0}

    plain = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))

    assert joined(chunks) == plain.choices[0].message.content


@both_dialects
def test_images_reach_the_provider(world: SdkWorld, client: OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {
                        "type": "image_url",
                        "image_url": {"url": f"data:image/png;base64,{IMAGE_PNG}"},
                    },
                ],
            }
        ],
    )

    usage = raw.parse().usage
    assert usage is not None
    assert usage.prompt_tokens > 258
    assert IMAGE_PNG in json.dumps(world.last_received(world.provider_of(model)))
    assert world.check_paid(raw.headers, model=model, surface="chat")["facts"]["num_images"] == 1


@both_dialects
def test_reasoning_is_shown_counted_and_paid(world: SdkWorld, client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": user("think"), "reasoning_effort": "low"}

    raw = client.chat.completions.with_raw_response.create(**asked)
    done = raw.parse()
    streamed = client.chat.completions.with_raw_response.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(streamed.parse())

    extra = done.choices[0].message.model_extra or {}
    assert extra["reasoning_content"].startswith("[simulated]")
    for usage in (done.usage, chunks[-1].usage):
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 24
    thoughts = [
        (choice.delta.model_extra or {}).get("reasoning_content")
        for chunk in chunks
        for choice in chunk.choices
    ]
    assert "".join(thought or "" for thought in thoughts).startswith("[simulated]")
    assert joined(chunks).startswith("[simulated]")
    for headers in (raw.headers, streamed.headers):
        record = world.check_paid(headers, model=model, surface="chat")
        assert record["usage"]["reasoning"] == 24


def test_logprobs_pass_plain_and_streamed(client: OpenAI) -> None:
    asked: Any = {
        "model": "gpt",
        "messages": user("hi [[sim tokens=50]]"),
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 9,
    }

    choice = client.chat.completions.create(**asked).choices[0]
    chunks = list(client.chat.completions.create(**asked, stream=True))

    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert "".join(token.token for token in tokens) == choice.message.content
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    streamed = [
        token.token
        for chunk in chunks
        for each in chunk.choices
        if each.logprobs is not None
        for token in each.logprobs.content or []
    ]
    assert "".join(streamed) == joined(chunks)
    assert len(streamed) == 9


def test_several_choices_come_and_are_all_paid(world: SdkWorld, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="gpt", messages=user("hi [[sim tokens=50]]"), n=3, max_tokens=12
    )
    streamed = client.chat.completions.with_raw_response.create(
        model="gpt", messages=user("hi [[sim tokens=50]]"), n=3, max_tokens=12, stream=True
    )
    chunks = list(streamed.parse())

    assert [choice.index for choice in raw.parse().choices] == [0, 1, 2]
    assert len({choice.message.content for choice in raw.parse().choices}) == 3
    assert len({joined(chunks, choice) for choice in range(3)}) == 3
    for headers in (raw.headers, streamed.headers):
        assert world.check_paid(headers, model="gpt", surface="chat")["usage"]["output"] == 36


def test_several_choices_where_the_model_gives_one_are_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model="claude", messages=user("hi"), n=2)

    assert refused.value.param == "n"


def test_seed_makes_an_answer_repeat(client: OpenAI) -> None:
    def text(seed: int) -> str | None:
        done = client.chat.completions.create(model="gpt", messages=user("hi"), seed=seed)
        return done.choices[0].message.content

    assert text(1) == text(1)
    assert text(1) != text(2)


@both_dialects
def test_stop_list_cuts_the_text_before_its_first_hit(client: OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": user("stop somewhere"), "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content or ""
    word = whole.split()[9]

    choice = client.chat.completions.create(**asked, stop=["never said", word]).choices[0]

    assert choice.message.content == whole[: whole.index(word)]
    assert choice.finish_reason == "stop"


@both_dialects
def test_max_completion_tokens_ends_by_length(client: OpenAI, model: str) -> None:
    done = client.chat.completions.create(
        model=model, messages=user("hi [[sim tokens=50]]"), max_completion_tokens=5
    )

    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 5


def test_service_tier_passes_both_ways(world: SdkWorld, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="gpt", messages=user("hi"), service_tier="flex"
    )

    assert world.last_received("openai-sim")["service_tier"] == "flex"
    assert raw.parse().service_tier == "flex"
    world.check_paid(raw.headers, model="gpt", surface="chat")


def test_prompt_cache_is_read_and_priced(world: SdkWorld, client: OpenAI) -> None:
    asked = user("a long and steady prompt " * 200)
    client.chat.completions.create(model="gpt", messages=asked, max_tokens=3)

    raw = client.chat.completions.with_raw_response.create(
        model="gpt", messages=asked, max_tokens=3
    )

    usage = raw.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) > 1_000
    record = world.check_paid(raw.headers, model="gpt", surface="chat")
    assert record["usage"]["cached_read"] == usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("is_stream", [False, True])
def test_failing_endpoint_is_passed_over_before_the_client_sees_it(
    world: SdkWorld, client: OpenAI, is_stream: bool
) -> None:
    before = world.providers["broken-sim"].stats()["requests_seen"]

    raw = client.chat.completions.with_raw_response.create(
        model="pair",
        messages=user("hi"),
        stream=is_stream,
        extra_body={"provider": {"order": ["broken-sim", "openai-sim"]}},
    )
    answer: Any = raw.parse()

    text = joined(list(answer)) if is_stream else answer.choices[0].message.content
    assert text.startswith("[simulated]")
    assert raw.headers["x-looprouter-endpoint"] == "openai-sim/gpt-sim"
    record = world.record(raw.headers["x-looprouter-request-id"])
    line = world.line(raw.headers["x-upstream-request-id"])
    assert nanos(record["cost"]) == nanos(record["provider_cost"]) == line.cost_nanos
    seen = world.providers["broken-sim"].stats()["requests_seen"] - before
    assert record["num_attempts"] == int(raw.headers["x-looprouter-attempts"]) == 1 + seen


@pytest.mark.anyio
@both_dialects
async def test_async_client_plain_and_streamed(
    world: SdkWorld, async_client: AsyncOpenAI, model: str
) -> None:
    raw = await async_client.chat.completions.with_raw_response.create(
        model=model, messages=user("hi"), temperature=0
    )
    streamed = await async_client.chat.completions.with_raw_response.create(
        model=model, messages=user("hi"), temperature=0, stream=True
    )
    chunks = [chunk async for chunk in streamed.parse()]

    assert joined(chunks) == raw.parse().choices[0].message.content
    for headers in (raw.headers, streamed.headers):
        world.check_paid(headers, model=model, surface="chat")


def test_streaming_response_gives_the_raw_lines(client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="gpt", messages=user("hi"), stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]

    assert response.headers["content-type"].startswith("text/event-stream")
    assert all(line.startswith("data: ") for line in lines)
    assert [line for line in lines if line == "data: [DONE]"] == lines[-1:]
