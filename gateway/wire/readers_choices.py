"""Events of chat and text-completion streams, with every deviation seen in the wild.

A payload goes on as received, but for two repairs that clients cannot do without: an id that
changes between frames, and tool calls without an index.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.deltas import Count, Delta, count_delta, is_only_content
from gateway.wire.errors import error_of
from gateway.wire.pieces import Piece, PieceKind
from gateway.wire.rawjson import WireFormatError, parse_members
from gateway.wire.reading import (
    broken_piece,
    decode_event,
    decode_value,
    error_piece,
    malformed_piece,
    text_len,
    tier_text,
)
from gateway.wire.usage import Usage
from gateway.wire.usage_read import openai_usage, reported_cost_nanos

# Choices of one stream; OpenAI's own limit on n.
CHOICES_MAX = 128
_TOO_MANY_CHOICES = f"the upstream streams more than {CHOICES_MAX} choices at once"


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: Delta | None = None
    text: Any = None  # completions
    finish_reason: Any = None
    error: Any = None


class _Groq(msgspec.Struct):
    usage: Any = None
    error: Any = None


class Chunk(msgspec.Struct):
    id: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    service_tier: Any = None
    x_groq: _Groq | None = None


_GENERATED = PieceKind.GENERATED  # an enum's members cost a lookup each time
_CHUNK = msgspec.json.Decoder(Chunk)
_ANY = msgspec.json.Decoder()


class ChoiceEvents:
    """The state of one stream (readers.Events)."""

    def __init__(self) -> None:
        self.faults = 0
        self.num_generated = 0
        self.is_ended = False
        self._id: str = ""
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._tool_index: dict[int, int] = {}  # by choice: the last tool call's index

    @property
    def is_finished(self) -> bool:
        return bool(self._finished) and self._begun <= self._finished

    def read(self, event: str, data: bytes, out: list[Piece]) -> None:
        if data[:1] != b"{":
            self._read_bare(event, data.strip(), out)
            return
        chunk = decode_event(_CHUNK, data)
        if chunk is None:
            out.append(self._end(malformed_piece(event, data)))
            return
        piece = self._plain_text(event, chunk, data)
        if piece is not None:
            out.append(piece)
            return
        if _is_error(event, chunk):
            usage, _ = self._usage(chunk)
            fallback = "the upstream ended the stream with an error"
            out.append(self._end(error_piece(event, data, fallback=fallback, usage=usage)))
            return
        piece = self._frame(chunk, data)
        if piece is not None:
            out.append(piece)

    def _plain_text(self, event: str, chunk: Chunk, data: bytes) -> Piece | None:
        """The shortcut that nearly every event takes: one known choice, visible text, no more."""
        if (
            chunk.choices is None
            or len(chunk.choices) != 1
            or chunk.id != self._id
            or chunk.usage is not None
            or chunk.error is not None
            or chunk.x_groq is not None
            or event
        ):
            return None
        choice = chunk.choices[0]
        delta = choice.delta
        if (
            delta is None
            or type(delta.content) is not str
            or not delta.content
            or choice.finish_reason is not None
            or choice.error is not None
            or type(choice.index) is not int
            or choice.index not in self._begun
            or not is_only_content(delta)
        ):
            return None
        self.num_generated += 1
        return Piece(kind=_GENERATED, payload=data, visible_chars=len(delta.content))

    def _read_bare(self, event: str, data: bytes, out: list[Piece]) -> None:
        """The end mark, an empty event, or something that is no JSON object."""
        if data == b"[DONE]":
            if not self.is_finished:
                self.faults += 1
            out.append(self._end(Piece(kind=PieceKind.DONE)))
        elif data[:1] == b"{":
            self.read(event, data, out)
        elif data:
            out.append(self._end(malformed_piece(event, data)))

    def _end(self, piece: Piece) -> Piece:
        self.is_ended = True
        return piece

    def _frame(self, chunk: Chunk, data: bytes) -> Piece | None:
        choices = chunk.choices
        usage, cost = self._usage(chunk)
        if not choices:
            return self._choiceless(chunk, data, usage, cost)
        count = Count()
        finish = ""
        is_repeated = False
        needs_index = False
        for choice in choices:
            index = choice.index if type(choice.index) is int else 0
            if index not in self._begun:
                if len(self._begun) == CHOICES_MAX:
                    return self._end(broken_piece("too_many_choices", _TOO_MANY_CHOICES))
                self._begun.add(index)
            delta = choice.delta
            if delta is not None:
                count_delta(count, delta)
                if delta.tool_calls:
                    needs_index |= any(call.index is None for call in delta.tool_calls)
            if choice.text:
                count.visible += text_len(choice.text)
            reason = choice.finish_reason
            if reason == "error" or choice.error:
                return self._end(_choice_error(data, choice, usage))
            if reason:
                if index in self._finished:
                    is_repeated = True
                else:
                    self._finished.add(index)
                    finish = finish or str(reason)
        data = self._repaired(chunk, data, needs_index)
        if count.visible or count.reasoning or count.tool or count.has_more:
            self.num_generated += 1
            self.faults += is_repeated
            return Piece(
                kind=PieceKind.GENERATED,
                payload=data,
                visible_chars=count.visible,
                reasoning_chars=count.reasoning,
                tool_chars=count.tool,
                finish=finish,
                usage=usage,
                cost_nanos=cost,
                tier=tier_text(chunk.service_tier),
            )
        if finish:
            return Piece(
                kind=PieceKind.FINISH,
                payload=data,
                finish=finish,
                usage=usage,
                cost_nanos=cost,
                tier=tier_text(chunk.service_tier),
            )
        return self._empty(data, usage, cost, is_repeated=is_repeated)

    def _choiceless(
        self, chunk: Chunk, data: bytes, usage: Usage | None, cost: int | None
    ) -> Piece | None:
        """No choice in it: the usage frame, or Azure's first frame with its filter results."""
        if chunk.usage is None and usage is None:
            # Without even the member `choices` it is no chunk; servers send bare errors so.
            error = error_of(decode_value(data)) if chunk.choices is None else None
            if error is not None:
                return self._end(Piece(kind=PieceKind.ERROR, payload=data, error=error))
            return Piece(kind=PieceKind.META, payload=data)
        data = self._repaired(chunk, data, False)
        if usage is None and cost is None:
            return None  # insane counts: nobody may see or bill them
        return Piece(
            kind=PieceKind.USAGE,
            payload=data,
            usage=usage,
            cost_nanos=cost,
            tier=tier_text(chunk.service_tier),
        )

    def _empty(
        self, data: bytes, usage: Usage | None, cost: int | None, *, is_repeated: bool
    ) -> Piece | None:
        """A frame that generated nothing and ended nothing: role, usage, or a second finish."""
        if is_repeated:
            self.faults += 1  # the first finish stands; clients would end the answer twice
        if usage is not None and (is_repeated or _says_nothing(data, self.is_finished)):
            return Piece(kind=PieceKind.USAGE, payload=data, usage=usage, cost_nanos=cost)
        if is_repeated:
            return None
        return Piece(kind=PieceKind.META, payload=data, usage=usage, cost_nanos=cost)

    def _usage(self, chunk: Chunk) -> tuple[Usage | None, int | None]:
        said = chunk.usage
        if said is None:
            if chunk.x_groq is None or chunk.x_groq.usage is None:
                return None, None
            said = chunk.x_groq.usage
        usage = openai_usage(said)
        if usage is None and said:
            self.faults += 1
        return usage, reported_cost_nanos(said)

    def _repaired(self, chunk: Chunk, data: bytes, needs_index: bool) -> bytes:
        """The payload itself, unless its id changed or a tool call lacks its index."""
        if chunk.id != self._id and chunk.id and isinstance(chunk.id, str):
            if not self._id:
                self._id = chunk.id
            else:
                self.faults += 1
                data = _with_id(data, self._id)
        if needs_index:
            self.faults += 1
            data = self._with_indices(data)
        elif chunk.choices:
            for choice in chunk.choices:
                if choice.delta is not None and choice.delta.tool_calls:
                    self._note_indices(choice)
        return data

    def _note_indices(self, choice: _Choice) -> None:
        index = choice.index if type(choice.index) is int else 0
        for call in (choice.delta.tool_calls if choice.delta is not None else None) or ():
            if type(call.index) is int:
                self._tool_index[index] = max(call.index, self._tool_index.get(index, -1))

    def _with_indices(self, data: bytes) -> bytes:
        """A call with an id or name begins the next tool call; one without continues the last."""
        try:
            chunk = _ANY.decode(data)
        except msgspec.DecodeError:  # a cut surrogate pair: better an index missing than text
            return data
        for choice in chunk["choices"]:
            key = choice.get("index")
            key = key if type(key) is int else 0
            delta = choice.get("delta") or {}
            for call in delta.get("tool_calls") or ():
                last = self._tool_index.get(key, -1)
                if type(call.get("index")) is not int:
                    begins = bool(call.get("id")) or bool((call.get("function") or {}).get("name"))
                    call["index"] = last + 1 if begins else max(last, 0)
                self._tool_index[key] = max(call["index"], last)
        return msgspec.json.encode(chunk)


