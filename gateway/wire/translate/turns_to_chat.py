"""The `system` and turns of a messages request as the message list of the chat dialect."""

from __future__ import annotations

import msgspec

from gateway.wire.translate.media import document_part, image_part
from gateway.wire.translate.shapes import (
    BRACKET,
    QUOTE,
    CannotTranslate,
    Notes,
    Object,
    Target,
    as_objects,
    as_string,
    encode,
    input_to_arguments,
    is_true,
    starts,
    string_bytes,
)

Part = dict[str, object]
Message = dict[str, object]

SIGNATURE_FORMAT = "anthropic-claude-v1"  # marks `reasoning_details` that this dialect signed
_EMPTY = b'""'
_TURN_KEYS = frozenset({"role", "content"})
_TEXT_KEYS = frozenset({"type", "text", "cache_control"})
_CALL_KEYS = frozenset({"type", "id", "name", "input", "caller", "cache_control"})
_RESULT_KEYS = frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"})


def system_message(raw: msgspec.Raw, target: Target, notes: Notes, param: str) -> Message | None:
    """None when the prompt is empty."""
    content = _text_content(raw, target, notes, param)
    if not content:
        return None
    return {"role": "system", "content": content}


def turn_messages(turn: Object, target: Target, notes: Notes, param: str) -> list[Message]:
    """The chat messages of one turn: one for each tool result, then one for the rest."""
    notes.drop_unknown(turn, _TURN_KEYS, "messages")
    role = as_string(turn.get("role"), f"{param}.role")
    raw = turn.get("content", msgspec.Raw(_EMPTY))
    if role == "system":
        message = system_message(raw, target, notes, f"{param}.content")
        return [message] if message is not None else []
    if role not in ("user", "assistant"):
        raise CannotTranslate(
            f"{param}.role: {role!r} is unknown; use user, assistant or system",
            param=f"{param}.role",
        )
    if starts(raw, QUOTE):
        return [{"role": role, "content": raw}]
    if not starts(raw, BRACKET):
        raise CannotTranslate(
            f"{param}.content must be a string or a list", param=f"{param}.content"
        )
    blocks = as_objects(raw, f"{param}.content")
    write = _user_messages if role == "user" else _assistant_messages
    return write(blocks, target, notes, f"{param}.content")


def _user_messages(blocks: list[Object], target: Target, notes: Notes, param: str) -> list[Message]:
    """Results come first: chat wants them right after the calls they answer."""
    results: list[Message] = []
    parts: list[Part] = []
    for i, block in enumerate(blocks):
        place = f"{param}[{i}]"
        if as_string(block.get("type"), f"{place}.type") == "tool_result":
            message, moved = _tool_message(block, target, notes, place)
            results.append(message)
            parts.extend(moved)
        else:
            parts.append(_part(block, target, notes, place))
    if parts:
        results.append({"role": "user", "content": _joined(parts, target)})
    return results


def _tool_message(
    block: Object, target: Target, notes: Notes, param: str
) -> tuple[Message, list[Part]]:
    """The tool message, and the parts that only a user message may hold (images, files)."""
    notes.drop_unknown(block, _RESULT_KEYS, "messages.content")
    message: Message = {
        "role": "tool",
        "tool_call_id": string_bytes(block.get("tool_use_id"), f"{param}.tool_use_id"),
    }
    moved: list[Part] = []
    raw = block.get("content", msgspec.Raw(_EMPTY))
    if starts(raw, QUOTE):
        message["content"] = raw
    else:
        parts = [
            _part(inner, target, notes, f"{param}.content[{i}]")
            for i, inner in enumerate(as_objects(raw, f"{param}.content"))
        ]
        if "tool_images" not in target.extensions:
            moved = [part for part in parts if part["type"] != "text"]
            parts = [part for part in parts if part["type"] == "text"]
        message["content"] = _joined(parts, target) if parts else ""
    if is_true(block.get("is_error")):
        if "is_error" in target.extensions:
            message["is_error"] = True
        else:
            notes.drop("messages.content.is_error")
    _carry_cache_control(block, message, target, notes)
    return message, moved


