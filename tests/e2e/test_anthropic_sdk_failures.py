"""The official Anthropic SDK when things fail: its error types, and clients that leave."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import (
    Anthropic,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)

from tests.support.sdk_world import (
    SdkWorld,
    wait_until,
)

pytestmark = pytest.mark.e2e
both_dialects = pytest.mark.parametrize("model", ["claude", "gpt"])
CLOSED_S_MAX = 2.5  # the goal is 250 ms, on a machine ten times less busy
MAX = 500
TOOLS: list[Any] = [{"name": "get_weather", "input_schema": {"type": "object"}}]


@pytest.fixture(scope="module")
def client(world: SdkWorld) -> Iterator[Anthropic]:
    with Anthropic(base_url=world.gateway.base_url, api_key=world.keys["main"]) as client:
        yield client


def user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


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
    limited = client.with_options(api_key=world.keys["one-a-minute-anthropic"], max_retries=0)
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
