"""The official Anthropic SDK, only base URL and key changed, in its own dialect and translated.

`claude` is served in the Anthropic dialect, so bytes pass; `gpt` in OpenAI's, so all is translated.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
from anthropic import (
    Anthropic,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)
from pydantic import BaseModel

from tests.support.sdk_world import (
    IMAGE_PNG,
    SdkWorld,
    sdk_world,
    teach_token_lengths,
    wait_until,
)

pytestmark = pytest.mark.e2e
both_dialects = pytest.mark.parametrize("model", ["claude", "gpt"])
CLOSED_S_MAX = 2.5  # the goal is 250 ms, on a machine ten times less busy
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
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkWorld]:
    with sdk_world(tmp_path_factory.mktemp("anthropic")) as world:
        teach_token_lengths(world)
        yield world


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


# Errors


def ask(client: Anthropic, model: str = "claude", **fields: Any) -> Any:
    return client.messages.create(model=model, max_tokens=MAX, **{"messages": user("hi"), **fields})


def said(error: APIStatusError) -> tuple[int, str]:
    """Status and error type, after the checks that hold for every error."""
    assert isinstance(error.body, dict)
    assert error.body["type"] == "error"
    assert error.request_id == error.response.headers["request-id"] == error.body["request_id"]
    return error.status_code, error.body["error"]["type"]


def test_wrong_key_is_an_authentication_error(world: SdkWorld, client: Anthropic) -> None:
    with world.exactly_one_request("messages"), pytest.raises(AuthenticationError) as refused:
        ask(client.with_options(api_key="lr-not-a-key"))

    assert said(refused.value) == (401, "authentication_error")


def test_unknown_model_is_a_not_found_error(world: SdkWorld, client: Anthropic) -> None:
    with world.exactly_one_request("messages"), pytest.raises(NotFoundError) as refused:
        ask(client, "nobody")

    assert said(refused.value) == (404, "not_found_error")


@both_dialects
@pytest.mark.parametrize("is_stream", [False, True])
def test_refused_request_is_a_bad_request_in_either_dialect(
    world: SdkWorld, client: Anthropic, model: str, is_stream: bool
) -> None:
    choice = {"type": "tool", "name": "no_such_tool"}

    with world.exactly_one_request("messages"), pytest.raises(BadRequestError) as refused:
        ask(client, model, tools=TOOLS, tool_choice=choice, stream=is_stream)

    status, kind = refused.value.status_code, refused.value.body["error"]["type"]  # type: ignore[index]
    assert (status, kind) == (400, "invalid_request_error")
    assert "no_such_tool" in str(refused.value)
    record = world.record(refused.value.response.headers["x-looprouter-request-id"])
    assert (record["num_attempts"], record["cost_nanos"]) == (1, 0)


def test_wrong_type_never_leaves_the_gateway(world: SdkWorld, client: Anthropic) -> None:
    seen = world.providers["anthropic-sim"].stats()["requests_seen"]

    with world.exactly_one_request("messages"), pytest.raises(BadRequestError) as refused:
        ask(client, extra_body={"max_tokens": "many"})

    assert said(refused.value) == (400, "invalid_request_error")
    assert "max_tokens" in str(refused.value)
    assert world.providers["anthropic-sim"].stats()["requests_seen"] == seen


def test_scope_is_a_permission_error(world: SdkWorld, client: Anthropic) -> None:
    with pytest.raises(PermissionDeniedError) as refused:
        ask(client.with_options(api_key=world.keys["scoped"]))

    assert said(refused.value) == (403, "permission_error")


def test_rate_limit_error_and_headers_in_this_dialects_form(
    world: SdkWorld, client: Anthropic
) -> None:
    limited = client.with_options(api_key=world.keys["one-a-minute"], max_retries=0)
    first = limited.messages.with_raw_response.create(
        model="claude", max_tokens=5, messages=user("hi")
    )
    with pytest.raises(RateLimitError) as refused:
        ask(limited)

    assert said(refused.value) == (429, "rate_limit_error")
    assert first.headers["anthropic-ratelimit-requests-limit"] == "1"
    headers = refused.value.response.headers
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"
    reset = datetime.datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"])
    wait_s = (reset - datetime.datetime.now(datetime.UTC)).total_seconds()
    assert 0 < wait_s < 62
    assert 0 < int(headers["retry-after"]) <= 60


def test_spent_budget_is_not_retried(world: SdkWorld, client: Anthropic) -> None:
    with world.exactly_one_request("messages"), pytest.raises(RateLimitError) as refused:
        ask(client.with_options(api_key=world.keys["poor"]))

    assert said(refused.value) == (429, "rate_limit_error")
    assert refused.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("is_stream", [False, True])
def test_spent_fallbacks_make_the_sdk_send_exactly_one_request(
    world: SdkWorld, client: Anthropic, is_stream: bool
) -> None:
    seen = world.providers["broken-sim"].stats()["requests_seen"]

    with world.exactly_one_request("messages"), pytest.raises(InternalServerError) as failed:
        ask(client, "broken", stream=is_stream)

    assert said(failed.value) == (502, "api_error")
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert world.providers["broken-sim"].stats()["requests_seen"] == seen + 1


@pytest.mark.parametrize("model", ["slow-claude", "slow-gpt"])
def test_stream_that_breaks_off_is_an_error_never_an_end(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    texts: list[str] = []
    with client.messages.stream(
        model=model,
        max_tokens=MAX,
        messages=user("hi [[sim tokens=30 fault=cut_mid_stream after=6]]"),
    ) as stream:
        with pytest.raises(APIStatusError) as broken:
            texts.extend(stream.text_stream)
        headers = stream.response.headers

    assert "".join(texts).startswith("[simulated]")
    assert isinstance(broken.value.body, dict)
    assert broken.value.body["type"] == "error"
    line = world.line(headers["x-upstream-request-id"])
    assert (line.ended, line.output) == ("cut", 6)
    record = world.record(headers["x-looprouter-request-id"])
    assert record["error"] == "stream_interrupted"
    assert record["is_estimated"] is True


# Leaving


@pytest.mark.parametrize("model", ["slow-claude", "slow-gpt"])
def test_leaving_a_stream_closes_upstream_and_pays_what_was_generated(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    with client.messages.stream(
        model=model, max_tokens=2_000, messages=user("hello [[sim tokens=600]]")
    ) as stream:
        texts = list(itertools.islice(stream.text_stream, 30))
        headers = stream.response.headers

    line = closed_line(world, model)
    assert line.id == headers["x-upstream-request-id"]
    assert len(texts) <= line.output < 600
    record = world.record(headers["x-looprouter-request-id"])
    assert (record["status"], record["error"]) == (499, "client_gone")
    assert record["is_estimated"] is True
    assert record["usage"]["output"] == pytest.approx(line.output, rel=0.3, abs=3)
    assert record["billed_nanos"] == record["cost_nanos"] > 0


@pytest.mark.parametrize("model", ["slow-claude", "slow-gpt"])
def test_client_timeout_of_a_plain_message_closes_upstream(
    world: SdkWorld, client: Anthropic, model: str
) -> None:
    hasty = client.with_options(timeout=1.5, max_retries=0)
    with pytest.raises(APITimeoutError):
        hasty.messages.create(
            model=model, max_tokens=2_000, messages=user("hello [[sim tokens=600]]")
        )

    line = closed_line(world, model)
    record = world.record_of(line)
    assert (record["status"], record["error"]) == (499, "client_gone")
    assert record["is_estimated"] is True
    assert 0 < record["cost_nanos"] <= line.cost_nanos


def closed_line(world: SdkWorld, model: str) -> Any:
    """The invoice line of an answer whose client left, once the provider has seen it."""
    provider = world.providers[world.provider_of(model)]
    wait_until(lambda: provider.stats()["in_flight"] == 0, "upstream to close", wait_s=CLOSED_S_MAX)
    line = provider.invoice()[-1]
    assert line.ended == "client_gone"
    return line