def _is_error(event: str, chunk: Chunk) -> bool:
    return bool(
        chunk.error
        or event == "error"
        or chunk.object == "error"
        or (chunk.x_groq is not None and chunk.x_groq.error)
    )


def _choice_error(data: bytes, choice: _Choice, usage: Usage | None) -> Piece:
    """OpenRouter puts the reason beside the delta; others end with the mere word."""
    error = error_of({"error": choice.error}) if choice.error else None
    piece = error_piece(
        "", data, fallback="the upstream ended the answer with finish_reason error", usage=usage
    )
    return piece if error is None else msgspec.structs.replace(piece, error=error)


def _says_nothing(data: bytes, is_finished: bool) -> bool:
    """Whether a frame with usage has nothing else to say: every delta is empty.

    Only such a frame may be taken for the usage frame. One with a role, or with a field that
    we do not know, must reach the client. (OpenRouter repeats the role after the finish.)
    """
    try:
        chunk = _ANY.decode(data)
    except msgspec.DecodeError:
        return False
    for choice in chunk["choices"]:
        delta = choice.get("delta") or {}
        said = {
            **delta,
            "text": choice.get("text"),
            "role": None if is_finished else delta.get("role"),
        }
        if any(value not in (None, "", [], {}) for value in said.values()):
            return False
    return True


def _with_id(data: bytes, wanted: str) -> bytes:
    try:
        return parse_members(data).rewrite({"id": msgspec.json.encode(wanted)})
    except WireFormatError:  # a cut surrogate pair: better a changed id than text
        return data
