"""What one chat delta (or whole message) holds, and how many characters the model generated."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.reading import text_len


class _Function(msgspec.Struct, gc=False):
    name: Any = None
    arguments: Any = None


class _Custom(msgspec.Struct, gc=False):
    name: Any = None
    input: Any = None


class _ToolCall(msgspec.Struct, gc=False):
    index: Any = None
    id: Any = None
    function: _Function | None = None
    custom: _Custom | None = None


class _Audio(msgspec.Struct, gc=False):
    data: Any = None
    transcript: Any = None


class Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None
    audio: _Audio | None = None
    images: Any = None


class Count:
    """What one frame generated."""

    __slots__ = ("has_more", "reasoning", "tool", "visible")

    def __init__(self) -> None:
        self.visible = 0
        self.reasoning = 0
        self.tool = 0
        self.has_more = False  # generated, but not characters: audio, images, hidden reasoning


def count_delta(count: Count, delta: Delta) -> None:
    content = delta.content
    if content:
        if type(content) is str:
            count.visible += len(content)
        else:
            _count_parts(count, content)
    if delta.reasoning_content or delta.reasoning:
        # Some send the same text under both names.
        count.reasoning += max(text_len(delta.reasoning_content), text_len(delta.reasoning))
    elif delta.reasoning_details:
        _count_details(count, delta.reasoning_details)
    if delta.refusal:
        count.visible += text_len(delta.refusal)
    for call in delta.tool_calls or ():
        if call.function is not None:
            count.tool += text_len(call.function.arguments) + text_len(call.function.name)
        if call.custom is not None:
            count.tool += text_len(call.custom.input) + text_len(call.custom.name)
    if delta.function_call is not None:
        function = delta.function_call
        count.tool += text_len(function.arguments) + text_len(function.name)
    if delta.audio is not None:
        count.visible += text_len(delta.audio.transcript)
        count.has_more |= bool(delta.audio.data)
    if delta.images:
        count.has_more = True


def is_only_content(delta: Delta) -> bool:
    return (
        delta.tool_calls is None
        and not delta.reasoning_content
        and not delta.reasoning
        and not delta.reasoning_details
        and not delta.refusal
        and delta.function_call is None
        and delta.audio is None
        and delta.images is None
    )


def _count_parts(count: Count, parts: object) -> None:
    """Mistral's content list: text parts, and thinking parts that hold text parts."""
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        count.visible += text_len(part.get("text"))
        thinking = part.get("thinking")
        if isinstance(thinking, list):
            count.reasoning += sum(
                text_len(inner.get("text")) for inner in thinking if isinstance(inner, dict)
            )
        else:
            count.reasoning += text_len(thinking)


def _count_details(count: Count, details: object) -> None:
    """OpenRouter's `reasoning_details`: text, summaries, or encrypted blocks."""
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            count.reasoning += text_len(detail.get("text")) + text_len(detail.get("summary"))
            count.has_more |= bool(detail.get("data"))
