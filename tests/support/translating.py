"""Requests put through the translators, their results checked by the SDKs' types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.pieces import Surface
from gateway.wire.requests import parse_request
from gateway.wire.translate import CannotTranslate, Target, translate_request
from tests.support import sdk_types

USER = {"role": "user", "content": "Hello"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
WEATHER_TOOL = {
    "name": "weather",
    "description": "Says the weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PIXEL = "iVBORw0KGgo="
ALL = Target(
    extensions=frozenset(
        {"cache_control", "reasoning_content", "reasoning_details", "is_error", "tool_images",
         "top_k", "system_messages"}
    )
)  # fmt: skip


def chat(target: Target | None = None, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A chat request as the messages request it becomes, and what was dropped."""
    body = {"model": "public", "messages": [USER], **fields}
    parsed = parse_request(Surface.CHAT, json.dumps(body).encode())
    out = translate_request(
        parsed, Surface.MESSAGES, model="m-1", max_tokens_default=4096, target=target or Target()
    )
    return sdk_types.messages_request(out.body), out.dropped


def messages(target: Target | None = None, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    body = {"model": "public", "max_tokens": 100, "messages": [USER], **fields}
    parsed = parse_request(Surface.MESSAGES, json.dumps(body).encode())
    out = translate_request(
        parsed, Surface.CHAT, model="c-1", max_tokens_default=4096, target=target or Target()
    )
    if target is None:
        return sdk_types.chat_request(out.body), out.dropped
    return json.loads(out.body), out.dropped


def refused(make: Any, **fields: Any) -> str:
    with pytest.raises(CannotTranslate) as caught:
        make(**fields)
    return caught.value.param


def call(call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}
