"""A plain answer of one dialect as a plain answer of the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.wire.pieces import Surface
from gateway.wire.translate.endings import (
    chat_tier,
    chat_usage,
    finish_reason,
    messages_usage,
    stop_reason,
)
from gateway.wire.translate.shapes import (
    CannotTranslate,
    arguments_to_input,
    decode_said,
    encode_said,
    input_to_arguments,
)
from gateway.wire.translate.spoken import (
    ChatSaid,
    arguments_text,
    content_texts,
    decode_answer,
    first_choice,
    signed_details,
    text,
    tool_id,
)
from gateway.wire.translate.stream_to_chat import THOUGHT_CHARS_MAX, StopDetails
from gateway.wire.translate.turns_to_chat import SIGNATURE_FORMAT
from gateway.wire.usage import Usage
from gateway.wire.usage_read import read_usage

Block = dict[str, object]


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None
    usage: Any = None


_MESSAGE = msgspec.json.Decoder(_Message)


def chat_answer(
    body: bytes,
    *,
    model: str,
    created: int,
    request_id: str,
    extra_usage: Mapping[str, object] | None,
    estimate: Usage | None = None,
) -> bytes:
    """A message as a chat completion. Blocks of server tools cannot occur: chat cannot ask."""
    try:
        answer = decode_said(_MESSAGE, body)
    except msgspec.DecodeError as error:
        raise CannotTranslate(f"The upstream's answer is no message: {error}", param="") from error
    usage, extra = _counted(read_usage(Surface.MESSAGES, answer.usage), estimate, extra_usage)
    message: dict[str, object] = {"role": "assistant", "content": None, "refusal": None}
    calls = [_chat_call(block) for block in answer.content if block.type == "tool_use"]
    texts = [block.text or "" for block in answer.content if block.type == "text"]
    if texts or not calls:
        message["content"] = "".join(texts)
    if answer.stop_reason == "refusal" and answer.stop_details is not None:
        message["refusal"] = answer.stop_details.explanation
    thoughts = [block for block in answer.content if block.type.endswith("thinking")]
    if thought := "".join(block.thinking or "" for block in thoughts):
        message["reasoning_content"] = thought
    if details := _details(thoughts):
        message["reasoning_details"] = details
    if calls:
        message["tool_calls"] = calls
    choice: dict[str, object] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(answer.stop_reason or "end_turn"),
    }
    if answer.stop_sequence is not None:
        choice["stop_reason"] = answer.stop_sequence
    out: dict[str, object] = {
        "id": answer.id or request_id,
        "object": "chat.completion",
        "created": created,
        "model": answer.model or model,
        "choices": [choice],
        "usage": chat_usage(usage, extra),
    }
    tier = chat_tier(answer.usage.get("service_tier")) if isinstance(answer.usage, dict) else None
    if tier is not None:
        out["service_tier"] = tier
    return encode_said(out)


def _counted(
    said: Usage | None, estimate: Usage | None, extra: Mapping[str, object] | None
) -> tuple[Usage, Mapping[str, object] | None]:
    """The upstream's count; else our estimate, marked as one; else nothing known."""
    if said is not None or estimate is None:
        return said or Usage(), extra
    return estimate, {**(extra or {}), "is_estimated": True}


def _chat_call(block: _Block) -> Block:
    function = {"name": block.name or "", "arguments": input_to_arguments(block.input)}
    return {"id": block.id or "", "type": "function", "function": function}


def _details(thoughts: list[_Block]) -> list[Block]:
    """What a client must send back for the signatures to hold."""
    details: list[Block] = []
    for index, block in enumerate(thoughts):
        if block.type == "redacted_thinking":
            kind: Block = {"type": "reasoning.encrypted", "data": block.data or ""}
        elif block.signature and len(block.thinking or "") <= THOUGHT_CHARS_MAX:
            kind = {
                "type": "reasoning.text",
                "text": block.thinking or "",
                "signature": block.signature,
            }
        else:
            continue
        details.append({**kind, "format": SIGNATURE_FORMAT, "index": index})
    return details


def messages_answer(
    body: bytes,
    *,
    model: str,
    request_id: str,
    extra_usage: Mapping[str, object] | None,
    estimate: Usage | None = None,
) -> bytes:
    """A chat completion's first choice as a message."""
    try:
        answer = decode_answer(body)
    except msgspec.DecodeError as error:
        raise CannotTranslate(
            f"The upstream's answer is no chat completion: {error}", param=""
        ) from error
    choice = first_choice(answer)
    if choice is None or choice.message is None:
        raise CannotTranslate("The upstream's chat completion holds no message", param="choices")
    usage, extra = _counted(read_usage(Surface.CHAT, answer.usage), estimate, extra_usage)
    answer_id = text(answer.id) or request_id
    blocks = _blocks(choice.message, answer_id)
    reason = stop_reason(
        text(choice.finish_reason),
        has_tools=any(block["type"] == "tool_use" for block in blocks),
        is_refusal=bool(text(choice.message.refusal)),
        stop_sequence=choice.stop_reason,
    )
    return encode_said(
        {
            "id": answer_id,
            "type": "message",
            "role": "assistant",
            "model": text(answer.model) or model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": choice.stop_reason if reason == "stop_sequence" else None,
            "usage": messages_usage(usage, extra),
        }
    )


def _blocks(said: ChatSaid, answer_id: str) -> list[Block]:
    """Thinking first, then text, then tool calls, as a stream would bring them."""
    thought, visible = content_texts(said)
    details = signed_details(said)
    blocks = _thinking_blocks(
        text(said.reasoning_content) or text(said.reasoning) or thought, details
    )
    if said_text := visible + text(said.refusal):
        blocks.append({"type": "text", "text": said_text})
    for ordinal, call in enumerate(said.tool_calls or ()):
        blocks.append(
            {
                "type": "tool_use",
                "id": tool_id(call.id, answer_id, ordinal),
                "name": text(call.function.name) if call.function is not None else "",
                "input": arguments_to_input(arguments_text(call.function)),
            }
        )
    return blocks


def _thinking_blocks(thought: str, details: list[dict[str, object]]) -> list[Block]:
    """From the details where any is signed, else from the one text."""
    signed: list[Block] = []
    for detail in details:
        if detail.get("type") == "reasoning.encrypted" and text(detail.get("data")):
            signed.append({"type": "redacted_thinking", "data": text(detail.get("data"))})
        elif text(detail.get("signature")):
            signed.append(
                {
                    "type": "thinking",
                    "thinking": text(detail.get("text")),
                    "signature": text(detail.get("signature")),
                }
            )
    if signed:
        return signed
    thought = thought or "".join(text(detail.get("text")) for detail in details)
    return [{"type": "thinking", "thinking": thought, "signature": ""}] if thought else []
