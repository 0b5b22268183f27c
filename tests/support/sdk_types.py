"""Checks wire bytes against the official SDKs' own types, unknown fields included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import TypeAdapter

_CHAT: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
_CHAT_STREAM: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)
_MESSAGES: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
_MESSAGES_STREAM: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

# Sampling fields left the SDK's types with its second major version; the API still takes them.
MESSAGES_BEYOND_SDK = frozenset({"temperature", "top_p", "top_k"})


def chat_request(body: bytes) -> dict[str, Any]:
    """The request, after the SDK's types took every field of it."""
    return _checked(json.loads(body), _CHAT, _CHAT_STREAM, frozenset())


def messages_request(body: bytes) -> dict[str, Any]:
    return _checked(json.loads(body), _MESSAGES, _MESSAGES_STREAM, MESSAGES_BEYOND_SDK)


def chat_answer(body: bytes) -> ChatCompletion:
    return ChatCompletion.model_validate_json(body)


def messages_answer(body: bytes) -> Message:
    return Message.model_validate_json(body)


def chat_chunk(payload: bytes) -> ChatCompletionChunk:
    return ChatCompletionChunk.model_validate_json(payload)


def messages_event(payload: bytes) -> Any:
    return _EVENT.validate_json(payload)


def _checked(
    given: dict[str, Any], plain: TypeAdapter[Any], stream: TypeAdapter[Any], beyond: frozenset[str]
) -> dict[str, Any]:
    known = {name: value for name, value in given.items() if name not in beyond}
    adapter = stream if given.get("stream") else plain
    understood = _realised(adapter.validate_python(known))

    assert known == understood, "a field that the SDK's types do not know"
    return given


def _realised(value: Any) -> Any:
    """Iterable fields are validated lazily: walk them, so that every element is checked."""
    if isinstance(value, dict):
        return {name: _realised(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | Iterator):
        return [_realised(inner) for inner in value]
    return value