def _assistant_messages(
    blocks: list[Object], target: Target, notes: Notes, param: str
) -> list[Message]:
    parts: list[Part] = []
    calls: list[Part] = []
    thoughts: list[Object] = []
    for i, block in enumerate(blocks):
        place = f"{param}[{i}]"
        kind = as_string(block.get("type"), f"{place}.type")
        if kind == "tool_use":
            calls.append(_tool_call(block, target, notes, place))
        elif kind in ("thinking", "redacted_thinking"):
            thoughts.append(block)
        elif kind == "text":
            parts.append(_part(block, target, notes, place))
        else:
            raise _no_counterpart(kind, place)
    message: Message = {"role": "assistant", "content": None}
    if parts:
        message["content"] = _joined(parts, target)
    if thoughts:
        _carry_thoughts(thoughts, message, target, notes, param)
    if calls:
        message["tool_calls"] = calls
    elif not parts:
        if len(message) == 2:
            return []  # nothing of the turn could be carried
        message["content"] = ""
    return [message]


def _carry_thoughts(
    thoughts: list[Object], message: Message, target: Target, notes: Notes, param: str
) -> None:
    """Needs the endpoint's word that it takes them: most chat APIs refuse such fields."""
    if not target.extensions & {"reasoning_content", "reasoning_details"}:
        notes.drop("messages.content.thinking")
        return
    texts = [
        as_string(block.get("thinking"), f"{param}.thinking")
        for block in thoughts
        if "thinking" in block
    ]
    if "reasoning_content" in target.extensions and texts:
        message["reasoning_content"] = "".join(texts)
    if "reasoning_details" in target.extensions:
        message["reasoning_details"] = [_detail(b, i) for i, b in enumerate(thoughts)]
    elif len(texts) < len(thoughts) or any(bytes(b.get("signature", _EMPTY)) != _EMPTY
                                           for b in thoughts):  # fmt: skip
        notes.drop("messages.content.signature")


def _detail(block: Object, index: int) -> Part:
    if "data" in block:
        detail: Part = {"type": "reasoning.encrypted", "data": block["data"]}
    else:
        detail = {
            "type": "reasoning.text",
            "text": block.get("thinking", ""),
            "signature": block.get("signature", ""),
        }
    return {**detail, "format": SIGNATURE_FORMAT, "index": index}


def _tool_call(block: Object, target: Target, notes: Notes, param: str) -> Part:
    notes.drop_unknown(block, _CALL_KEYS, "messages.content")
    arguments = input_to_arguments(block.get("input", msgspec.Raw(b"{}")))
    call: Part = {
        "id": string_bytes(block.get("id"), f"{param}.id"),
        "type": "function",
        "function": {
            "name": string_bytes(block.get("name"), f"{param}.name"),
            "arguments": arguments,
        },
    }
    _carry_cache_control(block, call, target, notes)
    return call


def _part(block: Object, target: Target, notes: Notes, param: str) -> Part:
    kind = as_string(block.get("type"), f"{param}.type")
    if kind == "text":
        notes.drop_unknown(block, _TEXT_KEYS, "messages.content")
        part: Part = {"type": "text", "text": string_bytes(block.get("text"), f"{param}.text")}
    elif kind == "image":
        part = image_part(block, notes, param)
    elif kind == "document":
        part = document_part(block, notes, param)
    else:
        raise _no_counterpart(kind, param)
    _carry_cache_control(block, part, target, notes)
    return part


def _no_counterpart(kind: str, param: str) -> CannotTranslate:
    return CannotTranslate(
        f"{param}: a block of type {kind!r} has no counterpart in the chat dialect", param=param
    )


def _carry_cache_control(block: Object, out: Part, target: Target, notes: Notes) -> None:
    if "cache_control" in block:
        if "cache_control" in target.extensions:
            out["cache_control"] = block["cache_control"]
        else:
            notes.drop("cache_control")


def _text_content(raw: msgspec.Raw, target: Target, notes: Notes, param: str) -> object:
    if starts(raw, QUOTE):
        return raw if bytes(raw) != _EMPTY else ""
    if not starts(raw, BRACKET):
        raise CannotTranslate(f"{param} must be a string or a list", param=param)
    parts = []
    for i, block in enumerate(as_objects(raw, param)):
        kind = as_string(block.get("type"), f"{param}[{i}].type")
        if kind != "text":
            raise _no_counterpart(kind, f"{param}[{i}]")
        parts.append(_part(block, target, notes, f"{param}[{i}]"))
    return _joined(parts, target) if parts else ""


def _joined(parts: list[Part], target: Target) -> object:
    """One plain text as a string, which every endpoint takes; else the list of parts."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return parts[0]["text"]
    if not target.text_parts and all(part["type"] == "text" for part in parts):
        texts = (msgspec.json.decode(encode(part["text"]), type=str) for part in parts)
        return "\n\n".join(texts)
    return parts
