"""OpenAI responses as the simulated provider writes them, streamed and whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.simulator.answers import Event, Kind, Segment, events
from gateway.simulator.framing import Frame, Reply, counted, encode, named_frame


def whole(reply: Reply) -> bytes:
    return encode(_response(reply, is_done=True))


def stream(reply: Reply) -> Iterator[Frame]:
    """created, in_progress, each item with its parts and deltas, completed or incomplete."""
    choice = reply.answer.choices[0]
    script = _Script(reply)
    opening = _response(reply, is_done=False)
    yield Frame(script.frame("response.created", response=opening))
    yield Frame(script.frame("response.in_progress", response=opening))
    for event in events(reply.answer, reply.tokens_per_event):
        segment = choice.segments[event.segment]
        parts = script.opened(event, segment) if event.is_first else []
        parts.append(script.delta(event, segment))
        if event.is_last:
            parts += script.closed(event.segment, segment)
        yield counted(b"".join(parts), event.kind, len(event.tokens))
    closing = _response(reply, is_done=True)
    yield Frame(script.frame(f"response.{closing['status']}", response=closing))


def _response(reply: Reply, *, is_done: bool) -> dict[str, Any]:
    choice = reply.answer.choices[0]
    is_cut = choice.finish == "length"
    status = ("incomplete" if is_cut else "completed") if is_done else "in_progress"
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created_unix_s,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_done and is_cut else None,
        "instructions": None,
        "max_output_tokens": reply.ask.max_tokens,
        "metadata": {},
        "model": reply.model,
        "output": [
            _item(reply, place, segment, is_done=True)
            for place, segment in enumerate(choice.segments)
        ]
        if is_done
        else [],
        "parallel_tool_calls": reply.ask.is_parallel,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": _usage(reply) if is_done else None,
    }


def _usage(reply: Reply) -> dict[str, Any]:
    output = reply.answer.output + reply.answer.reasoning
    return {
        "input_tokens": reply.prompt.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.prompt.cached_read},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reply.answer.reasoning},
        "total_tokens": reply.prompt.prompt_tokens + output,
    }


def _item_id(reply: Reply, place: int, segment: Segment) -> str:
    prefix = {Kind.REASONING: "rs", Kind.TEXT: "msg", Kind.TOOL: "fc"}[segment.kind]
    return f"{prefix}_{reply.id}_{place}"


def _item(reply: Reply, place: int, segment: Segment, *, is_done: bool) -> dict[str, Any]:
    item: dict[str, Any] = {"id": _item_id(reply, place, segment)}
    status = "completed" if is_done else "in_progress"
    if segment.kind is Kind.REASONING:
        summary = [{"type": "summary_text", "text": segment.text}] if is_done else []
        return {**item, "type": "reasoning", "summary": summary}
    if segment.kind is Kind.TOOL:
        return {
            **item,
            "type": "function_call",
            "status": status,
            "call_id": f"call_{segment.call_id}",
            "name": segment.tool_name,
            "arguments": segment.text if is_done else "",
        }
    content = [_text_part(segment.text)] if is_done else []
    return {**item, "type": "message", "status": status, "role": "assistant", "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class _Script:
    """Numbers the events of one stream and knows which name each kind of item uses."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._sequence_number = 0

    def frame(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence_number, **fields}
        self._sequence_number += 1
        return named_frame(kind, payload)

    def _place(self, place: int, segment: Segment) -> dict[str, Any]:
        where: dict[str, Any] = {
            "item_id": _item_id(self._reply, place, segment),
            "output_index": place,
        }
        if segment.kind is Kind.REASONING:
            where["summary_index"] = 0
        if segment.kind is Kind.TEXT:
            where["content_index"] = 0
        return where

    def opened(self, event: Event, segment: Segment) -> list[bytes]:
        place = event.segment
        item = _item(self._reply, place, segment, is_done=False)
        parts = [self.frame("response.output_item.added", output_index=place, item=item)]
        where = self._place(place, segment)
        if segment.kind is Kind.REASONING:
            part = {"type": "summary_text", "text": ""}
            parts.append(self.frame("response.reasoning_summary_part.added", **where, part=part))
        if segment.kind is Kind.TEXT:
            parts.append(self.frame("response.content_part.added", **where, part=_text_part("")))
        return parts

    def delta(self, event: Event, segment: Segment) -> bytes:
        where = self._place(event.segment, segment)
        text = "".join(event.tokens)
        if segment.kind is Kind.REASONING:
            return self.frame("response.reasoning_summary_text.delta", **where, delta=text)
        if segment.kind is Kind.TOOL:
            return self.frame("response.function_call_arguments.delta", **where, delta=text)
        return self.frame("response.output_text.delta", **where, delta=text, logprobs=[])

    def closed(self, place: int, segment: Segment) -> list[bytes]:
        where = self._place(place, segment)
        text = segment.text
        parts: list[bytes] = []
        if segment.kind is Kind.REASONING:
            parts.append(self.frame("response.reasoning_summary_text.done", **where, text=text))
            part = {"type": "summary_text", "text": text}
            parts.append(self.frame("response.reasoning_summary_part.done", **where, part=part))
        elif segment.kind is Kind.TOOL:
            name = segment.tool_name
            done = "response.function_call_arguments.done"
            parts.append(self.frame(done, **where, name=name, arguments=text))
        else:
            parts.append(self.frame("response.output_text.done", **where, text=text, logprobs=[]))
            part = _text_part(text)
            parts.append(self.frame("response.content_part.done", **where, part=part))
        item = _item(self._reply, place, segment, is_done=True)
        parts.append(self.frame("response.output_item.done", output_index=place, item=item))
        return parts
