"""What every adapter must do: its own key and headers only, paths, and the meaning of errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.core import Endpoint, Lane, Network
from gateway.errors import FailureClass
from gateway.providers.adapter import Adapter, Call
from gateway.providers.registry import ADAPTERS
from gateway.providers.transport import check_request
from gateway.wire.pieces import Dialect, Surface, WireError
from gateway.wire.requests import parse_request
from gateway.wire.translate import CannotTranslate

KEY = "sk-of-the-provider"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 9}
BODIES: dict[Surface, dict[str, Any]] = {
    Surface.CHAT: CHAT,
    Surface.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Surface.RESPONSES: {"model": "m", "input": "hi"},
    Surface.EMBEDDINGS: {"model": "m", "input": "hi"},
    Surface.MESSAGES: MESSAGES,
    Surface.COUNT_TOKENS: CHAT,
}


def endpoint(api: Dialect, **more: Any) -> Endpoint:
    values: dict[str, Any] = {
        "id": "p/up", "provider": "p", "api": api, "base_url": "https://api.example/v1",
        "model": "up", **more,
    }  # fmt: skip
    return Endpoint(**values)


def built(to: Endpoint, surface: Surface = Surface.CHAT, **more: Any) -> tuple[Any, dict[str, Any]]:
    """(what was built, its body)."""
    body = more.pop("body", BODIES[surface])
    parsed = parse_request(surface, json.dumps(body).encode())
    made = ADAPTERS[to.api].build(Call(endpoint=to, parsed=parsed, secret=KEY, **more))
    check_request(made.request)
    return made, json.loads(made.request.body)


def headers_of(made: Any) -> dict[str, str]:
    found = {name.decode(): value.decode() for name, value in made.request.headers}
    assert len(found) == len(made.request.headers), "no header comes twice"
    return found


@pytest.fixture(params=sorted(ADAPTERS))
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_clients_headers_do_not_pass(api: Dialect) -> None:
    sent = {
        "authorization": "Bearer lr-client",
        "x-api-key": "lr-client",
        "api-key": "lr-client",
        "cookie": "a=b",
        "host": "evil.example",
        "x-forwarded-for": "1.2.3.4",
        "connection": "x-secret",
        "x-secret": "1",
        "openai-organization": "org-of-client",
        "traceparent": "00-1",
        "user-agent": "client/1",
    }
    made, _ = built(endpoint(api), client_headers=sent)
    headers = headers_of(made)

    assert "lr-client" not in str(headers)
    assert not set(headers) & {"cookie", "host", "x-forwarded-for", "connection", "x-secret"}
    assert headers["user-agent"] == "looprouter"


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_fixed_headers_of_the_policy_pass_but_cannot_replace_ours(api: Dialect) -> None:
    fixed = (("X-Title", "team"), ("Authorization", "Bearer other"), ("X-API-Key", "other"),
             ("Host", "other"), ("Content-Length", "1"))  # fmt: skip
    made, _ = built(endpoint(api, headers=fixed))
    headers = headers_of(made)

    assert headers["x-title"] == "team"
    assert "other" not in str(headers)


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_own_machines_alone_are_told_lane_and_tenant_and_never_its_name(api: Dialect) -> None:
    call = {"lane": Lane.BATCH, "tenant_id": "ten_1234"}
    fixed = (("X-LoopRouter-Tenant", "shared"),)
    own = headers_of(built(endpoint(api, machine="own", headers=fixed), **call)[0])
    other = headers_of(built(endpoint(api, machine="own"), **{**call, "tenant_id": "ten_2"})[0])
    paid = headers_of(built(endpoint(api), **call)[0])

    assert own["x-looprouter-priority"] == "batch"
    assert len({own["x-looprouter-tenant"], other["x-looprouter-tenant"], "shared"}) == 3
    assert "ten_" not in str(own)
    assert not any("looprouter-" in name for name in paid)


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_model_and_network_are_the_endpoints(api: Dialect) -> None:
    made, body = built(endpoint(api, network=Network.PRIVATE), verify_tls=False)

    assert body["model"] == "up"
    assert made.request.network is Network.PRIVATE
    assert not made.request.verify_tls


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_no_request_field_chooses_the_destination(api: Dialect) -> None:
    body = {**CHAT, "api_base": "https://evil.example", "base_url": "https://evil.example"}
    made, _ = built(endpoint(api), body=body)

    assert made.request.url.startswith("https://api.example/v1/")


@pytest.mark.parametrize("api", sorted(ADAPTERS))
def test_without_a_key_no_credential_is_sent(api: Dialect) -> None:
    parsed = parse_request(Surface.CHAT, json.dumps(CHAT).encode())
    made = ADAPTERS[api].build(Call(endpoint=endpoint(api), parsed=parsed))

    assert not set(headers_of(made)) & {"authorization", "x-api-key", "api-key"}


@pytest.mark.parametrize(
    ("surface", "path"),
    [
        (Surface.CHAT, "/chat/completions"),
        (Surface.COMPLETIONS, "/completions"),
        (Surface.RESPONSES, "/responses"),
        (Surface.EMBEDDINGS, "/embeddings"),
    ],
)
def test_openai_paths(surface: Surface, path: str) -> None:
    made, _ = built(endpoint(Dialect.OPENAI), surface)

    assert made.request.url == f"https://api.example/v1{path}"
    assert made.surface is surface
    assert headers_of(made)["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("base", ["https://api.example", "https://api.example/v1/"])
def test_anthropic_paths_whether_or_not_the_base_names_the_version(base: str) -> None:
    to = endpoint(Dialect.ANTHROPIC, base_url=base)
    made, body = built(to, Surface.MESSAGES)
    counted, _ = built(to, Surface.COUNT_TOKENS)

    assert made.request.url == "https://api.example/v1/messages"
    assert counted.request.url == "https://api.example/v1/messages/count_tokens"
    assert body == {**MESSAGES, "model": "up"}
    assert headers_of(made)["x-api-key"] == KEY


def test_chat_goes_to_anthropic_and_messages_to_openai_by_translation() -> None:
    there, body = built(endpoint(Dialect.ANTHROPIC))
    back, _ = built(endpoint(Dialect.OPENAI), Surface.MESSAGES)

    assert (there.surface, body["max_tokens"]) == (Surface.MESSAGES, 4096)
    assert back.surface is Surface.CHAT
    assert back.request.url.endswith("/chat/completions")


@pytest.mark.parametrize(
    ("api", "surface", "served"),
    [
        (Dialect.ANTHROPIC, Surface.RESPONSES, {"messages"}),
        (Dialect.ANTHROPIC, Surface.EMBEDDINGS, {"messages"}),
        (Dialect.OPENAI, Surface.COUNT_TOKENS, set()),
        (Dialect.OPENAI, Surface.EMBEDDINGS, {"chat"}),
    ],
)
def test_surface_without_a_counterpart_is_refused(
    api: Dialect, surface: Surface, served: set[str]
) -> None:
    with pytest.raises(CannotTranslate):
        built(endpoint(api, surfaces=frozenset(served)), surface)


def test_azure_takes_the_key_in_its_own_header_and_the_deployment_in_the_path() -> None:
    to = endpoint(
        Dialect.OPENAI,
        base_url="https://x.openai.azure.com/openai?api-version=2024-10-21",
        quirks=frozenset({"api_key_header"}),
        model="gpt 4",
    )
    made, _ = built(to)
    new = msgspec.structs.replace(to, base_url="https://x.openai.azure.com/openai/v1")

    assert made.request.url == (
        "https://x.openai.azure.com/openai/deployments/gpt%204/chat/completions"
        "?api-version=2024-10-21"
    )
    assert (headers_of(made)["api-key"], "authorization" in headers_of(made)) == (KEY, False)
    assert built(new)[0].request.url == "https://x.openai.azure.com/openai/v1/chat/completions"


def test_usage_is_asked_for_unless_the_endpoint_refuses_the_option() -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_obfuscation": False}}
    _, asked = built(endpoint(Dialect.OPENAI), body=body)
    _, spared = built(endpoint(Dialect.OPENAI, quirks=frozenset({"no_stream_options"})), body=body)

    assert asked["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert "stream_options" not in spared


def test_max_tokens_is_renamed_where_the_endpoint_wants_the_newer_name() -> None:
    to = endpoint(Dialect.OPENAI, quirks=frozenset({"max_completion_tokens"}))

    assert built(to, body={**CHAT, "max_tokens": 7})[1] == {
        **CHAT, "model": "up", "max_completion_tokens": 7,
    }  # fmt: skip
    assert built(to, max_tokens=5)[1]["max_completion_tokens"] == 5
    assert "max_tokens" not in built(to, max_tokens=5)[1]


def test_tier_of_the_endpoint_is_asked_for_unless_the_request_names_one() -> None:
    to = endpoint(Dialect.OPENAI, tier="flex")

    assert built(to)[1]["service_tier"] == "flex"
    assert built(to, body={**CHAT, "service_tier": "priority"})[1]["service_tier"] == "priority"


def test_fields_of_the_gateway_stay_here_but_speculation_reaches_our_own_backend() -> None:
    body = {**CHAT, "provider": {"sort": "price"}, "models": ["x"], "speculation": {"off": True}}
    own = endpoint(Dialect.OPENAI, parameters=frozenset({"speculation"}))

    assert built(endpoint(Dialect.OPENAI), body=body)[1] == {**CHAT, "model": "up"}
    assert built(own, body=body)[1]["speculation"] == {"off": True}


@pytest.mark.parametrize("api", list(Dialect))
def test_speculation_that_an_endpoint_does_not_read_is_reported(api: Dialect) -> None:
    asked = {"speculation": {"off": True}}
    surface, body = (Surface.CHAT, CHAT) if api is Dialect.OPENAI else (Surface.MESSAGES, MESSAGES)
    call = Call(
        endpoint=endpoint(api),
        parsed=parse_request(surface, json.dumps({**body, **asked}).encode()),
    )

    assert ADAPTERS[api].build(call).dropped == ("speculation",)


def test_only_known_betas_and_well_formed_versions_pass() -> None:
    sent = {
        "anthropic-beta": "prompt-caching-2024-07-31, files-api-2025-04-14,claude-code-20250219,"
        "context-1m-2025-08-07,evil\r\nx: y",
        "anthropic-version": "2023-01-01",
    }
    made, _ = built(endpoint(Dialect.ANTHROPIC), Surface.MESSAGES, client_headers=sent)
    bad, _ = built(
        endpoint(Dialect.ANTHROPIC), Surface.MESSAGES, client_headers={"anthropic-version": "x\n"}
    )

    assert headers_of(made)["anthropic-beta"] == (
        "prompt-caching-2024-07-31,claude-code-20250219,context-1m-2025-08-07"
    )
    assert made.dropped == ("anthropic-beta.files-api-2025-04-14", "anthropic-beta.evilx: y")
    assert headers_of(made)["anthropic-version"] == "2023-01-01"
    assert headers_of(bad)["anthropic-version"] == "2023-06-01"


def said(message: str = "", **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


ANSWERS: list[tuple[int, bytes, FailureClass]] = [
    (400, said("bad"), FailureClass.INVALID_REQUEST),
    (422, said("bad"), FailureClass.INVALID_REQUEST),
    (400, said(code="context_length_exceeded"), FailureClass.CONTEXT_TOO_LONG),
    (400, said("prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error"),
     FailureClass.CONTEXT_TOO_LONG),
    (400, said("This model's maximum context length is 8192 tokens"),
     FailureClass.CONTEXT_TOO_LONG),
    (413, said(type="request_too_large"), FailureClass.CONTEXT_TOO_LONG),
    (413, said("tokens per minute (TPM)", code="rate_limit_exceeded"), FailureClass.RATE_LIMITED),
    (400, said(code="content_filter"), FailureClass.CONTENT_REFUSED),
    (400, said(code="data_inspection_failed"), FailureClass.CONTENT_REFUSED),
    (403, said("openai/x requires moderation; your input was flagged"),
     FailureClass.CONTENT_REFUSED),
    (401, said("no"), FailureClass.AUTH),
    (403, said("no"), FailureClass.AUTH),
    (400, said("API key not valid. Please pass a valid API key."), FailureClass.AUTH),
    (402, said("Insufficient Balance"), FailureClass.QUOTA),
    (403, said("Key limit exceeded (total limit)"), FailureClass.QUOTA),
    (429, said(code="insufficient_quota"), FailureClass.QUOTA),
    (429, json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "limit",
      "details": {"error_code": "enforced_spend_limit_reached"}}}).encode(), FailureClass.QUOTA),
    (400, said("Your credit balance is too low to access the Anthropic API."), FailureClass.QUOTA),
    (400, said("You have reached your specified workspace API usage limits."), FailureClass.QUOTA),
    (429, said(type="exceeded_current_quota_error"), FailureClass.QUOTA),
    (429, said("slow down", type="rate_limit_error"), FailureClass.RATE_LIMITED),
    (429, b"", FailureClass.RATE_LIMITED),
    (404, said(code="model_not_found"), FailureClass.MISCONFIGURED),
    (400, said("Model Not Exist"), FailureClass.MISCONFIGURED),
    (405, b"", FailureClass.MISCONFIGURED),
    (301, b"", FailureClass.MISCONFIGURED),
    (529, said(type="overloaded_error"), FailureClass.OVERLOADED),
    (503, b"<html>busy</html>", FailureClass.OVERLOADED),
    (500, said(type="overloaded_error"), FailureClass.OVERLOADED),
    (500, said("oops"), FailureClass.SERVER_ERROR),
    (502, b"<html>Bad gateway</html>", FailureClass.SERVER_ERROR),
    (504, b"", FailureClass.SERVER_ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS)
def test_error_answers_mean_what_their_body_says(
    adapter: Adapter, status: int, body: bytes, expected: FailureClass
) -> None:
    fault = adapter.classify(status, (), body, now_unix_s=0.0)

    assert fault.failure is expected
    assert fault.error.message
    assert fault.was_refused == (status not in (502, 504))


@pytest.mark.parametrize("words", ["insufficient balance", "invalid api key", "model not found"])
def test_callers_own_words_cannot_shut_an_endpoint(adapter: Adapter, words: str) -> None:
    body = said(f"Invalid value for 'tools': '{words} model'", type="invalid_request_error")

    fault = adapter.classify(400, (), body, now_unix_s=0.0)
    assert fault.failure is FailureClass.INVALID_REQUEST


def test_retry_after_is_read_from_the_headers(adapter: Adapter) -> None:
    headers = ((b"retry-after-ms", b"1500"), (b"retry-after", b"2"))

    assert adapter.classify(429, headers, b"", now_unix_s=0.0).retry_after_s == 1.5


@pytest.mark.parametrize(
    ("error", "expected", "was_refused"),
    [
        (WireError(message="x", code="insufficient_quota"), FailureClass.QUOTA, True),
        (WireError(message="x", type="overloaded_error"), FailureClass.OVERLOADED, True),
        (WireError(message="x", code="429"), FailureClass.RATE_LIMITED, True),
        (WireError(message="x", code="502"), FailureClass.SERVER_ERROR, False),
        (WireError(message="x", type="invalid_request_error"), FailureClass.INVALID_REQUEST, True),
        (WireError(message="x", code="stream_truncated"), FailureClass.SERVER_ERROR, False),
        (WireError(message="boom"), FailureClass.SERVER_ERROR, False),
    ],
)
def test_errors_inside_a_200(
    adapter: Adapter, error: WireError, expected: FailureClass, was_refused: bool
) -> None:
    fault = adapter.classify_in_band(error)

    assert (fault.failure, fault.was_refused) == (expected, was_refused)
