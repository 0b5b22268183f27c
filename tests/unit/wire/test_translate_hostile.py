"""Bodies with anything anywhere: a translation, or a refusal that names a place; never a crash."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.pieces import Surface
from gateway.wire.rawjson import WireFormatError
from gateway.wire.requests import FieldError, parse_request
from gateway.wire.translate import CannotTranslate, translate_answer, translate_request
from tests.support.translating import (
    PIXEL,
    USER,
    WEATHER,
    WEATHER_TOOL,
    call,
    events_of,
    fragment,
    sse,
    tools,
    translated,
)

# Longer than `make check` may take; `make test` runs it.
pytestmark = pytest.mark.slow

Json = dict[str, Any]

CHAT: Json = {
    "model": "p",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": "y",
            "reasoning_details": [{"type": "reasoning.text", "text": "t", "signature": "s"}],
            "tool_calls": [call("a", '{"x": 1}')],
        },
        {"role": "tool", "tool_call_id": "a", "content": "z"},
    ],
    "tools": [WEATHER],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "reasoning": {"effort": "low", "max_tokens": 2000},
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "stop": ["a"],
    "user": "u",
    "service_tier": "auto",
    "stream_options": {"include_usage": True},
    "max_tokens": 9,
}
MESSAGES: Json = {
    "model": "p",
    "max_tokens": 9000,
    "system": [{"type": "text", "text": "Be brief"}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x"},
                {"type": "image", "source": {"type": "url", "url": "https://a.example/b"}},
                {"type": "document", "source": {"type": "text", "data": "d"}, "title": "t"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "text", "text": "z"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [WEATHER_TOOL],
    "tool_choice": {"type": "tool", "name": "weather"},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "stop_sequences": ["a"],
}
COMPLETION: Json = {
    "id": "c",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": "END",
            "message": {
                "content": "x",
                "reasoning": "r",
                "reasoning_details": [{"type": "reasoning.text", "text": "t", "signature": "s"}],
                "refusal": None,
                "tool_calls": [call("a", '{"x": 1}')],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
MESSAGE: Json = {
    "id": "m",
    "model": "c",
    "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
    ],
    "stop_reason": "refusal",
    "stop_details": {"type": "refusal", "explanation": "e"},
    "usage": {"input_tokens": 3, "output_tokens": 2, "service_tier": "standard"},
}

odd = st.sampled_from(
    [None, True, False, 0, -1, 2**70, 1.5, "", "x", "\ud83d", "data:", [], [[]], [0], {}, {"a": []},
     {"type": "x"}, {"type": None}, [{"type": "text"}], USER]
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place within a JSON value."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [p for key, below in inner for p in [(*path, key), *places(below, (*path, key))]]


@st.composite
def spoilt(draw: st.DrawFn, sound: Json) -> bytes:
    """A sound body with one or two places replaced or taken out."""
    body = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(body)))
        parent: Any = body
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()):
            parent[path[-1]] = copy.deepcopy(draw(odd))
        else:
            del parent[path[-1]]
        if not body:
            break
    return json.dumps(body).encode()


def request_over(body: bytes, surface: Surface, to: Surface) -> None:
    try:
        parsed = parse_request(surface, body)
    except (WireFormatError, FieldError):
        return
    try:
        out = translate_request(parsed, to, model="m", max_tokens_default=64)
    except CannotTranslate as refusal:
        is_named = bool(refusal.param and refusal.message)
        assert is_named, body
        return
    assert isinstance(json.loads(out.body), dict)


@settings(max_examples=200)
@given(spoilt(CHAT))
def test_spoilt_chat_request(body: bytes) -> None:
    request_over(body, Surface.CHAT, Surface.MESSAGES)


@settings(max_examples=200)
@given(spoilt(MESSAGES))
def test_spoilt_messages_request(body: bytes) -> None:
    request_over(body, Surface.MESSAGES, Surface.CHAT)


@given(spoilt(COMPLETION) | spoilt(MESSAGE), st.booleans())
def test_spoilt_answer(body: bytes, is_chat: bool) -> None:
    ways = (Surface.CHAT, Surface.MESSAGES) if is_chat else (Surface.MESSAGES, Surface.CHAT)
    try:
        out = translate_answer(body, *ways, model="p")
    except CannotTranslate:
        return
    assert isinstance(json.loads(out), dict)


CHUNKS: Json = {
    "events": [
        {**COMPLETION, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]},
        tools(fragment(0, "{}", call_id="a", name="f"), fragment(None, "{}", name="g")),
        {**COMPLETION, "choices": [{**COMPLETION["choices"][0], "delta": {"reasoning": "r"}}]},
        {**COMPLETION, "choices": []},
    ]
}
EVENTS: Json = {
    "events": [
        {"type": "message_start", "message": MESSAGE},
        {"type": "content_block_start", "index": 0, "content_block": MESSAGE["content"][0]},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "x"},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": MESSAGE["content"][3]},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "refusal", "stop_details": MESSAGE["stop_details"]},
            "usage": MESSAGE["usage"],
        },
        {"type": "message_stop"},
    ]
}


@given(spoilt(CHUNKS) | spoilt(EVENTS), st.booleans())
def test_spoilt_stream(body: bytes, is_chat: bool) -> None:
    events = json.loads(body).get("events")
    stream = sse(*events, done=is_chat) if isinstance(events, list) else b"data: x\n\n"
    out = translated(stream, Surface.CHAT if is_chat else Surface.MESSAGES)
    for _, payload in events_of(out):
        assert payload == b"[DONE]" or isinstance(json.loads(payload), dict)
