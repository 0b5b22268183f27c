"""What a client of each dialect hears: a strict reading, written apart from the gateway's own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tests.support.voices import Tokens


@dataclass
class Heard:
    """One answer as its client got it. `num_ends`: how often it was told that all is well."""

    surface: str
    status: int
    headers: dict[str, str]
    body: bytes
    texts: list[str] = field(default_factory=list)
    reasoning: str = ""
    tools: dict[int, dict[str, str]] = field(default_factory=dict)
    finishes: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    beside: list[dict[str, Any]] = field(default_factory=list)  # usage in frames with choices
    error: dict[str, Any] | None = None
    num_ends: int = 0
    num_comments: int = 0
    frames: list[Any] = field(default_factory=list)  # decoded, in order, without end mark

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def request_id(self) -> str:
        return self.headers["x-looprouter-request-id"]

    @property
    def tokens(self) -> Tokens | None:
        """The usage told to the client; cumulative ones merged as its SDK does."""
        if not self.usages:
            return None
        merged: dict[str, Any] = {}
        for usage in self.usages:
            merged.update(usage)
        if self.surface == "messages":
            cached = merged.get("cache_read_input_tokens") or 0
            written = merged.get("cache_creation_input_tokens") or 0
            prompt = merged["input_tokens"] + cached + written
            return Tokens(prompt, merged["output_tokens"], cached)
        if self.surface == "responses":
            inner, outer = merged["input_tokens_details"], merged["output_tokens_details"]
            left, right = merged["input_tokens"], merged["output_tokens"]
        else:
            inner = merged.get("prompt_tokens_details") or {}
            outer = merged.get("completion_tokens_details") or {}
            left, right = merged["prompt_tokens"], merged["completion_tokens"]
        return Tokens(
            left, right, inner.get("cached_tokens") or 0, outer.get("reasoning_tokens") or 0
        )

    @property
    def cost_nanos(self) -> int | None:
        """The exact cost in the usage frame."""
        for usage in self.usages:
            if "cost" in usage:
                return int(Decimal(usage["cost"]) * 1_000_000_000)
        return None


def hear(surface: str, status: int, headers: dict[str, str], body: bytes) -> Heard:
    """Read a whole answer; a breach of its dialect's grammar is an AssertionError."""
    heard = Heard(surface, status, headers, body)
    if not headers.get("content-type", "").startswith("text/event-stream"):
        _hear_plain(heard)
        return heard
    assert status == 200
    for name, said in events(heard):
        assert heard.error is None or surface == "responses", f"{name} after the error"
        assert heard.num_ends == 0, f"{name!r} {said!r} after the end mark"
        _STREAMS[surface](heard, name, said)
    return heard


def events(heard: Heard) -> list[tuple[str, str]]:
    """(event name, data), of frames in the one normal form that we promise."""
    body = heard.body.decode("utf-8")  # strict: what we send is always UTF-8
    assert not body or body.endswith("\n\n"), f"an unfinished event: {body[-80:]!r}"
    found = []
    for block in body.split("\n\n")[:-1]:
        if block.startswith(":"):
            heard.num_comments += 1
            continue
        lines = block.split("\n")
        name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
        assert len(lines) == 1, block[:200]
        assert lines[0].startswith("data: "), block[:200]
        found.append((name, lines[0].removeprefix("data: ")))
    return found


def decode(said: str) -> Any:
    """JSON with numbers as they were written."""
    return json.loads(said, parse_float=Decimal)


def _hear_chunks(heard: Heard, name: str, said: str) -> None:
    assert name == "", "chat streams name no events"
    if said == "[DONE]":
        heard.num_ends += 1
        return
    frame = decode(said)
    heard.frames.append(frame)
    if "error" in frame:
        heard.error = frame["error"]
        return
    for choice in frame["choices"]:
        delta = choice.get("delta") or {}
        heard.texts.append(delta.get("content") or choice.get("text") or "")
        heard.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or ():
            known = heard.tools.setdefault(call["index"], {"name": "", "arguments": ""})
            known["name"] += call["function"].get("name") or ""
            known["arguments"] += call["function"].get("arguments") or ""
        if choice.get("finish_reason"):
            heard.finishes.append(choice["finish_reason"])
    if frame.get("usage"):
        (heard.beside if frame["choices"] else heard.usages).append(frame["usage"])


def _hear_responses(heard: Heard, name: str, said: str) -> None:
    frame = decode(said)
    assert frame["type"] == name
    heard.frames.append(frame)
    if name == "response.output_text.delta":
        heard.texts.append(frame["delta"])
    elif name == "response.function_call_arguments.delta":
        known = heard.tools.setdefault(frame["output_index"], {"name": "", "arguments": ""})
        known["arguments"] += frame["delta"]
    elif name == "error":
        heard.error = frame["error"]
    elif name == "response.failed":
        assert heard.error is not None
        assert frame["response"]["status"] == "failed"
    elif name == "response.completed":
        heard.num_ends += 1
        heard.finishes.append(frame["response"]["status"])
        if frame["response"]["usage"]:
            heard.usages.append(frame["response"]["usage"])


def _hear_messages(heard: Heard, name: str, said: str) -> None:
    frame = decode(said)
    assert frame["type"] == name
    heard.frames.append(frame)
    if name == "message_start":
        heard.usages.append(frame["message"]["usage"])
    elif name == "content_block_start":
        block = frame["content_block"]
        if block["type"] == "tool_use":
            heard.tools[frame["index"]] = {"name": block["name"], "arguments": ""}
    elif name == "content_block_delta":
        _hear_block_delta(heard, frame["index"], frame["delta"])
    elif name == "message_delta":
        if frame["delta"].get("stop_reason"):
            heard.finishes.append(frame["delta"]["stop_reason"])
        if frame.get("usage"):
            heard.usages.append(frame["usage"])
    elif name == "error":
        heard.error = frame["error"]
    elif name == "message_stop":
        heard.num_ends += 1


def _hear_block_delta(heard: Heard, index: int, delta: dict[str, Any]) -> None:
    """A delta must be of its block's kind: Claude Code rejects anything else."""
    begun = [f for f in heard.frames if f["type"] == "content_block_start" and f["index"] == index]
    assert len(begun) == 1, "a delta without its block"
    kind = begun[0]["content_block"]["type"]
    if delta["type"] == "text_delta":
        assert kind == "text"
        heard.texts.append(delta["text"])
    elif delta["type"] in ("thinking_delta", "signature_delta"):
        assert kind == "thinking"
        heard.reasoning += delta.get("thinking", "")
    elif delta["type"] == "input_json_delta":
        assert kind == "tool_use"
        heard.tools[index]["arguments"] += delta["partial_json"]


_STREAMS: dict[str, Any] = {
    "chat": _hear_chunks,
    "completions": _hear_chunks,
    "responses": _hear_responses,
    "messages": _hear_messages,
}


def _hear_plain(heard: Heard) -> None:
    said = decode(heard.body.decode("utf-8"))
    heard.frames.append(said)
    # A good Responses object has `error: null`.
    if heard.status >= 400 or said.get("error"):
        heard.error = said["error"]
        assert (said.get("type") == "error") == (heard.surface == "messages")
        return
    for choice in said.get("choices", ()):
        message = choice.get("message") or {}
        heard.texts.append(message.get("content") or choice.get("text") or "")
        heard.finishes.append(choice["finish_reason"])
    for item in said.get("output", ()):
        heard.texts += [part["text"] for part in item["content"]]
    for block in said.get("content", ()):
        heard.texts.append(block.get("text") or "")
    if said.get("usage"):
        heard.usages.append(said["usage"])
