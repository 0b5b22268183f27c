"""What the stream readers share: lenient decoding, counting characters, error pieces."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from gateway.wire.errors import error_of
from gateway.wire.pieces import Piece, PieceKind, WireError
from gateway.wire.usage import Usage

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

T = TypeVar("T")


def decode_event(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    """The event's typed head; None when it is not the JSON it should be.

    An emoji cut in two over two events leaves half a surrogate pair in each, which JSON parsers
    refuse. It is only counted here, never sent on, so a stand-in does.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            return decoder.decode(_SURROGATE.sub(rb"\\ufffd", data))
        except (msgspec.DecodeError, RecursionError):
            return None


_ANY = msgspec.json.Decoder()


def decode_value(data: bytes) -> object:
    """Any JSON value, None when it is none."""
    return decode_event(_ANY, data)


def tier_text(value: object) -> str:
    """A service tier as an answer says it; "" for anything that is none."""
    return value if isinstance(value, str) else ""


def usage_tier(usage: object) -> object:
    """Where messages say their service tier."""
    return usage.get("service_tier") if isinstance(usage, dict) else None


def text_len(value: object) -> int:
    """Characters of a string; 0 for anything else."""
    return len(value) if isinstance(value, str) else 0


def error_piece(event: str, data: bytes, *, fallback: str, usage: Usage | None = None) -> Piece:
    """An error as the upstream said it in band, or a malformed event."""
    error = error_of(decode_value(data))
    if error is None:
        error = WireError(message=fallback, type="server_error", code="upstream_error")
    return Piece(kind=PieceKind.ERROR, event=event, payload=data, error=error, usage=usage)


def broken_piece(code: str, message: str) -> Piece:
    """The stream itself failed, not the upstream's model."""
    return Piece(
        kind=PieceKind.ERROR, error=WireError(message=message, type="server_error", code=code)
    )


def malformed_piece(event: str, data: bytes) -> Piece:
    """An event we cannot read may have held text: passing over it would be a lie."""
    shown = data[:80].decode("utf-8", "replace")
    return Piece(
        kind=PieceKind.ERROR,
        event=event,
        payload=data,
        error=WireError(
            message=f"the upstream sent an event that is not valid JSON: {shown}",
            type="server_error",
            code="malformed_event",
        ),
    )
