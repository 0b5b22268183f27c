"""The conversation of a chat request as `system` and turns of the messages dialect."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from gateway.wire.translate.media import document_block, image_block
from gateway.wire.translate.shapes import (
    BRACKET,
    QUOTE,
    CannotTranslate,
    Notes,
    Object,
    Target,
    arguments_to_input,
    as_object,
    as_objects,
    as_string,
    is_true,
    safe_tool_id,
    starts,
    string_bytes,
)

Block = dict[str, object]

ANTHROPIC_FORMAT = "anthropic"  # how `reasoning_details` mark blocks that this dialect signed
EMPTY = b'""'
_EMPTY_TEXT = msgspec.Raw(EMPTY)
_SYSTEM_KEYS = frozenset({"role", "content"})
_USER_KEYS = frozenset({"role", "content"})
_TOOL_KEYS = frozenset({"role", "content", "tool_call_id", "is_error", "cache_control"})
_ASSISTANT_KEYS = frozenset(
    {"role", "content", "refusal", "tool_calls", "audio", "function_call", "reasoning",
     "reasoning_content", "reasoning_details", "annotations"}
)  # fmt: skip
_TEXT_KEYS = frozenset({"type", "text", "cache_control"})
_CALL_KEYS = frozenset({"id", "type", "function", "index", "cache_control"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})


@dataclass(slots=True)
class Turn:
    role: str
    content: list[Block] | msgspec.Raw  # Raw: a plain string, spliced
    holds_results: bool = False


@dataclass(slots=True)
class Conversation:
    system: list[Block] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def last_call_lacks_thinking(self) -> bool:
        """Whether the tool loop at the end was begun by a turn without a thinking block."""
        if len(self.turns) < 2 or not self.turns[-1].holds_results:
            return False
        content = self.turns[-2].content
        if isinstance(content, msgspec.Raw):
            return True
        return not any(b["type"] in ("thinking", "redacted_thinking") for b in content)


def conversation(messages: list[Object], target: Target, notes: Notes) -> Conversation:
    """Raises CannotTranslate for roles and parts that have no counterpart."""
    talk = Conversation()
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        role = as_string(message.get("role"), f"{param}.role")
        if role in ("system", "developer"):
            _system(message, talk, target, notes, param)
        elif role == "user":
            notes.drop_unknown(message, _USER_KEYS, "messages")
            _user(_content(message, notes, param), talk)
        elif role == "assistant":
            blocks = _assistant(message, notes, param)
            if blocks:
                talk.turns.append(Turn("assistant", blocks))
        elif role == "tool":
            _tool(message, talk, notes, param)
        else:
            raise CannotTranslate(
                f"{param}.role: {role!r} has no counterpart in the messages dialect; "
                "use system, developer, user, assistant or tool",
                param=f"{param}.role",
            )
    if not talk.turns:
        raise CannotTranslate("messages holds no user or assistant text", param="messages")
    return talk


def _system(message: Object, talk: Conversation, target: Target, notes: Notes, param: str) -> None:
    notes.drop_unknown(message, _SYSTEM_KEYS, "messages")
    blocks = _blocks_of(_content(message, notes, param))
    if not talk.turns:
        talk.system.extend(blocks)
    elif "system_messages" in target.extensions:
        talk.turns.append(Turn("system", blocks))
    else:  # the dialect knows one system prompt, before everything else
        notes.drop("messages.system_position")
        talk.system.extend(blocks)


def _user(content: list[Block] | msgspec.Raw, talk: Conversation) -> None:
    if not content or (isinstance(content, msgspec.Raw) and bytes(content) == EMPTY):
        return  # says nothing, and the dialect refuses empty turns
    last = talk.turns[-1] if talk.turns else None
    if last is not None and last.holds_results and isinstance(last.content, list):
        last.content.extend(_blocks_of(content))  # results and what follows are one turn
        return
    talk.turns.append(Turn("user", content))


def _assistant(message: Object, notes: Notes, param: str) -> list[Block]:
    notes.drop_unknown(message, _ASSISTANT_KEYS, "messages")
    for name, advice in (("audio", "send its transcript"), ("function_call", "use tool_calls")):
        if name in message:
            raise CannotTranslate(
                f"{param}.{name} has no counterpart in the messages dialect; {advice}",
                param=f"{param}.{name}",
            )
    blocks = _thinking(message, notes, param)
    if "content" in message:
        blocks.extend(_blocks_of(_content(message, notes, param)))
    if "refusal" in message and bytes(message["refusal"]) != EMPTY:
        blocks.append(_text(string_bytes(message["refusal"], f"{param}.refusal")))
    if "tool_calls" in message:
        for i, call in enumerate(as_objects(message["tool_calls"], f"{param}.tool_calls")):
            blocks.append(_tool_use(call, notes, f"{param}.tool_calls[{i}]"))
    return blocks


def _thinking(message: Object, notes: Notes, param: str) -> list[Block]:
    """Thinking blocks that carry this dialect's signature; others it would refuse."""
    blocks: list[Block] = []
    if "reasoning_details" in message:
        name = f"{param}.reasoning_details"
        for i, detail in enumerate(as_objects(message["reasoning_details"], name)):
            block = _signed_block(detail, f"{name}[{i}]")
            if block is None:
                notes.drop("messages.reasoning_details")
            else:
                blocks.append(block)
    if not blocks:
        for name in ("reasoning_content", "reasoning"):
            if name in message and bytes(message[name]) != EMPTY:
                notes.drop(f"messages.{name}")
    return blocks


