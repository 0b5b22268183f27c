"""Error bodies: the shapes the official SDKs parse, and every shape seen upstream."""

from __future__ import annotations

from typing import Any

import anthropic
import msgspec
import pytest
from anthropic.types import ErrorResponse
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent

from gateway.wire.errors import (
    MESSAGE_CHARS_MAX,
    error_body,
    is_error_of,
    read_error,
    sse_error,
    status_of,
)
from gateway.wire.pieces import Dialect, Surface, WireError
from tests.support.wire_streams import payloads


def body(dialect: Dialect, **fields: Any) -> Any:
    said = {"status": 400, "type": "invalid_request_error", "message": "m", **fields}
    return msgspec.json.decode(error_body(dialect, request_id="req_1", **said))


def test_openai_error_has_all_four_members() -> None:
    assert body(Dialect.OPENAI, param="model", code="model_not_found") == {
        "error": {
            "message": "m",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }
    assert body(Dialect.OPENAI)["error"]["code"] is None


def test_anthropic_error_carries_the_request_id() -> None:
    assert body(Dialect.ANTHROPIC) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "m"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    ("status", "kind", "openai", "claude"),
    [
        (400, "invalid_request_error", "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error", "authentication_error"),
        (403, "permission_error", "permission_error", "permission_error"),
        (404, "not_found_error", "not_found_error", "not_found_error"),
        (413, "invalid_request_error", "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error", "rate_limit_error"),
        (429, "insufficient_quota", "insufficient_quota", "rate_limit_error"),
        (500, "server_error", "server_error", "api_error"),
        (502, "server_error", "server_error", "api_error"),
        (503, "overloaded_error", "server_error", "overloaded_error"),
        (504, "server_error", "server_error", "timeout_error"),
        (529, "overloaded_error", "server_error", "overloaded_error"),
        (418, "", "invalid_request_error", "invalid_request_error"),
        (599, "", "server_error", "api_error"),
    ],
)
def test_types_are_those_of_each_dialect(status: int, kind: str, openai: str, claude: str) -> None:
    assert body(Dialect.OPENAI, status=status, type=kind)["error"]["type"] == openai
    assert body(Dialect.ANTHROPIC, status=status, type=kind)["error"]["type"] == claude


def test_anthropic_sdk_reads_a_spent_budget_as_not_to_be_retried() -> None:
    said = body(Dialect.ANTHROPIC, status=429, type="insufficient_quota", code="insufficient_quota")

    assert said["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
    ErrorResponse.model_validate(said)
    assert anthropic._exceptions.extract_error_code(said) == "enforced_spend_limit_reached"


def test_detail_stands_in_the_error_object() -> None:
    detail = {"excluded": {"groq/x": "the breaker is open"}}

    assert body(Dialect.OPENAI, detail=detail)["error"]["detail"] == detail
    assert body(Dialect.ANTHROPIC, detail=detail)["error"]["detail"] == detail


@pytest.mark.parametrize(
    ("said", "message", "kind", "code"),
    [
        (
            {"error": {"message": "m", "type": "insufficient_quota", "code": "insufficient_quota"}},
            "m", "insufficient_quota", "insufficient_quota",
        ),
        ({"error": {"message": "m", "code": None}}, "m", "", ""),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
         "m", "overloaded_error", ""),
        (
            {
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "message": "m",
                    "details": {"error_code": "enforced_spend_limit_reached"},
                },
            },
            "m", "rate_limit_error", "enforced_spend_limit_reached",
        ),
        ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": []}},
         "m", "RESOURCE_EXHAUSTED", "429"),
        ([{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}],
         "m", "INVALID_ARGUMENT", "400"),
        ({"error": {"code": 402, "message": "m", "metadata": {"raw": "upstream words"}}},
         "m: upstream words", "", "402"),
        ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
         "m", "BadRequestError", "400"),
        ({"detail": "m"}, "m", "", ""),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]},
         '[{"loc":["body"],"msg":"field required"}]', "", ""),
        ({"code": 20012, "message": "m", "data": None}, "m", "", "20012"),
        ({"errors": [{"code": 10000, "message": "m"}]}, "m", "", "10000"),
        ({"error": "m", "code": "x"}, "m", "", "x"),
        ({"error": {}}, "the upstream gave no reason", "", ""),
        ({"error": {"type": "api_error"}}, "api_error", "api_error", ""),
    ],
)  # fmt: skip
def test_every_dialects_error_is_read(said: Any, message: str, kind: str, code: str) -> None:
    assert read_error(msgspec.json.encode(said), 429) == WireError(
        message=message, type=kind, code=code, status=429
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WireError(message="m", status=418), 418),
        (WireError(message="m", code="502"), 502),
        (WireError(message="m", code="20012"), 500),
        (WireError(message="m", code="rate_limit_exceeded", type="server_error"), 429),
        (WireError(message="m", type="overloaded_error"), 529),
        (WireError(message="m", type="invalid_request_error", code="x"), 400),
        (WireError(message="m"), 500),
    ],
)
def test_an_error_in_band_has_the_status_it_would_have_had(error: WireError, status: int) -> None:
    assert status_of(error) == status


