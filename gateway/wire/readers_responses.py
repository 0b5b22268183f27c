"""Events of OpenAI responses streams. Payloads go on as received."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.errors import error_of
from gateway.wire.pieces import Piece, PieceKind, WireError
from gateway.wire.reading import (
    decode_event,
    error_piece,
    malformed_piece,
    text_len,
    tier_text,
)
from gateway.wire.usage_read import openai_usage, reported_cost_nanos


class _Event(msgspec.Struct):
    type: Any = ""
    delta: Any = None
    # Created events repeat instructions and tools: stepped over, read only in the last event.
    response: msgspec.Raw = msgspec.Raw(b"")
    # What `.done` events repeat; it counts only where a server sends no deltas.
    text: Any = None
    refusal: Any = None
    arguments: Any = None
    error: Any = None


class _Incomplete(msgspec.Struct):
    reason: Any = None


class _Response(msgspec.Struct):
    usage: Any = None
    service_tier: Any = None
    error: Any = None
    output: list[msgspec.Raw] | None = None
    incomplete_details: _Incomplete | None = None


_EVENT = msgspec.json.Decoder(_Event)
_RESPONSE = msgspec.json.Decoder(_Response)

_VISIBLE_DELTAS = (
    "response.output_text.delta",
    "response.refusal.delta",
    "response.audio.transcript.delta",
    "response.output_audio_transcript.delta",
)
_TERMINAL = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
}


class ResponseEvents:
    """The state of one stream (readers.Events). Only its last event ends it, so EOF never does."""

    def __init__(self) -> None:
        self.faults = 0
        self.num_generated = 0
        self.is_ended = False
        self.is_finished = False

    def read(self, event: str, data: bytes, out: list[Piece]) -> None:
        said = decode_event(_EVENT, data)
        if said is None:
            self._read_bare(event, data.strip(), out)
            return
        name = said.type if isinstance(said.type, str) and said.type else event
        if name.endswith(".delta"):
            out.append(self._delta(name, said.delta, data))
        elif name in _TERMINAL:
            self._complete(name, said, data, out)
        elif name in ("error", "response.failed") or event == "error" or said.error:
            self.is_ended = True
            out.append(self._error(name, said, data))
        elif self.num_generated == 0 and name.endswith(".done"):
            out.append(self._done_without_delta(name, said, data))
        elif name.endswith(".partial_image"):
            self.num_generated += 1
            out.append(Piece(kind=PieceKind.GENERATED, event=name, payload=data))
        else:  # created, in_progress, output_item.added, content_part.added, keepalive …
            out.append(Piece(kind=PieceKind.META, event=name, payload=data))

    def _read_bare(self, event: str, data: bytes, out: list[Piece]) -> None:
        """No JSON object: nothing, or an end mark that this dialect does not have."""
        if data and data != b"[DONE]":
            self.is_ended = True
            out.append(malformed_piece(event, data))
        elif data:
            self.faults += 1

    def _delta(self, name: str, delta: object, data: bytes) -> Piece:
        if not delta:
            return Piece(kind=PieceKind.META, event=name, payload=data)
        length = text_len(delta)
        is_visible = name in _VISIBLE_DELTAS
        is_reasoning = "reasoning" in name
        is_sound = name.endswith("audio.delta")
        self.num_generated += 1
        return Piece(
            kind=PieceKind.GENERATED,
            event=name,
            payload=data,
            visible_chars=length if is_visible else 0,
            reasoning_chars=length if is_reasoning else 0,
            tool_chars=0 if is_visible or is_reasoning or is_sound else length,
        )

    def _done_without_delta(self, name: str, said: _Event, data: bytes) -> Piece:
        length = text_len(said.text) + text_len(said.refusal)
        tool = text_len(said.arguments)
        if length + tool == 0:
            return Piece(kind=PieceKind.META, event=name, payload=data)
        self.num_generated += 1
        is_reasoning = "reasoning" in name
        return Piece(
            kind=PieceKind.GENERATED,
            event=name,
            payload=data,
            visible_chars=0 if is_reasoning else length,
            reasoning_chars=length if is_reasoning else 0,
            tool_chars=tool,
        )

    def _complete(self, name: str, said: _Event, data: bytes, out: list[Piece]) -> None:
        response = decode_event(_RESPONSE, bytes(said.response)) or _Response()
        usage = openai_usage(response.usage)
        self.faults += usage is None and bool(response.usage)
        if self.num_generated == 0 and response.output:
            self.num_generated = 1  # all at once: it did answer
        details = response.incomplete_details
        reason = details.reason if details is not None else None
        self.is_finished = self.is_ended = True
        out.append(
            Piece(
                kind=PieceKind.FINISH,
                event=name,
                payload=data,
                finish=str(reason or _TERMINAL[name]),
                usage=usage,
                cost_nanos=reported_cost_nanos(response.usage),
                tier=tier_text(response.service_tier),
            )
        )
        out.append(Piece(kind=PieceKind.DONE))

    def _error(self, name: str, said: _Event, data: bytes) -> Piece:
        fallback = "the upstream ended the stream with an error"
        if not len(said.response):
            return error_piece(name, data, fallback=fallback)
        response = decode_event(_RESPONSE, bytes(said.response)) or _Response()
        error = error_of({"error": response.error}) if response.error else None
        return Piece(
            kind=PieceKind.ERROR,
            event=name,
            payload=data,
            error=error or WireError(message=fallback, type="server_error", code="upstream_error"),
            usage=openai_usage(response.usage),
        )
