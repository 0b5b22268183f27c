"""What an upstream says in each dialect, frame by frame, as a provider of that dialect would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Tokens:
    """The truth about one answer's usage; the other buckets are inside prompt and completion."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


USED = Tokens(prompt=1_103, completion=47)


class Voice(Protocol):
    """Frames of one answer, in order: opening, text…, finish, end."""

    def opening(self, usage: Tokens = USED) -> bytes: ...
    def text(self, said: str) -> bytes: ...
    def finish(self, texts: Sequence[str], usage: Tokens | None = USED) -> bytes: ...
    def end(self) -> bytes: ...
    def error(self, message: str, kind: str, code: str) -> bytes: ...
    def plain(self, text: str, usage: Tokens | None = USED) -> dict[str, Any]: ...


def data(value: Any, event: str = "") -> bytes:
    """One event; JSON with its spaces, as Python servers send it."""
    said = json.dumps(value, ensure_ascii=False).encode()
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + said + b"\n\n"


DONE = b"data: [DONE]\n\n"


class ChatVoice:
    """OpenAI chat completions."""

    def frame(self, choices: list[Any], **more: Any) -> bytes:
        return data(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m-1",
                "choices": choices,
                **more,
            }
        )

    def delta(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        return self.frame([{"index": 0, "delta": delta, "finish_reason": finish}], **more)

    def opening(self, usage: Tokens = USED) -> bytes:
        return self.delta({"role": "assistant", "content": ""})

    def text(self, said: str) -> bytes:
        return self.delta({"content": said})

    def stop(self, reason: str = "stop") -> bytes:
        return self.delta({}, reason)

    def usage(self, usage: Tokens) -> bytes:
        return self.frame([], usage=chat_usage(usage))

    def finish(self, texts: Sequence[str], usage: Tokens | None = USED) -> bytes:
        return self.stop() + (self.usage(usage) if usage is not None else b"")

    def end(self) -> bytes:
        return DONE

    def error(self, message: str, kind: str, code: str) -> bytes:
        return data({"error": {"message": message, "type": kind, "code": code, "param": None}})

    def plain(self, text: str, usage: Tokens | None = USED) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m-1",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            **({"usage": chat_usage(usage)} if usage is not None else {}),
        }


class CompletionsVoice(ChatVoice):
    """OpenAI's legacy completions: text without roles."""

    def frame(self, choices: list[Any], **more: Any) -> bytes:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m-1"}
        return data({**head, "choices": choices, **more})

    def opening(self, usage: Tokens = USED) -> bytes:
        return self.text("")

    def text(self, said: str) -> bytes:
        return self.frame([{"index": 0, "text": said, "finish_reason": None}])

    def stop(self, reason: str = "stop") -> bytes:
        return self.frame([{"index": 0, "text": "", "finish_reason": reason}])

    def plain(self, text: str, usage: Tokens | None = USED) -> dict[str, Any]:
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": "m-1",
            "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
            **({"usage": chat_usage(usage)} if usage is not None else {}),
        }


class ResponsesVoice:
    """OpenAI Responses; its last event is finish and end mark in one."""

    def __init__(self) -> None:
        self._sequence = 0

    def event(self, name: str, **members: Any) -> bytes:
        said = {"type": name, "sequence_number": self._sequence, **members}
        self._sequence += 1
        return data(said, name)

    def opening(self, usage: Tokens = USED) -> bytes:
        item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        return (
            self.event("response.created", response=response_object("in_progress"))
            + self.event("response.in_progress", response=response_object("in_progress"))
            + self.event("response.output_item.added", output_index=0, item=item)
        )

    def text(self, said: str) -> bytes:
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
        return self.event("response.output_text.delta", delta=said, **place)

    def finish(self, texts: Sequence[str], usage: Tokens | None = USED) -> bytes:
        response = response_object("completed", "".join(texts), usage)
        return self.event("response.completed", response=response)

    def end(self) -> bytes:
        return b""

    def error(self, message: str, kind: str, code: str) -> bytes:
        return self.event("error", message=message, code=code, param=None)

    def plain(self, text: str, usage: Tokens | None = USED) -> dict[str, Any]:
        return response_object("completed", text, usage)


class MessagesVoice:
    """Anthropic messages, one text block."""

    def opening(self, usage: Tokens = USED) -> bytes:
        start = self.plain("", usage)
        start.update(content=[], stop_reason=None)
        start["usage"]["output_tokens"] = 1
        block = {"type": "text", "text": ""}
        return self.event("message_start", message=start) + self.event(
            "content_block_start", index=0, content_block=block
        )

    def event(self, name: str, **members: Any) -> bytes:
        return data({"type": name, **members}, name)

    def text(self, said: str) -> bytes:
        delta = {"type": "text_delta", "text": said}
        return self.event("content_block_delta", index=0, delta=delta)

    def finish(self, texts: Sequence[str], usage: Tokens | None = USED) -> bytes:
        counted = {"usage": {"output_tokens": usage.completion}} if usage is not None else {}
        delta = {"stop_reason": "end_turn", "stop_sequence": None}
        stop = self.event("content_block_stop", index=0)
        return stop + self.event("message_delta", delta=delta, **counted)

    def end(self) -> bytes:
        return self.event("message_stop")

    def error(self, message: str, kind: str, code: str) -> bytes:
        return self.event("error", error={"type": kind, "message": message})

    def plain(self, text: str, usage: Tokens | None = USED) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m-1",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            **({"usage": messages_usage(usage)} if usage is not None else {}),
        }


def chat_usage(usage: Tokens) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def messages_usage(usage: Tokens) -> dict[str, Any]:
    """Anthropic's prompt tokens exclude the cached ones."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    }


def response_object(status: str, text: str = "", usage: Tokens | None = None) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": content}  # fmt: skip
    counted = None
    if usage is not None:
        counted = {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.completion,
        }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m-1",
        "status": status,
        "output": [item] if text else [],
        "usage": counted,
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
