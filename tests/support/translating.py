"""Requests put through the translators, their results checked by the SDKs' types."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.pieces import Surface
from gateway.wire.readers import stream_reader
from gateway.wire.requests import parse_request
from gateway.wire.sse import SseDecoder
from gateway.wire.translate import CannotTranslate, Target, translate_request
from gateway.wire.translate.streams import ChatFromMessages, MessagesFromChat
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


# --- streams -----------------------------------------------------------------------------------


def sse(*payloads: object, event_names: bool = False, done: bool = False) -> bytes:
    """Events as one stream; a payload may be bytes to be sent as they are."""
    frames = []
    for payload in payloads:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        name = b""
        if event_names and isinstance(payload, dict):
            name = b"event: " + payload["type"].encode() + b"\n"
        frames.append(name + b"data: " + data + b"\n\n")
    if done:
        frames.append(b"data: [DONE]\n\n")
    return b"".join(frames)


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any
) -> dict[str, Any]:
    """One chat chunk."""
    choice = {"index": 0, "delta": delta if delta is not None else {}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "up-1",
        "choices": [choice],
        **fields,
    }


def usage_chunk(**usage: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **usage}
    return {**chunk(), "choices": [], "usage": counts}


def fragment(index: int | None, arguments: str, *, call_id: str = "", name: str = "") -> Any:
    """One entry of a delta's `tool_calls`."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    entry: dict[str, Any] = {"function": function}
    if index is not None:
        entry["index"] = index
    if call_id:
        entry |= {"id": call_id, "type": "function"}
    return entry


def tools(*entries: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(entries)})


def translated(
    stream: bytes,
    upstream: Surface,
    *,
    include_usage: bool = True,
    extra: dict[str, object] | None = None,
    split: int = 0,
) -> bytes:
    """What the client gets of an upstream's stream; fed in pieces of `split` bytes, 0 = whole."""
    make = ChatFromMessages if upstream is Surface.MESSAGES else MessagesFromChat
    writer = make(include_usage=include_usage, model="public", request_id="req-1", created=7)
    reader = stream_reader(upstream)
    step = split or len(stream) or 1
    pieces = [p for i in range(0, len(stream), step) for p in reader.feed(stream[i : i + step])]
    pieces += reader.close()
    out = b""
    for piece in pieces:
        if piece.error is not None:
            return out + writer.error(piece.error, "req-1") + writer.finish(extra)
        out += writer.write(piece)
    return out + writer.finish(extra)


def events_of(stream: bytes) -> list[tuple[str, bytes]]:
    decoder = SseDecoder()
    return [(event.event, bytes(event.data)) for event in decoder.feed(stream)]


def heard_as_chat(
    stream: bytes, *, include_usage: bool = True, has_usage: bool = True
) -> dict[str, Any]:
    """The completion a client accumulates, after every rule of a chat stream was checked."""
    events = events_of(stream)

    assert events[-1] == ("", b"[DONE]")
    assert all(name == "" and data != b"[DONE]" for name, data in events[:-1])
    chunks = [json.loads(data) for _, data in events[:-1]]
    for _, data in events[:-1]:
        sdk_types.chat_chunk(data)
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1

    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    finish = stop = usage = None
    for place, one in enumerate(chunks):
        if not one["choices"]:
            assert include_usage
            assert place == len(chunks) - 1
            assert finish is not None
            usage = one["usage"]
            continue
        assert one.get("usage", 0) is None if include_usage else "usage" not in one
        (choice,) = one["choices"]
        assert finish is None, "nothing may follow the finish frame but usage"
        delta = choice["delta"]
        assert ("role" in delta) is (place == 0)
        finish, stop = choice["finish_reason"], choice.get("stop_reason")
        _hear(message, delta)
    assert (usage is not None) is (include_usage and has_usage)
    return {"message": message, "finish": finish, "stop": stop, "usage": usage, **_head(chunks[0])}


def _head(one: dict[str, Any]) -> dict[str, Any]:
    return {"id": one["id"], "model": one["model"], "created": one["created"]}


def _hear(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("content", "reasoning_content", "refusal"):
        if name in delta:
            message[name] = message.get(name, "") + delta[name]
    message.setdefault("reasoning_details", []).extend(delta.get("reasoning_details", []))
    for entry in delta.get("tool_calls", []):
        calls = message["tool_calls"]
        if entry["index"] == len(calls):
            assert entry["id"]
            assert entry["function"]["name"]
            calls.append({"id": entry["id"], **entry["function"]})
        else:
            assert entry.keys() == {"index", "function"}
            calls[entry["index"]]["arguments"] += entry["function"]["arguments"]


def heard_as_messages(stream: bytes) -> dict[str, Any]:
    """The message a client accumulates, after every rule of a messages stream was checked."""
    events = events_of(stream)
    payloads = [json.loads(data) for _, data in events]
    assert [name for name, _ in events] == [p["type"] for p in payloads]
    for _, data in events:
        sdk_types.messages_event(data)
    kinds = [p["type"] for p in payloads]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]

    message: dict[str, Any] = payloads[0]["message"]
    is_open = False
    for event in payloads[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            is_open = True
            message["content"].append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_stop":
            assert is_open
            assert event["index"] == len(message["content"]) - 1
            is_open = False
        else:
            assert is_open
            assert event["index"] == len(message["content"]) - 1
            _hear_block(message["content"][-1], event["delta"])
    assert not is_open
    for block in message["content"]:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written or "{}")
    message |= payloads[-2]["delta"]
    message["usage"] = payloads[-2]["usage"]
    return message


def _hear_block(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kind = {
        "text_delta": ("text", "text"),
        "thinking_delta": ("thinking", "thinking"),
        "signature_delta": ("thinking", "signature"),
        "input_json_delta": ("tool_use", "json"),
    }
    block_kind, name = kind[delta["type"]]
    assert block["type"] == block_kind, "a delta of another kind than its block"
    block[name] += delta["partial_json" if name == "json" else name]
