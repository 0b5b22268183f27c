"""What ends a translated messages stream early: errors and limits."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Piece, PieceKind, Surface, WireError
from gateway.wire.translate import stream_to_messages
from gateway.wire.translate.streams import MessagesFromChat
from tests.support.translating import (
    chunk,
    events_of,
    fragment,
    heard_as_messages,
    sse,
    tools,
    translated,
)

ROLE = chunk({"role": "assistant", "content": ""})


def piece(payload: dict[str, Any], kind: PieceKind = PieceKind.META) -> Piece:
    return Piece(kind=kind, payload=sse(payload)[6:-2])


def test_error_is_an_error_event_and_nothing_follows() -> None:
    out = translated(
        sse(ROLE, chunk({"content": "x"}), {"error": {"message": "boom", "type": "server_error"}}),
        Surface.CHAT,
    )
    names = [name for name, _ in events_of(out)]

    assert names[-1] == "error"
    assert "message_stop" not in names
    assert b"boom" in out


def test_truncated_stream_is_an_error() -> None:
    out = translated(sse(ROLE, chunk({"content": "x"})), Surface.CHAT)

    assert events_of(out)[-1][0] == "error"


def test_writer_is_deaf_after_an_error() -> None:
    writer = MessagesFromChat(include_usage=False)
    writer.error(WireError(message="x"), "r")

    assert writer.write(piece(chunk({"content": "x"}), PieceKind.GENERATED)) == b""
    assert writer.finish(None) == b""


def test_payload_of_another_shape_counts_as_a_fault() -> None:
    writer = MessagesFromChat(include_usage=False)

    assert writer.write(Piece(kind=PieceKind.GENERATED, payload=b'{"choices":7}')) == b""
    assert writer.protocol_faults == 1


def test_what_has_to_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_to_messages, "WAITING_CHARS_MAX", 100)
    writer = MessagesFromChat(include_usage=False, request_id="r")
    writer.write(piece(tools(fragment(0, "{", call_id="a", name="f")), PieceKind.GENERATED))
    out = writer.write(piece(chunk({"content": "x" * 100}), PieceKind.GENERATED))

    assert [name for name, _ in events_of(out)] == ["error"]
    assert writer.failed is not None
    assert writer.finish(None) == b""


def test_what_was_written_no_longer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_to_messages, "WAITING_CHARS_MAX", 100)
    writer = MessagesFromChat(include_usage=False)
    for place in range(30):
        writer.write(piece(chunk({"reasoning_content": "y" * 10}), PieceKind.GENERATED))
        call = fragment(place, '{"a":"' + "x" * 60 + '"}', call_id=f"c{place}", name="f")
        writer.write(piece(tools(call), PieceKind.GENERATED))

    assert writer.failed is None


def test_looking_for_the_end_of_a_call_is_bounded() -> None:
    writer = MessagesFromChat(include_usage=False)
    payloads = [tools(fragment(0, '{"a":"', call_id="c0", name="f"))]
    for _ in range(stream_to_messages.COMPLETE_CHECKS_MAX):
        payloads += [tools(fragment(0, "}"), fragment(1, " ", call_id="c1", name="g"))]
    payloads += [tools(fragment(0, '"}'), fragment(1, "{}"))]
    out = b"".join(writer.write(piece(p, PieceKind.GENERATED)) for p in payloads)

    assert out.count(b"event: content_block_start") == 1
    message = heard_as_messages(out + writer.finish(None))
    assert [len(b["input"]) for b in message["content"]] == [1, 0]


def test_blocks_of_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_to_messages, "BLOCKS_MAX", 3)
    writer = MessagesFromChat(include_usage=False)
    for _ in range(2):
        writer.write(piece(chunk({"content": "x"}), PieceKind.GENERATED))
        writer.write(piece(chunk({"reasoning_content": "y"}), PieceKind.GENERATED))

    assert writer.failed is not None
