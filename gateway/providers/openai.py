"""The adapter for OpenAI and every API compatible with it."""

from __future__ import annotations

from urllib.parse import quote

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
from gateway.wire.rawjson import parse_members
from gateway.wire.requests import upstream_body
from gateway.wire.translate import CannotTranslate, target_of, translate_request

_PATHS: dict[Surface, str] = {
    Surface.CHAT: "/chat/completions",
    Surface.COMPLETIONS: "/completions",
    Surface.RESPONSES: "/responses",
    Surface.EMBEDDINGS: "/embeddings",
    Surface.MESSAGES: "/messages",  # vLLM and others serve it beside the rest
    Surface.COUNT_TOKENS: "/messages/count_tokens",
}
_TIERED = frozenset({Surface.CHAT, Surface.RESPONSES})


class OpenAIAdapter:
    """Knows paths, the key's header, and the deviations listed as quirks in the catalogue."""

    def build(self, call: Call) -> Built:
        endpoint, parsed = call.endpoint, call.parsed
        surface = upstream_surface(endpoint, parsed.surface)
        if surface in (Surface.MESSAGES, Surface.COUNT_TOKENS) and not endpoint.surfaces:
            surface = _chat_instead(surface)
        if surface is parsed.surface:
            body, dropped = _same_dialect_body(call), dropped_in_same_dialect(call)
        else:
            translated = translate_request(
                parsed,
                surface,
                model=endpoint.model,
                max_tokens_default=call.max_tokens or call.max_tokens_default,
                target=target_of(endpoint.quirks, endpoint.parameters),
            )
            body, dropped = translated.body, translated.dropped
        request = UpstreamRequest(
            method="POST",
            url=_url(call, surface),
            headers=_headers(call),
            body=body,
            network=endpoint.network,
            verify_tls=call.verify_tls,
        )
        return Built(request, surface, dropped)

    def classify(self, status: int, headers: Headers, body: bytes, *, now_unix_s: float) -> Fault:
        return classify_answer(status, headers, body, now_unix_s=now_unix_s)

    def classify_in_band(self, error: WireError) -> Fault:
        return classify_in_band(error)


def _chat_instead(surface: Surface) -> Surface:
    if surface is Surface.MESSAGES:
        return Surface.CHAT
    raise CannotTranslate("an OpenAI endpoint cannot count tokens", param="model")


def _url(call: Call, surface: Surface) -> str:
    endpoint = call.endpoint
    base, _, query = endpoint.base_url.partition("?")
    if "api-version=" in query and "/deployments/" not in base:
        # Azure's older form: the deployment stands in the path, the version in the query.
        return join_url(
            endpoint.base_url, f"/deployments/{quote(endpoint.model, safe='')}{_PATHS[surface]}"
        )
    return join_url(endpoint.base_url, _PATHS[surface])


def _headers(call: Call) -> Headers:
    headers = common_headers(call, is_stream=call.parsed.stream)
    if call.secret:
        key = call.secret.encode("latin-1")
        if "api_key_header" in call.endpoint.quirks:
            headers.append((b"api-key", key))
        else:
            headers.append((b"authorization", b"Bearer " + key))
    return tuple(headers)


def _same_dialect_body(call: Call) -> bytes:
    endpoint, parsed = call.endpoint, call.parsed
    quirks = endpoint.quirks
    refuses_options = "no_stream_options" in quirks
    wants_completion_tokens = "max_completion_tokens" in quirks and parsed.surface is Surface.CHAT
    is_ours = "speculation" in (endpoint.parameters or ())
    body = upstream_body(
        parsed,
        model=endpoint.model,
        ask_usage=not refuses_options,
        max_tokens=call.max_tokens,
        remove=("stream_options",) if refuses_options else (),
        keep=("speculation",) if is_ours else (),
        max_tokens_field="max_completion_tokens" if wants_completion_tokens else "",
    )
    sent_limit = parsed.members.raw("max_tokens") if wants_completion_tokens else None
    asks_tier = (
        endpoint.tier in ("flex", "priority")
        and parsed.surface in _TIERED
        and not parsed.service_tier
    )
    if sent_limit is None and not asks_tier:
        return body
    members = parse_members(body)
    changes: dict[str, bytes | None] = {}
    if sent_limit is not None:
        changes["max_tokens"] = None
        if "max_completion_tokens" not in members:
            changes["max_completion_tokens"] = members.raw("max_tokens")
    if asks_tier:
        changes["service_tier"] = b'"%b"' % endpoint.tier.encode()
    return members.rewrite(changes)
