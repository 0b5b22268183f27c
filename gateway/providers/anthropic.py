"""The adapter for Anthropic's Messages API."""

from __future__ import annotations

import re

from gateway.providers.adapter import (
    Built,
    Call,
    Fault,
    common_headers,
    dropped_in_same_dialect,
    join_url,
    upstream_surface,
)
from gateway.providers.classify import classify_answer, classify_in_band
from gateway.providers.transport import Headers, UpstreamRequest
from gateway.wire.pieces import Surface, WireError
from gateway.wire.requests import upstream_body
from gateway.wire.translate import target_of, translate_request

VERSION = b"2023-06-01"
BETAS_MAX = 32

_PATHS: dict[Surface, str] = {
    Surface.MESSAGES: "/messages",
    Surface.COUNT_TOKENS: "/messages/count_tokens",
}
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_BETA = re.compile(r"([a-z0-9]+(?:-[a-z]+|-\d+k|-\d+m|-\d)*)-\d{4}-?\d{2}-?\d{2}\Z")
# Betas (without their date) that change only what the model or the stream does. Others may move
# data (files, remote tools) or prices in ways that the gateway would not account for.
_BETAS = frozenset(
    [
        "prompt-caching",
        "extended-cache-ttl",
        "interleaved-thinking",
        "dev-full-thinking",
        "output-128k",
        "token-efficient-tools",
        "fine-grained-tool-streaming",
        "computer-use",
        "context-1m",
        "context-management",
        "max-tokens-3-5-sonnet",
        "message-batches",
        "pdfs",
        "token-counting",
        "claude-code",
        "structured-outputs",
        "effort",
        "tool-examples",
        "advanced-tool-use",
        "memory",
        "tool-search-tool",
        "compact",
        "web-search",
        "redact-thinking",
        "adaptive-thinking",
        "prompt-caching-scope",
    ]
)


class AnthropicAdapter:
    """Messages pass unchanged, chat requests are translated; embeddings do not exist here."""

    def build(self, call: Call) -> Built:
        endpoint, parsed = call.endpoint, call.parsed
        surface = upstream_surface(endpoint, parsed.surface)
        if not endpoint.surfaces and parsed.surface is Surface.CHAT:
            surface = Surface.MESSAGES
        headers, dropped = _headers(call, is_native=surface is parsed.surface)
        if surface is parsed.surface:
            body = upstream_body(parsed, model=endpoint.model, max_tokens=call.max_tokens)
            dropped += dropped_in_same_dialect(call)
        else:
            translated = translate_request(
                parsed,
                surface,
                model=endpoint.model,
                max_tokens_default=call.max_tokens or call.max_tokens_default,
                target=target_of(endpoint.quirks, endpoint.parameters),
            )
            body, dropped = translated.body, dropped + translated.dropped
        path = _PATHS[surface]
        base = endpoint.base_url.partition("?")[0].rstrip("/")
        if not base.endswith("/v1"):
            path = "/v1" + path  # the SDKs' base URL has no version in it
        request = UpstreamRequest(
            method="POST",
            url=join_url(endpoint.base_url, path),
            headers=headers,
            body=body,
            network=endpoint.network,
            verify_tls=call.verify_tls,
        )
        return Built(request, surface, dropped)

    def classify(self, status: int, headers: Headers, body: bytes, *, now_unix_s: float) -> Fault:
        return classify_answer(status, headers, body, now_unix_s=now_unix_s)

    def classify_in_band(self, error: WireError) -> Fault:
        return classify_in_band(error)


def _headers(call: Call, *, is_native: bool) -> tuple[Headers, tuple[str, ...]]:
    headers = common_headers(call, is_stream=call.parsed.stream)
    if call.secret:
        headers.append((b"x-api-key", call.secret.encode("latin-1")))
    sent = call.client_headers or {}
    version = sent.get("anthropic-version", "").strip() if is_native else ""
    is_version = _VERSION.match(version) is not None
    headers.append((b"anthropic-version", version.encode() if is_version else VERSION))
    betas, dropped = _betas(sent.get("anthropic-beta", "") if is_native else "")
    if betas:
        headers.append((b"anthropic-beta", ",".join(betas).encode()))
    return tuple(headers), dropped


def _betas(value: str) -> tuple[list[str], tuple[str, ...]]:
    """(betas that pass, names of those that do not)."""
    passed: list[str] = []
    dropped: list[str] = []
    for beta in [part.strip() for part in value.split(",") if part.strip()][:BETAS_MAX]:
        match = _BETA.match(beta)
        if match is not None and match[1] in _BETAS:
            passed.append(beta)
        else:
            shown = "".join(char for char in beta if char.isascii() and char.isprintable())
            dropped.append(f"anthropic-beta.{shown[:64]}")
    return passed, tuple(dropped)
