"""The official Anthropic SDK, only base URL and key changed, in its own dialect and translated.

`claude` is served in the Anthropic dialect, so bytes pass; `gpt` in OpenAI's, so all is translated.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from anthropic import (
    Anthropic,
    AsyncAnthropic,
    BadRequestError,
    NotFoundError,
)

from tests.support.sdk_world import (
    IMAGE_PNG,
    SdkWorld,
)

pytestmark = pytest.mark.e2e
both_dialects = pytest.mark.parametrize("model", ["claude", "gpt"])
MAX = 500


@pytest.fixture(scope="module")
def client(world: SdkWorld) -> Iterator[Anthropic]:
    with Anthropic(base_url=world.gateway.base_url, api_key=world.keys["main"]) as client:
        yield client


@pytest.fixture
async def async_client(world: SdkWorld) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(
        base_url=world.gateway.base_url, api_key=world.keys["main"]
    ) as client:
        yield client


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@both_dialects
def test_plain_message_is_whole_paid_and_labelled(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    raw = client.messages.with_raw_response.create(
        model=model,
        max_tokens=MAX,
        system="Be brief.",
        messages=[*user("hello"), {"role": "assistant", "content": "Hello!"}, *user("and now?")],
    )

    message = raw.parse()
    assert (message.type, message.role) == ("message", "assistant")
    assert message.model == world.upstream_model(model)
    assert message.stop_reason == "end_turn"
    assert text_of(message).startswith("[simulated]")
    assert message._request_id == raw.headers["request-id"]
    assert raw.headers["request-id"] == raw.headers["x-looprouter-request-id"]
    record = world.check_paid(raw.headers, model=model, surface="messages")
    assert record["usage"]["input"] == message.usage.input_tokens
    assert record["usage"]["output"] == message.usage.output_tokens
    received = json.dumps(world.last_received(world.provider_of(model)))
    assert "Be brief." in received


def test_same_dialect_request_reaches_the_provider_byte_for_byte(
    world: SdkWorld, client: Anthropic
) -> None:
    raw = client.messages.with_raw_response.create(
        model="claude",
        max_tokens=MAX,
        messages=user("Füße 🚀 \u2028"),
        extra_body={"temperature": 0.30000000000000004, "vendor_knob": {"a": [1, 2.50]}},
    )

    received = world.providers["anthropic-sim"].received[-1]
    sent = raw.http_request.content
    assert b"vendor_knob" in sent
    assert received.body == sent.replace(b'"model":"claude"', b'"model":"claude-sim"')
    assert received.headers["x-api-key"] == "sk-upstream-anthropic"
    sent_headers = raw.http_request.headers
    assert received.headers["anthropic-version"] == sent_headers["anthropic-version"]
    assert world.keys["main"] not in str(received.headers)
    assert "x-looprouter-warning" not in raw.headers


def test_fields_that_translation_cannot_carry_are_listed(
    world: SdkWorld, client: Anthropic
) -> None:
    asked: Any = {"model": "gpt", "max_tokens": MAX, "messages": user("hi")}

    raw = client.messages.with_raw_response.create(**asked, extra_body={"vendor_knob": 1})

    assert "vendor_knob" in raw.headers["x-looprouter-warning"]
    assert "vendor_knob" not in world.last_received("openai-sim")
    with pytest.raises(BadRequestError, match="vendor_knob"):
        client.messages.create(
            **asked, extra_body={"vendor_knob": 1, "provider": {"require_parameters": True}}
        )


@both_dialects
def test_text_stream_helper_equals_the_plain_message(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": MAX,
        "messages": user("the same twice"),
        "extra_body": {"temperature": 0},
    }
    plain = client.messages.create(**asked)

    with client.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()

    assert len(texts) > 1
    assert "".join(texts) == text_of(plain) == text_of(final)
    assert final.usage.output_tokens == plain.usage.output_tokens
    assert final.usage.input_tokens == plain.usage.input_tokens
    assert stream.request_id == stream.response.headers["request-id"]
    world.check_paid(stream.response.headers, model=model, surface="messages")


@both_dialects
def test_raw_stream_events_come_in_their_order(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    raw = client.messages.with_raw_response.create(
        model=model, max_tokens=MAX, messages=user("hi"), stream=True
    )
    kinds = [event.type for event in raw.parse()]

    assert [kind for kind, _ in itertools.groupby(kinds)] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert raw.headers["content-type"].startswith("text/event-stream")
    record = world.check_paid(raw.headers, model=model, surface="messages")
    assert record["stream"] is True
    assert record["ttft_visible_ms"] > 0


@both_dialects
def test_thinking_is_shown_counted_paid_and_taken_back(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": 2_000,
        "thinking": {"type": "enabled", "budget_tokens": 1_024},
    }

    raw = client.messages.with_raw_response.create(messages=user("think"), **asked)
    with client.messages.stream(messages=user("think"), **asked) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_message()

    assert {"thinking", "text"} <= kinds
    for message in (raw.parse(), streamed):
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].type == "thinking"
        assert message.content[0].thinking.startswith("[simulated]")
    for headers in (raw.headers, stream.response.headers):
        record = world.check_paid(headers, model=model, surface="messages")
        assert record["usage"]["reasoning"] == 24
    turns: list[Any] = [
        *user("think"),
        {"role": "assistant", "content": raw.parse().content},
        *user("on"),
    ]
    assert client.messages.create(messages=turns, **asked).stop_reason == "end_turn"


@both_dialects
def test_images_reach_the_provider(world: SdkWorld, client: Anthropic, model: str) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": IMAGE_PNG},
    }

    raw = client.messages.with_raw_response.create(
        model=model,
        max_tokens=MAX,
        messages=user([image, {"type": "text", "text": "what is this?"}]),
    )

    assert raw.parse().usage.input_tokens > 258
    assert IMAGE_PNG in json.dumps(world.last_received(world.provider_of(model)))
    record = world.check_paid(raw.headers, model=model, surface="messages")
    assert record["facts"]["num_images"] == 1


@both_dialects
def test_stop_sequences_cut_the_text(client: Anthropic, model: str) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": MAX,
        "messages": user("stop somewhere"),
        "extra_body": {"temperature": 0},
    }
    whole = text_of(client.messages.create(**asked))
    word = whole.split()[9]

    message = client.messages.create(**asked, stop_sequences=["never said", word])

    assert text_of(message) == whole[: whole.index(word)]
    if model == "claude":  # the other dialect does not tell which one it was, nor that it was one
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)


@both_dialects
def test_max_tokens_ends_by_length(client: Anthropic, model: str) -> None:
    message = client.messages.create(
        model=model, max_tokens=5, messages=user("hi [[sim tokens=50]]")
    )

    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 5


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_prompt_cache_writes_and_reads_are_priced(
    world: SdkWorld, client: Anthropic, ttl: str
) -> None:
    system: list[Any] = [
        {
            "type": "text",
            "text": f"a long and steady system prompt, {ttl} " * 200,
            "cache_control": {"type": "ephemeral", "ttl": ttl},
        }
    ]
    asked: Any = {"model": "claude", "max_tokens": 5, "system": system, "messages": user("hi")}

    first = client.messages.with_raw_response.create(**asked)
    second = client.messages.with_raw_response.create(**asked)

    written, read = first.parse().usage, second.parse().usage
    assert (written.cache_creation_input_tokens or 0) > 1_000
    assert written.cache_creation is not None
    assert getattr(written.cache_creation, f"ephemeral_{ttl}_input_tokens") > 1_000
    assert (read.cache_read_input_tokens or 0) > 1_000
    record = world.check_paid(first.headers, model="claude", surface="messages")
    assert record["usage"][f"cache_write_{ttl}"] == written.cache_creation_input_tokens
    record = world.check_paid(second.headers, model="claude", surface="messages")
    assert record["usage"]["cached_read"] == read.cache_read_input_tokens


def test_cached_prompt_of_the_other_dialect_is_not_counted_twice(
    world: SdkWorld, client: Anthropic
) -> None:
    asked: Any = {"model": "gpt", "max_tokens": 5, "messages": user("steady prompt " * 300)}
    client.messages.create(**asked)

    raw = client.messages.with_raw_response.create(**asked)

    usage = raw.parse().usage
    assert (usage.cache_read_input_tokens or 0) > 500
    assert usage.input_tokens < 500
    world.check_paid(raw.headers, model="gpt", surface="messages")


def test_tokens_are_counted_where_they_can_be_and_estimated_elsewhere(
    world: SdkWorld, client: Anthropic
) -> None:
    asked: Any = {"messages": user("how many tokens are in this? " * 20)}

    counted = client.messages.with_raw_response.count_tokens(model="claude", **asked)
    estimated = client.messages.with_raw_response.count_tokens(model="gpt", **asked)
    paid = client.messages.create(model="claude", max_tokens=5, **asked)

    assert counted.parse().input_tokens == paid.usage.input_tokens
    assert "x-looprouter-warning" not in counted.headers
    assert "estimate" in estimated.headers["x-looprouter-warning"]
    assert estimated.parse().input_tokens == pytest.approx(paid.usage.input_tokens, rel=0.5)
    assert world.record(counted.headers["x-looprouter-request-id"])["cost_nanos"] == 0


def test_betas_that_are_known_pass_and_others_are_listed(
    world: SdkWorld, client: Anthropic
) -> None:
    raw = client.beta.messages.with_raw_response.create(
        model="claude",
        max_tokens=5,
        messages=user("hi"),
        betas=["interleaved-thinking-2025-05-14", "made-up-thing-2025-01-01"],
    )

    received = world.providers["anthropic-sim"].received[-1].headers
    assert received["anthropic-beta"] == "interleaved-thinking-2025-05-14"
    assert "made-up-thing" in raw.headers["x-looprouter-warning"]
    world.check_paid(raw.headers, model="claude", surface="messages")


def test_models_list_and_retrieve(world: SdkWorld, client: Anthropic) -> None:
    listed = {model.id: model for model in client.models.list()}

    assert set(listed) == {"gpt", "claude", "slow-gpt", "slow-claude", "broken", "pair"}
    model = client.models.retrieve("claude")
    assert (model.type, model.display_name) == ("model", "claude")
    (endpoint,) = (model.model_extra or {})["looprouter"]["endpoints"]
    assert endpoint["prices"][0]["cache_write_1h"] == "0.622"
    with pytest.raises(NotFoundError):
        client.models.retrieve("nobody")


@pytest.mark.anyio
@both_dialects
async def test_async_client_plain_streamed_and_helper(
    world: SdkWorld, async_client: AsyncAnthropic, model: str
) -> None:
    asked: Any = {
        "model": model,
        "max_tokens": MAX,
        "messages": user("hi"),
        "extra_body": {"temperature": 0},
    }

    raw = await async_client.messages.with_raw_response.create(**asked)
    events = [event async for event in await async_client.messages.create(**asked, stream=True)]
    async with async_client.messages.stream(**asked) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()

    assert "".join(texts) == text_of(await raw.parse()) == text_of(final)
    assert events[-1].type == "message_stop"
    for headers in (raw.headers, stream.response.headers):
        world.check_paid(headers, model=model, surface="messages")
