"""Pieces → the client's stream. Same surface: payloads pass as received, framed anew."""

from __future__ import annotations

import msgspec

from gateway.wire.errors import sse_error
from gateway.wire.pieces import Piece, PieceKind, StreamWriter, Surface, WireError
from gateway.wire.rawjson import Members, WireFormatError, parse_members
from gateway.wire.sse import encode_event
from gateway.wire.translate.shapes import CannotTranslate
from gateway.wire.translate.streams import ChatFromMessages, MessagesFromChat
from gateway.wire.usage import Usage
from gateway.wire.usage_read import openai_usage_json

# Events kept back from the final usage to the end mark; there is one, the end mark itself.
HELD_EVENTS_MAX = 8

_DONE = b"data: [DONE]\n\n"
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_COMMENT = b": keep-alive\n\n"
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_ERROR, _USAGE = PieceKind.ERROR, PieceKind.USAGE  # an enum's members cost a lookup each time
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def stream_writer(
    client: Surface,
    upstream: Surface,
    *,
    include_usage: bool,
    model: str = "",
    request_id: str = "",
    created: int = 0,
) -> StreamWriter:
    """The writer for one stream. `created` is unix seconds, for translated chat frames.

    `include_usage`: chat and completions get their usage frame; in responses and messages,
    where usage always comes, it only lets `finish` merge its extra members into it.
    Raises CannotTranslate where no translation exists.
    """
    if client is upstream:
        if client is Surface.CHAT or client is Surface.COMPLETIONS:
            return ChunkWriter(client, include_usage=include_usage)
        if client is Surface.MESSAGES or client is Surface.RESPONSES:
            return EventWriter(client, include_usage=include_usage)
    if client is Surface.CHAT and upstream is Surface.MESSAGES:
        return ChatFromMessages(
            include_usage=include_usage, model=model, request_id=request_id, created=created
        )
    if client is Surface.MESSAGES and upstream is Surface.CHAT:
        return MessagesFromChat(
            include_usage=include_usage, model=model, request_id=request_id, created=created
        )
    raise CannotTranslate(f"no stream of {upstream} can be written as {client}", param="model")


def keep_alive(client: Surface) -> bytes:
    """What keeps an idle connection open without saying anything."""
    return _PING if client is Surface.MESSAGES else _COMMENT


class ChunkWriter:
    """Chat and completions: frames, at most one usage frame, one [DONE].

    Frames with usage beside choices (in the finish frame, or on every frame) pass untouched: to
    take it out would mean to re-encode them, and clients that did not ask do not look. Only who
    asked gets the finish frame without it, since its usage moves to a frame of its own.
    """

    def __init__(self, surface: Surface, *, include_usage: bool) -> None:
        self.failed: WireError | None = None
        self.protocol_faults = 0
        self._surface = surface
        self._include_usage = include_usage
        self._usage: Usage | None = None  # the last one said, and the frame that said it
        self._usage_payload = b""
        self._last_payload = b""
        self._is_over = False

    def write(self, piece: Piece) -> bytes:
        payload = piece.payload
        if self._is_over or not payload or piece.kind is _ERROR:
            return b""
        if piece.usage is not None and self._include_usage:
            self._usage, self._usage_payload = piece.usage, payload
            if piece.finish:
                payload = _without_usage(payload)
        if piece.kind is _USAGE:
            return b""
        self._last_payload = payload
        return b"data: " + payload + b"\n\n" if b"\n" not in payload else frame(payload)

    def error(self, error: WireError, request_id: str) -> bytes:
        self._is_over = True
        return sse_error(self._surface, error, request_id)

    def finish(self, extra: dict[str, object] | None, usage: Usage | None = None) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        if self._usage is not None:
            return frame(_usage_frame(self._usage_payload, self._usage, extra)) + _DONE
        if usage is None or not self._include_usage:
            return _DONE
        # The last frame lends id, model and the rest; its own usage was absent or of no use.
        last = _without_usage(self._last_payload)
        return frame(_usage_frame(last, usage, extra)) + _DONE


