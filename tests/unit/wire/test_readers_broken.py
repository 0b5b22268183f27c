"""Streams that break off, lie, or are none: an error or a fault, never a silent gap."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.readers import PLAIN_BODY_BYTES_MAX, stream_reader
from tests.support.wire_streams import DONE, ROLE, chunk, read

META, GENERATED, FINISH = PieceKind.META, PieceKind.GENERATED, PieceKind.FINISH
USAGE, END, ERROR = PieceKind.USAGE, PieceKind.DONE, PieceKind.ERROR


def kinds(pieces: list[Piece]) -> list[PieceKind]:
    return [piece.kind for piece in pieces]


def chat(*chunks: bytes) -> list[Piece]:
    return read(Surface.CHAT, *chunks)


def test_end_of_stream_without_finish_is_truncated() -> None:
    pieces = chat(ROLE, chunk({"content": "half an ans"}))

    assert kinds(pieces) == [META, GENERATED, ERROR]
    assert pieces[-1].error is not None
    assert pieces[-1].error.code == "stream_truncated"


def test_cut_off_last_event_is_truncated_too() -> None:
    pieces = chat(ROLE, chunk({"content": "a"}), chunk({}, "stop")[:-1])

    assert kinds(pieces) == [META, GENERATED, ERROR]


def test_missing_end_mark_after_a_finish_is_a_fault_only() -> None:
    reader = stream_reader(Surface.CHAT)
    pieces = read(
        Surface.CHAT, ROLE, chunk({"content": "a"}), chunk({}, "stop"), b"data: [DO", reader=reader
    )

    assert kinds(pieces) == [META, GENERATED, FINISH, END]
    assert reader.protocol_faults == 1


def test_end_mark_twice_and_all_after_it_is_ignored() -> None:
    usage = {"prompt_tokens": 99, "completion_tokens": 99, "total_tokens": 198}
    late = chunk({"content": "late"}) + chunk(usage=usage) + DONE

    assert kinds(chat(chunk({"content": "a"}), chunk({}, "stop"), DONE + late, late)) == [
        GENERATED,
        FINISH,
        END,
    ]


def test_finish_twice_the_first_one_wins() -> None:
    reader = stream_reader(Surface.CHAT)
    pieces = read(
        Surface.CHAT,
        chunk({"content": "a"}),
        chunk({}, "length"),
        chunk({}, "stop"),
        DONE,
        reader=reader,
    )

    assert [piece.finish for piece in pieces if piece.finish] == ["length"]
    assert reader.protocol_faults == 1


@pytest.mark.parametrize("text", ["[DONE]", "data: [DONE]", "\n\ndata: [DONE]\n\n", "}\r\n[DONE]"])
def test_a_literal_end_mark_in_the_text_is_text(text: str) -> None:
    """Item 9: a literal [DONE] killed the answer."""
    pieces = chat(chunk({"content": text}), chunk({"content": "more"}), chunk({}, "stop"), DONE)

    assert kinds(pieces) == [GENERATED, GENERATED, FINISH, END]
    assert pieces[0].visible_chars == len(text)


def test_end_mark_alone_ends_the_stream_with_nothing_generated() -> None:
    reader = stream_reader(Surface.CHAT)
    pieces = read(Surface.CHAT, ROLE, DONE, reader=reader)

    assert kinds(pieces) == [META, END]
    assert reader.num_generated == 0
    assert reader.protocol_faults == 1


@pytest.mark.parametrize("data", [b"not json", b"{broken", b"[1]", b'"text"', b'{"choices":5}'])
def test_an_event_that_cannot_be_read_is_an_error_not_a_gap(data: bytes) -> None:
    pieces = chat(ROLE, b"data: " + data + b"\n\n", chunk({"content": "x"}))

    assert kinds(pieces) == [META, ERROR]
    assert pieces[-1].error is not None
    assert pieces[-1].error.code == "malformed_event"


def test_an_event_with_empty_data_is_passed_over() -> None:
    assert kinds(chat(b"data:\n\n", chunk({"content": "x"}), chunk({}, "stop"), DONE)) == [
        GENERATED,
        FINISH,
        END,
    ]


def test_an_emoji_cut_in_two_events_passes_untouched() -> None:
    halves = [
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00"}}]}\n\n',
    ]
    pieces = chat(*halves, chunk({}, "stop"), DONE)

    assert kinds(pieces) == [GENERATED, GENERATED, FINISH, END]
    assert [b"data: " + piece.payload + b"\n\n" for piece in pieces[:2]] == halves


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1, "completion_tokens": 2},
        {"prompt_tokens": 5, "completion_tokens": 10**12},
        {"prompt_tokens": "5", "completion_tokens": 2},
        {"prompt_tokens": 1.5, "completion_tokens": 2},
    ],
)
def test_insane_usage_is_no_usage_and_nobody_sees_it(usage: dict[str, Any]) -> None:
    reader = stream_reader(Surface.CHAT)
    frame = chunk(usage=usage).replace(
        b'"choices":[{"index":0,"delta":{},"finish_reason":null}]', b'"choices":[]'
    )
    pieces = read(
        Surface.CHAT, chunk({"content": "x"}), chunk({}, "stop"), frame, DONE, reader=reader
    )

    assert kinds(pieces) == [GENERATED, FINISH, END]
    assert reader.protocol_faults == 1


def test_an_event_over_the_limit_ends_the_stream() -> None:
    reader = stream_reader(Surface.CHAT, event_bytes_max=1000)
    pieces = read(
        Surface.CHAT, ROLE + chunk({"content": "x" * 2000}), chunk({"content": "y"}), reader=reader
    )

    assert kinds(pieces) == [META, ERROR]
    assert pieces[-1].error is not None
    assert pieces[-1].error.code == "event_too_large"


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"error":{"message":"no credit","code":"x"}}', "x", "no credit"),
        (b'\n{"detail":"Not Found"}', "", "Not Found"),
        (b'[{"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED"}}]', "429", "slow"),
        (b"<!DOCTYPE html><title>502 Bad Gateway</title>", "html_body", "502 Bad Gateway"),
        (b'{"id":"x","choices":[]}', "not_a_stream", "event stream"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_200_that_is_no_stream_is_an_error_in_its_own_words(
    body: bytes, code: str, message: str, size: int
) -> None:
    pieces = chat(*[body[i : i + size] for i in range(0, len(body), size)])

    assert kinds(pieces) == [ERROR]
    assert pieces[0].error is not None
    assert pieces[0].error.code == code
    assert message in pieces[0].error.message


def test_an_empty_200_is_a_truncated_stream() -> None:
    assert kinds(chat(b"")) == [ERROR]


@pytest.mark.parametrize(
    "frame",
    [
        b'{"choices":[{"index":[1],"delta":{"content":"x"}}]}',
        b'{"choices":[{"index":"0","delta":{"content":"x"}}],"id":{}}',
        b'{"choices":[{"index":null,"delta":{"content":"x","role":5}}],"id":7}',
        b'{"choices":[{"delta":{"content":"x","tool_calls":[{"index":"a","id":3}]}}],"usage":[]}',
        b'{"choices":[{"delta":{"content":"x","reasoning_details":"odd","images":{}}}],"usage":7}',
    ],
)
def test_fields_of_unexpected_types_do_not_stop_the_text(frame: bytes) -> None:
    event = b"data: " + frame + b"\n\n"

    assert kinds(chat(event, event)[:2]) == [GENERATED, GENERATED]


def test_more_choices_than_any_client_can_ask_for_are_an_error() -> None:
    frames = [chunk(choices=[{"index": i, "delta": {"content": "x"}}]) for i in range(129)]
    pieces = chat(*frames)

    assert kinds(pieces) == [*[GENERATED] * 128, ERROR]
    assert pieces[-1].error is not None
    assert pieces[-1].error.code == "too_many_choices"


def test_a_body_that_is_no_stream_is_kept_only_to_its_limit() -> None:
    pieces = chat(*[b'{"error":{"message":"' + b"x" * 100_000] * 50)

    assert kinds(pieces) == [ERROR]
    assert len(pieces[0].payload) <= PLAIN_BODY_BYTES_MAX
