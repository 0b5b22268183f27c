"""Chat and text completions as the simulated provider writes them, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.simulator.answers import Choice, Event, Kind, Segment, events
from gateway.simulator.framing import (
    FINGERPRINT,
    Frame,
    Reply,
    counted,
    data_frame,
    encode,
    logprob_of,
    openai_usage,
)
from gateway.wire.pieces import Surface

_DONE = b"data: [DONE]\n\n"
_FINISH = {"stop": "stop", "stop_sequence": "stop", "length": "length", "tool_calls": "tool_calls"}


def whole(reply: Reply) -> bytes:
    is_chat = reply.ask.surface is Surface.CHAT
    return encode(
        {
            **_head(reply, "chat.completion" if is_chat else "text_completion"),
            "choices": [
                _whole_chat(i, each, reply) if is_chat else _whole_text(i, each, reply)
                for i, each in enumerate(reply.answer.choices)
            ],
            "usage": openai_usage(reply.prompt, reply.answer.output, reply.answer.reasoning),
        }
    )


def stream(reply: Reply) -> Iterator[Frame]:
    """Role frames, deltas, finish frames, the usage frame if asked for, the end mark."""
    is_chat = reply.ask.surface is Surface.CHAT
    head = _head(reply, "chat.completion.chunk" if is_chat else "text_completion")
    asks_usage = reply.ask.include_usage
    every_event = reply.usage_every_event or reply.ask.continuous_usage
    output = reasoning = 0

    def frame(choice: dict[str, Any]) -> bytes:
        chunk = {**head, "choices": [choice]}
        if every_event:
            chunk["usage"] = openai_usage(reply.prompt, output, reasoning)
        elif asks_usage:
            chunk["usage"] = None
        return data_frame(chunk)

    if is_chat:
        for index in range(len(reply.answer.choices)):
            yield Frame(frame(_delta(index, {"role": "assistant", "content": ""})))
    elif reply.ask.echo:
        for index in range(len(reply.answer.choices)):
            yield Frame(frame(_text_choice(index, reply.ask.user_text)))
    for event in events(reply.answer, reply.tokens_per_event):
        num_tokens = len(event.tokens)
        if event.kind is Kind.REASONING:
            reasoning += num_tokens
        else:
            output += num_tokens
        choice = _chat_event(event, reply) if is_chat else _text_event(event, reply)
        yield counted(frame(choice), event.kind, num_tokens)
    for index, each in enumerate(reply.answer.choices):
        finish = _FINISH[each.finish]
        done = _delta(index, {}, finish) if is_chat else _text_choice(index, "", finish)
        yield Frame(frame(done))
    if asks_usage or every_event:
        usage = openai_usage(reply.prompt, output, reasoning)
        yield Frame(data_frame({**head, "choices": [], "usage": usage}))
    yield Frame(_DONE)


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if reply.ask.surface is Surface.CHAT else "cmpl"
    head = {
        "id": f"{prefix}-{reply.id}",
        "object": kind,
        "created": reply.created_unix_s,
        "model": reply.model,
        "system_fingerprint": FINGERPRINT,
    }
    if reply.ask.service_tier:
        head["service_tier"] = (
            "default" if reply.ask.service_tier == "auto" else (reply.ask.service_tier)
        )
    return head


def _delta(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _text_choice(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _chat_event(event: Event, reply: Reply) -> dict[str, Any]:
    text = "".join(event.tokens)
    if event.kind is Kind.TOOL:
        choice = reply.answer.choices[event.choice]
        segment = choice.segments[event.segment]
        place = choice.tools.index(segment)
        call: dict[str, Any] = {"index": place, "function": {"arguments": text}}
        if event.is_first:
            call = _tool_call(segment, text) | {"index": place}
        return _delta(event.choice, {"tool_calls": [call]})
    if event.kind is Kind.REASONING:
        return _delta(event.choice, {"reasoning_content": text})
    choice_json = _delta(event.choice, {"content": text})
    if reply.ask.logprobs is not None:
        choice_json["logprobs"] = _chat_logprobs(event.tokens, reply.ask.logprobs)
    return choice_json


def _text_event(event: Event, reply: Reply) -> dict[str, Any]:
    choice = _text_choice(event.choice, "".join(event.tokens))
    if reply.ask.logprobs is not None:
        choice["logprobs"] = _text_logprobs(event.tokens, 0)
    return choice


def _tool_call(segment: Segment, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{segment.call_id}",
        "type": "function",
        "function": {"name": segment.tool_name, "arguments": arguments},
    }


def _whole_chat(index: int, choice: Choice, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text if choice.text or not choice.tools else None,
        "refusal": None,
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tools:
        message["tool_calls"] = [_tool_call(each, each.text) for each in choice.tools]
    logprobs = None
    if reply.ask.logprobs is not None and not choice.tools:
        tokens = tuple(t for s in choice.segments if s.kind is Kind.TEXT for t in s.tokens)
        logprobs = _chat_logprobs(tokens, reply.ask.logprobs)
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": _FINISH[choice.finish],
    }


def _whole_text(index: int, choice: Choice, reply: Reply) -> dict[str, Any]:
    text = (reply.ask.user_text if reply.ask.echo else "") + choice.text
    whole_choice = _text_choice(index, text, _FINISH[choice.finish])
    if reply.ask.logprobs is not None:
        tokens = tuple(token for each in choice.segments for token in each.tokens)
        offset = len(reply.ask.user_text) if reply.ask.echo else 0
        whole_choice["logprobs"] = _text_logprobs(tokens, offset)
    return whole_choice


def _chat_logprobs(tokens: tuple[str, ...], num_top: int) -> dict[str, Any]:
    entries = []
    for token in tokens:
        entry = {"token": token, "logprob": logprob_of(token), "bytes": list(token.encode())}
        others = [
            {"token": f"{token}{i}", "logprob": logprob_of(token) - i, "bytes": None}
            for i in range(1, num_top)
        ]
        top = [dict(entry), *others] if num_top else []
        entries.append({**entry, "top_logprobs": top})
    return {"content": entries, "refusal": None}


def _text_logprobs(tokens: tuple[str, ...], offset: int) -> dict[str, Any]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    values = [logprob_of(token) for token in tokens]
    return {
        "tokens": list(tokens),
        "token_logprobs": values,
        "top_logprobs": [{token: value} for token, value in zip(tokens, values, strict=True)],
        "text_offset": offsets,
    }