def _signed_block(detail: Object, param: str) -> Block | None:
    origin = as_string(detail["format"], f"{param}.format") if "format" in detail else ""
    if origin and not origin.startswith(ANTHROPIC_FORMAT):
        return None
    kind = as_string(detail.get("type"), f"{param}.type")
    if kind == "reasoning.text" and "signature" in detail:
        return {
            "type": "thinking",
            "thinking": detail.get("text", ""),
            "signature": string_bytes(detail["signature"], f"{param}.signature"),
        }
    if kind == "reasoning.encrypted" and "data" in detail:
        data = string_bytes(detail["data"], f"{param}.data")
        return {"type": "redacted_thinking", "data": data}
    return None


def _tool_use(call: Object, notes: Notes, param: str) -> Block:
    notes.drop_unknown(call, _CALL_KEYS, "messages.tool_calls")
    if "function" not in call:
        raise CannotTranslate(
            f"{param}: only function calls have a counterpart in the messages dialect",
            param=f"{param}.type",
        )
    function = as_object(call["function"], f"{param}.function")
    notes.drop_unknown(function, _FUNCTION_KEYS, "messages.tool_calls.function")
    arguments = as_string(
        function.get("arguments", msgspec.Raw(EMPTY)), f"{param}.function.arguments"
    )
    block: Block = {
        "type": "tool_use",
        "id": safe_tool_id(as_string(call.get("id"), f"{param}.id")),
        "name": string_bytes(function.get("name"), f"{param}.function.name"),
        "input": arguments_to_input(arguments),
    }
    if "cache_control" in call:
        block["cache_control"] = call["cache_control"]
    return block


def _tool(message: Object, talk: Conversation, notes: Notes, param: str) -> None:
    notes.drop_unknown(message, _TOOL_KEYS, "messages")
    call_id = as_string(message.get("tool_call_id"), f"{param}.tool_call_id")
    block: Block = {
        "type": "tool_result",
        "tool_use_id": safe_tool_id(call_id),
        "content": _content(message, notes, param),
    }
    if is_true(message.get("is_error")):
        block["is_error"] = True
    if "cache_control" in message:
        block["cache_control"] = message["cache_control"]
    last = talk.turns[-1] if talk.turns else None
    if last is not None and last.holds_results and isinstance(last.content, list):
        last.content.append(block)
    else:
        talk.turns.append(Turn("user", [block], holds_results=True))


def _content(message: Object, notes: Notes, param: str) -> list[Block] | msgspec.Raw:
    """A string as its own bytes, or blocks without the empty texts that the dialect refuses."""
    raw = message.get("content")
    if raw is None:
        return []
    if starts(raw, QUOTE):
        return raw
    if not starts(raw, BRACKET):
        raise CannotTranslate(
            f"{param}.content must be a string or a list", param=f"{param}.content"
        )
    blocks: list[Block] = []
    for i, part in enumerate(as_objects(raw, f"{param}.content")):
        block = _block(part, notes, f"{param}.content[{i}]")
        if block.get("text") != _EMPTY_TEXT:
            blocks.append(block)
    return blocks


def _block(part: Object, notes: Notes, param: str) -> Block:
    kind = as_string(part.get("type"), f"{param}.type")
    if kind == "text":
        notes.drop_unknown(part, _TEXT_KEYS, "messages.content")
        block = _text(string_bytes(part.get("text"), f"{param}.text"))
    elif kind == "refusal":
        block = _text(string_bytes(part.get("refusal"), f"{param}.refusal"))
    elif kind == "image_url":
        block = image_block(part, notes, param)
    elif kind == "file":
        block = document_block(part, notes, param)
    else:
        raise CannotTranslate(
            f"{param}: a part of type {kind!r} has no counterpart in the messages dialect; "
            "use text, image_url or file",
            param=param,
        )
    if "cache_control" in part:
        block["cache_control"] = part["cache_control"]
    return block


def _text(raw: msgspec.Raw) -> Block:
    return {"type": "text", "text": raw}


def _blocks_of(content: list[Block] | msgspec.Raw) -> list[Block]:
    if isinstance(content, list):
        return content
    return [] if bytes(content) == EMPTY else [_text(content)]
