"""Upstream streams read into pieces: one reader, with the dialect's own reading plugged in."""

from __future__ import annotations

from typing import Protocol

from gateway.wire.errors import error_of, is_html, read_error
from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.readers_choices import ChoiceEvents
from gateway.wire.readers_messages import MessageEvents
from gateway.wire.readers_responses import ResponseEvents
from gateway.wire.reading import broken_piece, decode_value
from gateway.wire.sse import EVENT_BYTES_MAX, SseDecoder, SseLimitError

# Of a body that is no event stream, this much is kept to read an error from.
PLAIN_BODY_BYTES_MAX = 64 * 1024

_WHITE = b" \t\r\n\xef\xbb\xbf"


class Events(Protocol):
    """One dialect's reading of one stream's events; knows nothing of bytes and splits."""

    faults: int  # deviations from the dialect that were repaired or passed over
    num_generated: int  # pieces of kind GENERATED so far
    is_ended: bool  # a DONE or ERROR piece was made

    @property
    def is_finished(self) -> bool:
        """Whether every answer begun has its finish reason."""
        ...

    def read(self, event: str, data: bytes, out: list[Piece]) -> None:
        """Append what this event is to `out`: usually one piece."""
        ...


class SseStreamReader:
    """A StreamReader (pieces.py) for text/event-stream."""

    def __init__(self, events: Events, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.protocol_faults = 0
        self.num_generated = 0  # 0 at a DONE piece: the upstream answered nothing
        self.num_comments = 0  # signs of life
        self._events = events
        self._decoder = SseDecoder(event_bytes_max)
        self._plain: bytearray | None = None  # the body, when it turned out to be no event stream
        self._has_begun = False
        self._is_over = False  # a DONE or ERROR piece went out

    @property
    def is_no_stream(self) -> bool:
        """The body has begun and is no event stream: an error object, a web page."""
        return self._plain is not None

    def feed(self, data: bytes) -> list[Piece]:
        events = self._events
        pieces: list[Piece] = []
        if self._is_over:
            return pieces
        if not self._has_begun:
            self._begin(data)
        if self._plain is not None:
            self._plain += data[: PLAIN_BODY_BYTES_MAX - len(self._plain)]
            return pieces
        over: SseLimitError | None = None
        try:
            decoded = self._decoder.feed(data)
        except SseLimitError as error:
            over = error
            decoded = error.events
        for event in decoded:
            events.read(event.event, event.data, pieces)
            if events.is_ended:
                break
        else:
            if over is not None:
                self._is_over = True
                pieces.append(broken_piece("event_too_large", str(over)))
        self._is_over = self._is_over or events.is_ended
        self._count()
        return pieces

    def close(self) -> list[Piece]:
        events = self._events
        if self._is_over:
            return []
        self._is_over = True
        if self._plain is not None:
            return [_plain_piece(bytes(self._plain))]
        if events.is_finished:
            events.faults += 1
            self._count()
            return [Piece(kind=PieceKind.DONE)]
        return [broken_piece("stream_truncated", "the upstream closed the stream before its end")]

    def _begin(self, data: bytes) -> None:
        """Decide at the first byte that is not white whether this is an event stream at all."""
        start = data.lstrip(_WHITE)[:1]
        if start:
            self._has_begun = True
            if start in (b"{", b"[", b"<"):
                self._plain = bytearray()

    def _count(self) -> None:
        self.protocol_faults = self._events.faults + self._decoder.num_faults
        self.num_generated = self._events.num_generated
        self.num_comments = self._decoder.num_comments


def stream_reader(surface: Surface, *, event_bytes_max: int = EVENT_BYTES_MAX) -> SseStreamReader:
    """A fresh reader for one upstream stream of this surface."""
    events: Events
    if surface is Surface.CHAT or surface is Surface.COMPLETIONS:
        events = ChoiceEvents()
    elif surface is Surface.MESSAGES:
        events = MessageEvents()
    elif surface is Surface.RESPONSES:
        events = ResponseEvents()
    else:
        raise ValueError(f"{surface} has no streams")
    return SseStreamReader(events, event_bytes_max=event_bytes_max)


def _plain_piece(body: bytes) -> Piece:
    """A 200 that is no event stream: an error object, a web page, or something else."""
    if not is_html(body) and error_of(decode_value(body)) is None:
        return broken_piece("not_a_stream", "the upstream did not send an event stream")
    error = read_error(body, 0)
    return Piece(kind=PieceKind.ERROR, error=error, payload=b"" if is_html(body) else body)