class EventWriter:
    """Messages and responses: every event under its name, the end marks as the upstream's."""

    def __init__(self, surface: Surface, *, include_usage: bool) -> None:
        self.failed: WireError | None = None
        self.protocol_faults = 0
        self._surface = surface
        self._include_usage = include_usage
        self._held: list[tuple[bytes, str]] = []  # from the frame with the final usage on
        self._created = b""  # payload of response.created
        self._num_written = 0
        self._needs_stop = False
        self._is_over = False

    def write(self, piece: Piece) -> bytes:
        if self._is_over or not piece.payload or piece.kind is PieceKind.ERROR:
            return b""
        if self._surface is Surface.MESSAGES:
            if piece.kind is PieceKind.FINISH:
                self._needs_stop = True
            elif piece.kind is PieceKind.DONE:
                self._needs_stop = False
        elif piece.event == "response.created":
            self._created = piece.payload
        self._num_written += 1
        if self._held or (
            self._include_usage and piece.kind is PieceKind.FINISH and piece.usage is not None
        ):
            self._held.append((piece.payload, piece.event))
            return b"" if len(self._held) <= HELD_EVENTS_MAX else self._let_go()
        return frame(piece.payload, piece.event)

    def _let_go(self) -> bytes:
        """An upstream that goes on after its end loses us the place to merge into."""
        frames = b"".join(frame(payload, event) for payload, event in self._held)
        self._held.clear()
        self._include_usage = False
        return frames

    def error(self, error: WireError, request_id: str) -> bytes:
        self._is_over = True
        return sse_error(
            self._surface,
            error,
            request_id,
            sequence_number=self._num_written,
            response=_created_response(self._created),
        )

    def finish(self, extra: dict[str, object] | None, usage: Usage | None = None) -> bytes:
        if self._is_over:
            return b""
        self._is_over = True
        frames: list[bytes] = []
        for payload, event in self._held:
            if extra and not frames:
                outer = "response" if self._surface is Surface.RESPONSES else ""
                payload = _with_extra(payload, outer, extra)
            frames.append(frame(payload, event))
        if self._needs_stop:  # the upstream closed without its end mark
            frames.append(_STOP)
        return b"".join(frames)


def frame(payload: bytes, event: str = "") -> bytes:
    """One event of a JSON payload, on one data line: parsers that know no other are many.

    Line ends in JSON can only be white space between its tokens.
    """
    return encode_event(payload.replace(b"\n", b" ") if b"\n" in payload else payload, event)


def _without_usage(payload: bytes) -> bytes:
    try:
        members = parse_members(payload)
    except WireFormatError:
        return payload
    return members.rewrite({"usage": b"null"}) if "usage" in members else payload


def _usage_frame(payload: bytes, usage: Usage, extra: dict[str, object] | None) -> bytes:
    """The frame `choices: []` with the usage as the upstream said it, and `extra` in it."""
    try:
        members = parse_members(payload)
        said = members.raw("usage")
        if said is None or said == b"null":
            said = openai_usage_json(usage)  # it stood elsewhere, as Groq's does
        changes: dict[str, bytes | None] = {"usage": _merged(parse_members(said), extra)}
        choices = members.raw("choices")
        if choices is None or choices.strip(b"[] \t\r\n"):
            changes["choices"] = b"[]"
        return members.rewrite(changes)
    except WireFormatError:
        return b'{"choices":[],"usage":%b}' % openai_usage_json(usage)


def _with_extra(payload: bytes, outer: str, extra: dict[str, object]) -> bytes:
    """`extra` merged into `usage`, or into `usage` of the member `outer`; else as it was."""
    try:
        members = parse_members(payload)
        raw = members.raw(outer) if outer else None
        holder = parse_members(raw) if raw is not None else members
        usage = holder.raw("usage")
        if usage is None or not usage.startswith(b"{"):
            return payload
        changed = holder.rewrite({"usage": _merged(parse_members(usage), extra)})
        return members.rewrite({outer: changed}) if raw is not None else changed
    except WireFormatError:
        return payload


def _merged(usage: Members, extra: dict[str, object] | None) -> bytes:
    return usage.rewrite(
        {name: msgspec.json.encode(value) for name, value in (extra or {}).items()}
    )


def _created_response(payload: bytes) -> dict[str, msgspec.Raw] | None:
    """The response object of `response.created`, so that its failure keeps id and model."""
    if not payload:
        return None
    try:
        return _OBJECT.decode(_OBJECT.decode(payload)["response"])
    except (msgspec.DecodeError, KeyError):
        return None
