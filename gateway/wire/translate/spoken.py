"""What a chat answer says: one message of a plain answer, or one delta of a stream.

Read leniently: compatible servers put parts where a string belongs, objects where arguments
belong, and their reasoning under several names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.translate.shapes import decode_said, encode, safe_tool_id


class ChatFunction(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class ChatCall(msgspec.Struct):
    index: Any = None
    id: Any = None
    function: ChatFunction | None = None


class ChatSaid(msgspec.Struct):
    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: list[ChatCall] | None = None


class ChatChoice(msgspec.Struct):
    index: Any = 0
    delta: ChatSaid | None = None
    message: ChatSaid | None = None
    finish_reason: Any = None
    stop_reason: Any = None  # vLLM: the stop string that was met


class ChatAnswer(msgspec.Struct):
    """A chat completion or one chunk of it."""

    id: Any = None
    model: Any = None
    choices: list[ChatChoice] | None = None
    usage: Any = None


_ANSWER = msgspec.json.Decoder(ChatAnswer)


def decode_answer(payload: bytes) -> ChatAnswer:
    """Raises msgspec.DecodeError."""
    return decode_said(_ANSWER, payload)


def first_choice(answer: ChatAnswer) -> ChatChoice | None:
    """Translated requests ask for one choice; frames of any other are not ours to mix in."""
    for choice in answer.choices or ():
        if choice.index in (0, None):
            return choice
    return None


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def plain_text(choice: ChatChoice) -> str:
    """The text of a stream's choice that says text and nothing else; else ""."""
    said = choice.delta
    if said is None or choice.finish_reason or type(said.content) is not str:
        return ""
    has_more = (
        said.tool_calls or said.reasoning_content or said.reasoning or said.reasoning_details
        or said.refusal
    )  # fmt: skip
    return "" if has_more else said.content


def content_texts(said: ChatSaid) -> tuple[str, str]:
    """(reasoning, visible) text of `content`: Mistral's reasoning models send a list of parts."""
    content = said.content
    if content is None or isinstance(content, str):
        return "", content or ""
    thoughts: list[str] = []
    visible: list[str] = []
    for part in content:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            visible.append(text(part.get("text")))
        elif part.get("type") == "thinking" and isinstance(part.get("thinking"), list):
            thoughts.extend(text(p.get("text")) for p in part["thinking"] if isinstance(p, dict))
    return "".join(thoughts), "".join(visible)


def signed_details(said: ChatSaid) -> list[dict[str, object]]:
    """The entries of OpenRouter's `reasoning_details`, those that are objects."""
    details = said.reasoning_details
    return [d for d in details if isinstance(d, dict)] if isinstance(details, list) else []


def arguments_text(function: ChatFunction | None) -> str:
    """Arguments are text; some servers send the object itself."""
    if function is None or function.arguments is None:
        return ""
    if isinstance(function.arguments, str):
        return function.arguments
    return encode(function.arguments).decode()


def tool_id(given: object, answer_id: str, ordinal: int) -> str:
    """The call's own id, or one made of the answer's, unique within a conversation."""
    return safe_tool_id(text(given) or f"toolu_{answer_id}_{ordinal}")
