"""Events of Anthropic messages streams. Payloads go on as received."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.pieces import Piece, PieceKind
from gateway.wire.reading import (
    decode_event,
    error_piece,
    malformed_piece,
    text_len,
    tier_text,
    usage_tier,
)
from gateway.wire.usage import Usage
from gateway.wire.usage_read import anthropic_usage, reported_cost_nanos


class _Delta(msgspec.Struct):
    type: Any = ""
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Block(msgspec.Struct):
    type: Any = ""
    text: Any = None
    thinking: Any = None
    name: Any = None
    data: Any = None


class _Message(msgspec.Struct):
    usage: Any = None


class _Event(msgspec.Struct):
    type: Any = ""
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_Event)

# Deltas that sign or annotate what was generated; they are no token of their own.
_SILENT_DELTAS = ("signature_delta", "citations_delta")


class MessageEvents:
    """The state of one stream (readers.Events)."""

    def __init__(self) -> None:
        self.faults = 0
        self.num_generated = 0
        self.is_ended = False
        self.is_finished = False
        self._usage: Usage | None = None  # cumulative over message_start and every message_delta

    def read(self, event: str, data: bytes, out: list[Piece]) -> None:
        said = decode_event(_EVENT, data)
        if said is None:
            self._read_bare(event, data.strip(), out)
            return
        name = said.type if isinstance(said.type, str) and said.type else event
        if name == "content_block_delta":
            out.append(self._delta(name, said.delta, data))
        elif said.error or name == "error" or event == "error":
            fallback = "the upstream ended the stream with an error"
            self.is_ended = True
            out.append(error_piece("error", data, fallback=fallback, usage=self._usage))
        elif name == "content_block_start":
            out.append(self._block(name, said.content_block, data))
        elif name == "message_delta":
            out.append(self._message_delta(name, said, data))
        elif name == "message_start":
            counted = said.message.usage if said.message is not None else None
            usage, tier = self._count(counted), tier_text(usage_tier(counted))
            out.append(Piece(kind=PieceKind.META, event=name, payload=data, usage=usage, tier=tier))
        elif name == "message_stop":
            self.faults += not self.is_finished
            self.is_ended = True
            out.append(Piece(kind=PieceKind.DONE, event=name, payload=data))
        else:  # content_block_stop, ping and what may come
            out.append(Piece(kind=PieceKind.META, event=name, payload=data))

    def _read_bare(self, event: str, data: bytes, out: list[Piece]) -> None:
        """No JSON object: nothing at all, another dialect's end mark, or a malformed event."""
        if not data:
            return
        self.is_ended = True
        if data == b"[DONE]":
            self.faults += 1
            out.append(Piece(kind=PieceKind.DONE))
        else:
            out.append(malformed_piece(event, data))

    def _delta(self, name: str, delta: _Delta | None, data: bytes) -> Piece:
        if delta is None or delta.type in _SILENT_DELTAS:
            return Piece(kind=PieceKind.META, event=name, payload=data)
        visible = text_len(delta.text)
        reasoning = text_len(delta.thinking)
        tool = text_len(delta.partial_json)
        is_known = delta.text is not None or delta.thinking is not None
        if visible + reasoning + tool == 0 and (is_known or delta.partial_json is not None):
            return Piece(kind=PieceKind.META, event=name, payload=data)
        # A kind of delta that we do not know was generated too, if of no length we could tell.
        self.num_generated += 1
        return Piece(
            kind=PieceKind.GENERATED,
            event=name,
            payload=data,
            visible_chars=visible,
            reasoning_chars=reasoning,
            tool_chars=tool,
        )

    def _block(self, name: str, block: _Block | None, data: bytes) -> Piece:
        """A block's start generates when it carries more than its kind: a tool's name, say."""
        if block is None:
            return Piece(kind=PieceKind.META, event=name, payload=data)
        visible = text_len(block.text)
        reasoning = text_len(block.thinking)
        tool = text_len(block.name) if str(block.type).endswith("tool_use") else 0
        is_hidden = block.type == "redacted_thinking" and bool(block.data)
        if visible + reasoning + tool == 0 and not is_hidden:
            return Piece(kind=PieceKind.META, event=name, payload=data)
        self.num_generated += 1
        return Piece(
            kind=PieceKind.GENERATED,
            event=name,
            payload=data,
            visible_chars=visible,
            reasoning_chars=reasoning,
            tool_chars=tool,
        )

    def _message_delta(self, name: str, said: _Event, data: bytes) -> Piece:
        usage = self._count(said.usage)
        cost = reported_cost_nanos(said.usage)
        reason = said.delta.stop_reason if said.delta is not None else None
        if not reason:
            kind = PieceKind.USAGE if usage is not None else PieceKind.META
            return Piece(kind=kind, event=name, payload=data, usage=usage, cost_nanos=cost)
        self.faults += self.is_finished
        self.is_finished = True
        return Piece(
            kind=PieceKind.FINISH,
            event=name,
            payload=data,
            finish=str(reason),
            usage=usage,
            cost_nanos=cost,
            tier=tier_text(usage_tier(said.usage)),
        )

    def _count(self, said: object) -> Usage | None:
        if said is None:
            return None
        usage = anthropic_usage(said, self._usage)
        if usage is None:
            self.faults += 1
        else:
            self._usage = usage
        return usage
