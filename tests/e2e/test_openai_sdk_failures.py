"""The official OpenAI SDK when things fail: its error types, its retries, `Idempotency-Key`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from openai import (
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    PermissionDeniedError,
    RateLimitError,
    UnprocessableEntityError,
)
from openai.types.chat import ChatCompletionChunk

from tests.support.sdk_world import SdkWorld, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def client(world: SdkWorld) -> Iterator[OpenAI]:
    with OpenAI(base_url=world.gateway.v1, api_key=world.keys["main"]) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(client: OpenAI, model: str = "gpt", **fields: Any) -> Any:
    fields.setdefault("messages", user("hi"))
    return client.chat.completions.create(model=model, **fields)


# Error types


@pytest.mark.parametrize("key", ["not-a-key", "lr-" + "A" * 56])
def test_wrong_key_is_an_authentication_error_and_not_retried(
    world: SdkWorld, client: OpenAI, key: str
) -> None:
    with world.exactly_one_request("chat"), pytest.raises(AuthenticationError) as refused:
        ask(client.with_options(api_key=key))

    assert refused.value.status_code == 401
    assert refused.value.code == "invalid_api_key"
    assert refused.value.request_id == refused.value.response.headers["x-request-id"]
    assert key not in str(refused.value)


def test_unknown_model_is_a_not_found_error_that_names_the_known_ones(
    world: SdkWorld, client: OpenAI
) -> None:
    with world.exactly_one_request("chat"), pytest.raises(NotFoundError) as refused:
        ask(client, "nobody")

    assert refused.value.code == "model_not_found"
    assert refused.value.param == "model"
    assert "slow-claude" in str(refused.value)
    record = world.record(str(refused.value.request_id))
    assert (record["status"], record["error"]) == (404, "model_not_found")
    assert (record["num_attempts"], record["cost_nanos"]) == (0, 0)


def test_api_that_does_not_exist_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match="/v1/moderations"):
        client.moderations.create(input="hi")


def test_wrong_type_is_a_bad_request_that_names_the_field(world: SdkWorld, client: OpenAI) -> None:
    seen = world.providers["openai-sim"].stats()["requests_seen"]

    with world.exactly_one_request("chat"), pytest.raises(BadRequestError) as refused:
        ask(client, extra_body={"max_tokens": "many"})

    assert refused.value.param == "max_tokens"
    assert refused.value.type == "invalid_request_error"
    assert world.providers["openai-sim"].stats()["requests_seen"] == seen


@pytest.mark.parametrize("is_stream", [False, True])
def test_upstreams_own_refusal_reaches_the_caller_in_its_words(
    world: SdkWorld, client: OpenAI, is_stream: bool
) -> None:
    with world.exactly_one_request("chat"), pytest.raises(BadRequestError) as refused:
        ask(client, logprobs=True, top_logprobs=99, stream=is_stream)

    assert "'top_logprobs' must be 0 to 20" in str(refused.value)
    assert refused.value.param == "top_logprobs"
    record = world.record(str(refused.value.request_id))
    assert (record["status"], record["num_attempts"], record["cost_nanos"]) == (400, 1, 0)


def test_translated_refusal_is_a_bad_request_too(world: SdkWorld, client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "a+"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}

    with world.exactly_one_request("chat"), pytest.raises(BadRequestError, match="Invalid schema"):
        ask(client, "claude", response_format=form)


def test_scopes_are_permission_errors(world: SdkWorld, client: OpenAI) -> None:
    scoped = client.with_options(api_key=world.keys["scoped"])

    with world.exactly_one_request("chat"), pytest.raises(PermissionDeniedError) as refused:
        ask(scoped, "claude")
    assert refused.value.code == "permission_denied"
    with pytest.raises(PermissionDeniedError, match="responses"):
        scoped.responses.create(model="gpt", input="hi")
    assert ask(scoped).choices[0].message.content.startswith("[simulated]")


def test_rate_limit_error_carries_the_headers_the_sdk_reads(
    world: SdkWorld, client: OpenAI
) -> None:
    limited = client.with_options(api_key=world.keys["one-a-minute-openai"], max_retries=0)
    messages = user("hi")
    first = limited.chat.completions.with_raw_response.create(model="gpt", messages=messages)
    with pytest.raises(RateLimitError) as refused:
        limited.chat.completions.create(model="gpt", messages=messages)

    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.value.code == "rate_limit_exceeded"
    headers = refused.value.response.headers
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < int(headers["retry-after-ms"]) <= 60_000
    assert 0 < int(headers["retry-after"]) <= 60
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert "x-should-retry" not in headers


def test_good_answers_tell_what_is_left_of_the_limits(world: SdkWorld, client: OpenAI) -> None:
    limited = client.with_options(api_key=world.keys["limited"])

    raw = limited.chat.completions.with_raw_response.create(model="gpt", messages=user("hi"))

    assert raw.headers["x-ratelimit-limit-requests"] == "60"
    assert raw.headers["x-ratelimit-limit-tokens"] == "100000"
    assert 0 < int(raw.headers["x-ratelimit-remaining-requests"]) < 60
    assert 0 < int(raw.headers["x-ratelimit-remaining-tokens"]) < 100_000


def test_sdk_waits_as_told_and_succeeds(world: SdkWorld, client: OpenAI) -> None:
    busy = client.with_options(api_key=world.keys["one-at-a-time"])
    held = ask(busy, "slow-gpt", messages=user("hi [[sim tokens=40]]"), stream=True)
    next(held)
    with pytest.raises(RateLimitError) as refused:
        ask(busy.with_options(max_retries=0))
    assert int(refused.value.response.headers["retry-after-ms"]) > 0

    finishing = threading.Thread(target=lambda: list(held))
    finishing.start()
    patient = busy.with_options(max_retries=9)
    raw = patient.chat.completions.with_raw_response.create(model="gpt", messages=user("hi"))
    finishing.join()

    assert raw.retries_taken > 0
    assert (raw.parse().choices[0].message.content or "").startswith("[simulated]")


def test_spent_budget_is_a_quota_error_and_not_retried(world: SdkWorld, client: OpenAI) -> None:
    poor = client.with_options(api_key=world.keys["poor"])
    seen = world.providers["openai-sim"].stats()["requests_seen"]

    with world.exactly_one_request("chat"), pytest.raises(RateLimitError) as refused:
        ask(poor)

    assert refused.value.code == "insufficient_quota"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert world.providers["openai-sim"].stats()["requests_seen"] == seen


@pytest.mark.parametrize("is_stream", [False, True])
def test_spent_fallbacks_make_the_sdk_send_exactly_one_request(
    world: SdkWorld, client: OpenAI, is_stream: bool
) -> None:
    seen = world.providers["broken-sim"].stats()["requests_seen"]

    with world.exactly_one_request("chat"), pytest.raises(InternalServerError) as failed:
        ask(client, "broken", stream=is_stream)

    assert failed.value.status_code == 502
    assert failed.value.code == "upstream_error"
    assert failed.value.response.headers["x-should-retry"] == "false"
    assert world.providers["broken-sim"].stats()["requests_seen"] == seen + 1
    record = world.record(str(failed.value.request_id))
    assert (record["status"], record["cost_nanos"]) == (502, 0)


@pytest.mark.anyio
async def test_async_client_gets_the_same_error_types(world: SdkWorld) -> None:
    async with AsyncOpenAI(base_url=world.gateway.v1, api_key="not-a-key") as stranger:
        with pytest.raises(AuthenticationError):
            await stranger.chat.completions.create(model="gpt", messages=user("hi"))
    async with AsyncOpenAI(base_url=world.gateway.v1, api_key=world.keys["main"]) as client:
        with pytest.raises(NotFoundError):
            await client.responses.create(model="nobody", input="hi")
        with world.exactly_one_request("chat"), pytest.raises(InternalServerError):
            await client.chat.completions.create(model="broken", messages=user("hi"), stream=True)


@pytest.mark.parametrize("model", ["slow-gpt", "slow-claude"])
def test_stream_that_breaks_off_is_an_error_never_an_end(
    world: SdkWorld, client: OpenAI, model: str
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=user("hi [[sim tokens=30 fault=cut_mid_stream after=6]]"), stream=True
    )
    chunks: list[ChatCompletionChunk] = []

    with pytest.raises(APIError) as broken:
        chunks.extend(raw.parse())

    assert "".join(each.choices[0].delta.content or "" for each in chunks).startswith("[simulated]")
    assert all(each.choices[0].finish_reason is None for each in chunks)
    assert broken.value.code == "stream_interrupted"
    line = world.line(raw.headers["x-upstream-request-id"])
    assert (line.ended, line.output) == ("cut", 6)
    record = world.record(raw.headers["x-looprouter-request-id"])
    assert record["error"] == "stream_interrupted"
    assert record["is_estimated"] is True
    assert record["cost_nanos"] > 0


# Idempotency-Key


def once(key: str = "") -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def test_same_idempotency_key_is_answered_once_and_paid_once(
    world: SdkWorld, client: OpenAI
) -> None:
    headers = once()
    first = client.chat.completions.with_raw_response.create(
        model="gpt", messages=user("hi"), extra_headers=headers
    )
    seen = world.providers["openai-sim"].stats()["requests_seen"]

    second = client.chat.completions.with_raw_response.create(
        model="gpt", messages=user("hi"), extra_headers=headers
    )

    assert second.content == first.content
    assert second.headers["x-looprouter-idempotent-replay"] == "true"
    assert second.headers["x-looprouter-cost"] == first.headers["x-looprouter-cost"]
    assert "x-looprouter-idempotent-replay" not in first.headers
    assert world.providers["openai-sim"].stats()["requests_seen"] == seen
    world.check_paid(first.headers, model="gpt", surface="chat")


def test_idempotency_key_with_another_body_is_unprocessable(
    world: SdkWorld, client: OpenAI
) -> None:
    headers = once()
    ask(client, extra_headers=headers)

    with world.exactly_one_request("chat"), pytest.raises(UnprocessableEntityError) as refused:
        ask(client, messages=user("other"), extra_headers=headers)

    assert refused.value.code == "idempotency_mismatch"


def test_idempotency_key_of_a_running_request_conflicts_until_it_is_done(
    world: SdkWorld, client: OpenAI
) -> None:
    headers, answers = once(), []
    asked: dict[str, Any] = {"messages": user("hi [[sim tokens=20]]"), "extra_headers": headers}
    slow = world.providers["slow-openai"]
    running = threading.Thread(target=lambda: answers.append(ask(client, "slow-gpt", **asked)))
    running.start()
    wait_until(lambda: slow.stats()["in_flight"] > 0, "the first request to run")
    with pytest.raises(ConflictError) as refused:
        ask(client.with_options(max_retries=0), "slow-gpt", **asked)

    patient = ask(client.with_options(max_retries=9), "slow-gpt", **asked)
    running.join()

    assert refused.value.code == "idempotency_conflict"
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert patient == answers[0]


def test_stream_of_an_idempotency_key_is_not_done_twice(world: SdkWorld, client: OpenAI) -> None:
    headers = once()
    list(ask(client, stream=True, extra_headers=headers))
    seen = world.providers["openai-sim"].stats()["requests_seen"]

    def again() -> ConflictError:
        with pytest.raises(ConflictError) as refused:
            ask(client, stream=True, extra_headers=headers)
        return refused.value

    # The first one is stored just after its last byte; until then it counts as running.
    wait_until(lambda: again().code == "idempotent_request_done", "the stream to be stored")
    with world.exactly_one_request("chat"):
        refused = again()
    assert refused.response.headers["x-should-retry"] == "false"
    assert isinstance(refused.body, dict)
    assert refused.body["usage"]["output"] > 0
    assert world.providers["openai-sim"].stats()["requests_seen"] == seen


def test_failure_of_an_idempotency_key_is_repeated_as_it_was(
    world: SdkWorld, client: OpenAI
) -> None:
    headers = once()
    with pytest.raises(InternalServerError) as first:
        ask(client, "broken", extra_headers=headers)
    seen = world.providers["broken-sim"].stats()["requests_seen"]

    with world.exactly_one_request("chat"), pytest.raises(InternalServerError) as second:
        ask(client, "broken", extra_headers=headers)

    told, repeated = first.value.body, second.value.body
    assert isinstance(told, dict)
    assert isinstance(repeated, dict)
    # But for the provider's own words: they may echo the prompt, and are not kept.
    assert told["message"].startswith(repeated["message"])
    assert {**told, "message": ""} == {**repeated, "message": ""}
    assert second.value.response.headers["x-looprouter-idempotent-replay"] == "true"
    assert second.value.response.headers["x-should-retry"] == "false"
    assert world.providers["broken-sim"].stats()["requests_seen"] == seen


def test_refused_request_leaves_its_idempotency_key_free(world: SdkWorld, client: OpenAI) -> None:
    headers = once()
    poor = client.with_options(api_key=world.keys["poor"])
    with pytest.raises(RateLimitError):
        ask(poor, extra_headers=headers)

    answer = ask(client, extra_headers=headers)

    assert answer.choices[0].message.content.startswith("[simulated]")
