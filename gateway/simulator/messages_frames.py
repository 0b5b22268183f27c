"""Anthropic messages as the simulated provider writes them, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.simulator.answers import Choice, Event, Kind, Segment, events
from gateway.simulator.framing import Frame, Reply, counted, encode, named_frame

_STOP = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def whole(reply: Reply) -> bytes:
    choice = reply.answer.choices[0]
    content = [_block(segment) for segment in choice.segments]
    usage = _usage(reply, reply.answer.output + reply.answer.reasoning, reply.answer.reasoning)
    return encode({**_message(reply), "content": content, **_end(choice), "usage": usage})


def stream(reply: Reply) -> Iterator[Frame]:
    """message_start, ping, one block after the other, message_delta with usage, message_stop."""
    choice = reply.answer.choices[0]
    start = {**_message(reply), "content": [], "stop_reason": None, "stop_sequence": None}
    # The real API too says one output token here and the true count only in message_delta.
    start["usage"] = _usage(reply, 1, 0)
    yield Frame(named_frame("message_start", {"type": "message_start", "message": start}))
    yield Frame(named_frame("ping", {"type": "ping"}))
    reasoning = 0
    for event in events(reply.answer, reply.tokens_per_event):
        segment = choice.segments[event.segment]
        if event.kind is Kind.REASONING:
            reasoning += len(event.tokens)
        yield counted(_event_bytes(event, segment), event.kind, len(event.tokens))
    output = reply.answer.output + reasoning
    delta = {
        "type": "message_delta",
        "delta": _end(choice),
        "usage": _usage(reply, output, reasoning),
    }
    yield Frame(named_frame("message_delta", delta))
    yield Frame(named_frame("message_stop", {"type": "message_stop"}))


def _message(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
    }


def _end(choice: Choice) -> dict[str, Any]:
    return {
        "stop_reason": _STOP[choice.finish],
        "stop_sequence": choice.stop_sequence or None,
    }


def _usage(reply: Reply, output_tokens: int, reasoning: int) -> dict[str, Any]:
    prompt = reply.prompt
    return {
        "input_tokens": prompt.input,
        "cache_read_input_tokens": prompt.cached_read,
        "cache_creation_input_tokens": prompt.cache_write_5m + prompt.cache_write_1h,
        "cache_creation": {
            "ephemeral_5m_input_tokens": prompt.cache_write_5m,
            "ephemeral_1h_input_tokens": prompt.cache_write_1h,
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning},
        "service_tier": reply.service_tier,
    }


def _signature(segment: Segment) -> str:
    return f"simulated-{len(segment.tokens)}"


def _block(segment: Segment) -> dict[str, Any]:
    if segment.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": segment.text, "signature": _signature(segment)}
    if segment.kind is Kind.TOOL:
        return {
            "type": "tool_use",
            "id": f"toolu_{segment.call_id}",
            "name": segment.tool_name,
            "input": _parsed(segment.text),
        }
    return {"type": "text", "text": segment.text, "citations": None}


def _parsed(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return {}  # cut short by max_tokens; the real API also gives what it has: nothing whole


def _empty_block(segment: Segment) -> dict[str, Any]:
    if segment.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    if segment.kind is Kind.TOOL:
        return {**_block(segment), "input": {}}
    return {"type": "text", "text": ""}


def _event_bytes(event: Event, segment: Segment) -> bytes:
    text = "".join(event.tokens)
    delta = {
        Kind.REASONING: {"type": "thinking_delta", "thinking": text},
        Kind.TOOL: {"type": "input_json_delta", "partial_json": text},
        Kind.TEXT: {"type": "text_delta", "text": text},
    }[event.kind]
    index = event.segment
    parts: list[bytes] = []
    if event.is_first:
        block = _empty_block(segment)
        payload = {"type": "content_block_start", "index": index, "content_block": block}
        parts.append(named_frame("content_block_start", payload))
    parts.append(_block_delta(index, delta))
    if event.is_last:
        if segment.kind is Kind.REASONING:
            signature = {"type": "signature_delta", "signature": _signature(segment)}
            parts.append(_block_delta(index, signature))
        stop = {"type": "content_block_stop", "index": index}
        parts.append(named_frame("content_block_stop", stop))
    return b"".join(parts)


def _block_delta(index: int, delta: dict[str, str]) -> bytes:
    payload = {"type": "content_block_delta", "index": index, "delta": delta}
    return named_frame("content_block_delta", payload)