def test_a_web_page_becomes_a_short_message() -> None:
    page = b"\n<!DOCTYPE html><html><head><TITLE class=x>502 Bad\n Gateway &amp; more</title>" + (
        b"<script>secret</script>" * 1000
    )
    error = read_error(page, 502)

    assert error.message == (
        "the upstream sent a web page instead of an answer: 502 Bad Gateway & more"
    )
    assert error.code == "html_body"


@pytest.mark.parametrize("page", [b"<html>" + b"<title>" * 60_000, b"<html>" + b"<" * 200_000])
def test_a_hostile_web_page_is_read_in_linear_time(page: bytes) -> None:
    assert len(read_error(page, 502).message) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"upstream connect error", "upstream connect error"),
        (b"", "the upstream answered 503 with no body"),
        (b" \r\n", "the upstream answered 503 with no body"),
        (b'"just text"', '"just text"'),
        (b"{broken", "{broken"),
        (b"\xff\xfe", "��"),
        (b"[" * 100_000, "[" * (MESSAGE_CHARS_MAX - 1) + "…"),
        (b'{"unknown":1}', '{"unknown":1}'),
    ],
)
def test_bodies_that_are_no_error_object_are_quoted(text: bytes, message: str) -> None:
    assert read_error(text, 503) == WireError(message=message, status=503)


def test_long_messages_are_cut() -> None:
    error = read_error(msgspec.json.encode({"error": {"message": "x" * 10_000}}), 400)

    assert len(error.message) == MESSAGE_CHARS_MAX


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.COMPLETIONS])
def test_openai_stream_error_is_what_the_sdk_raises_on(surface: Surface) -> None:
    error = WireError(message="m", type="overloaded_error", code="upstream_error")

    assert payloads(sse_error(surface, error, "req_1")) == [
        {"error": {"message": "m", "type": "server_error", "param": None, "code": "upstream_error"}}
    ]


def test_anthropic_stream_error_is_a_named_event() -> None:
    frame = sse_error(Surface.MESSAGES, WireError(message="m", type="server_error"), "req_1")

    assert frame.startswith(b"event: error\n")
    ErrorResponse.model_validate(payloads(frame)[0])
    assert payloads(frame)[0]["error"]["type"] == "api_error"


def test_responses_stream_error_parses_as_both_events_of_the_sdk() -> None:
    frame = sse_error(Surface.RESPONSES, WireError(message="m"), "req_1", sequence_number=7)

    error, failed = payloads(frame)
    parsed = ResponseErrorEvent.model_validate(error)
    assert (parsed.message, parsed.sequence_number) == ("m", 7)
    response = ResponseFailedEvent.model_validate(failed).response
    assert response.status == "failed"
    assert error["error"]["message"] == "m"  # the member that makes the SDK raise


@pytest.mark.parametrize("dialect", list(Dialect))
def test_own_error_bodies_are_of_their_dialect(dialect: Dialect) -> None:
    body = error_body(dialect, status=400, type="invalid_request_error", message="no")

    assert is_error_of(dialect, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no",
        b"{}",
        b'{"detail": "no"}',
        b'{"error": "no"}',
        b'{"error": {"code": 7}}',
        b'{"type": "error", "code": "x", "message": "no"}',
        b"\xff{",
        b"[" * 100_000,
    ],
)
def test_body_without_message_in_its_place_is_of_no_dialect(body: bytes) -> None:
    assert not any(is_error_of(dialect, body) for dialect in Dialect)


def test_openai_error_is_no_anthropic_error() -> None:
    assert not is_error_of(Dialect.ANTHROPIC, b'{"error": {"message": "no", "type": "x"}}')
