"""Messages and responses streams, and all golden streams at every split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.pieces import Piece, PieceKind, Surface
from gateway.wire.readers import stream_reader
from gateway.wire.usage import Usage
from tests.support.wire_streams import cut, golden, golden_names, read, surface_of

META, GENERATED, FINISH = PieceKind.META, PieceKind.GENERATED, PieceKind.FINISH
USAGE, END, ERROR = PieceKind.USAGE, PieceKind.DONE, PieceKind.ERROR


def kinds(pieces: list[Piece]) -> list[PieceKind]:
    return [piece.kind for piece in pieces]


def event(name: str, body: str) -> bytes:
    return f'event: {name}\ndata: {{"type":"{name}"{body}}}\n\n'.encode()


START = event("message_start", ',"message":{"id":"m","usage":{"input_tokens":7,"output_tokens":1}}')
TEXT = event("content_block_delta", ',"index":0,"delta":{"type":"text_delta","text":"hi"}')
CREATED = event("response.created", ',"response":{"id":"r","instructions":"long"}')
SPOKEN = event("response.output_text.delta", ',"delta":"hi"')


@pytest.mark.parametrize("name", golden_names())
def test_pieces_are_the_same_at_every_split_in_two(name: str) -> None:
    stream, surface = golden(name), surface_of(name)
    whole = read(surface, stream)

    step = max(1, len(stream) // 300)
    for at in range(1, len(stream), step):
        assert read(surface, stream[:at], stream[at:]) == whole
    assert read(surface, *cut(stream, [1] * len(stream))) == whole


@given(st.sampled_from(golden_names()), st.lists(st.integers(0, 90), max_size=80))
def test_pieces_are_the_same_at_random_splits(name: str, sizes: list[int]) -> None:
    stream, surface = golden(name), surface_of(name)

    assert read(surface, *cut(stream, sizes)) == read(surface, stream)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
@pytest.mark.parametrize("name", golden_names())
def test_pieces_are_the_same_with_other_line_ends_mark_and_comments(
    name: str, line_end: bytes
) -> None:
    stream, surface = golden(name), surface_of(name)
    other = stream.replace(b"\n\n", b"\n\n: hold on\n\n").replace(b"\n", line_end)

    assert read(surface, b"\xef\xbb\xbf" + other) == read(surface, stream)


@pytest.mark.parametrize("name", golden_names())
def test_no_golden_stream_cut_short_ends_well_before_its_finish(name: str) -> None:
    """A stream without its finish must never look complete (opencode's truncated answers)."""
    stream, surface = golden(name), surface_of(name)
    for at in range(0, len(stream), max(1, len(stream) // 100)):
        pieces = read(surface, stream[:at])
        has_finish = any(piece.finish for piece in pieces)

        assert has_finish or pieces[-1].kind is ERROR


def test_messages_text_stream() -> None:
    pieces = read(Surface.MESSAGES, golden("messages_text"))

    assert kinds(pieces) == [META, META, META, GENERATED, GENERATED, META, FINISH, END]
    assert [piece.event for piece in pieces[:3]] == ["message_start", "content_block_start", "ping"]
    assert pieces[6].finish == "end_turn"
    assert pieces[6].usage == Usage(
        input=25, cached_read=100, cache_write_5m=10, cache_write_1h=20, output=15
    )
    assert pieces[7].payload == b'{"type":"message_stop"}'


def test_messages_usage_is_known_from_the_start_for_streams_that_break() -> None:
    pieces = read(Surface.MESSAGES, START, TEXT)

    assert pieces[0].usage == Usage(input=7, output=1)
    assert pieces[-1].kind is ERROR


def test_messages_thinking_signature_and_tools() -> None:
    """Item 5: thinking and text stay what they are; a signature is no token."""
    pieces = read(Surface.MESSAGES, golden("messages_thinking_tools"))

    generated = [piece for piece in pieces if piece.kind is GENERATED]
    assert [(piece.reasoning_chars, piece.tool_chars) for piece in generated] == [
        (11, 0),  # thinking
        (0, 0),  # redacted thinking: hidden, but generated
        (0, 7),  # the tool's name
        (0, 15),  # its arguments
    ]
    finish = pieces[-2]
    assert finish.finish == "tool_use"
    assert finish.usage == Usage(
        input=25, cached_read=100, cache_write_5m=10, cache_write_1h=20, output=49, reasoning=40
    )


def test_messages_error_event_is_an_error() -> None:
    last = read(Surface.MESSAGES, golden("messages_error"))[-1]

    assert last.error is not None
    assert (last.error.type, last.error.message) == ("overloaded_error", "Overloaded")
    assert last.usage is not None
    assert last.usage.cached_read == 100


def test_messages_error_without_an_event_name_is_an_error() -> None:
    nameless = b'data: {"type":"error","error":{"type":"api_error","message":"broke"}}\n\n'
    last = read(Surface.MESSAGES, START, nameless)[-1]

    assert last.kind is ERROR
    assert last.event == "error"


def test_messages_events_without_names_get_them_from_their_type() -> None:
    nameless = b"\n\n".join(
        b"data: " + block.split(b"data: ")[1]
        for block in golden("messages_text").split(b"\n\n")[:-1]
    )

    assert read(Surface.MESSAGES, nameless + b"\n\n") == read(
        Surface.MESSAGES, golden("messages_text")
    )


def test_messages_stream_without_stop_event_is_complete_after_a_stop_reason() -> None:
    reader = stream_reader(Surface.MESSAGES)
    stream = golden("messages_text").removesuffix(event("message_stop", ""))
    pieces = read(Surface.MESSAGES, stream, reader=reader)

    assert kinds(pieces)[-2:] == [FINISH, END]
    assert reader.protocol_faults == 1


def test_messages_usage_update_without_stop_reason_is_usage() -> None:
    update = event("message_delta", ',"delta":{},"usage":{"output_tokens":5}')
    piece = read(Surface.MESSAGES, START, update)[1]

    assert piece.kind is USAGE
    assert piece.usage == Usage(input=7, output=5)


def test_messages_insane_usage_keeps_what_was_known() -> None:
    reader = stream_reader(Surface.MESSAGES)
    insane = event(
        "message_delta", ',"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":-5}'
    )
    pieces = read(Surface.MESSAGES, START, TEXT, insane, reader=reader)

    assert pieces[2].usage is None
    assert reader.protocol_faults == 2  # and no message_stop


@pytest.mark.parametrize(
    ("delta", "kind"),
    [
        ('{"type":"text_delta","text":""}', META),
        ('{"type":"signature_delta","signature":"abc"}', META),
        ('{"type":"citations_delta","citation":{}}', META),
        ('{"type":"input_json_delta","partial_json":""}', META),
        ('{"type":"compaction_delta","content":"new"}', GENERATED),
    ],
)
def test_messages_delta_kinds(delta: str, kind: PieceKind) -> None:
    piece = read(Surface.MESSAGES, event("content_block_delta", f',"index":0,"delta":{delta}'))[0]

    assert piece.kind is kind


def test_responses_text_stream() -> None:
    pieces = read(Surface.RESPONSES, golden("responses_text"))

    assert kinds(pieces) == [
        META, META, META, GENERATED, META, META, META, GENERATED, GENERATED, META, GENERATED,
        FINISH, END,
    ]  # fmt: skip
    assert [piece.reasoning_chars for piece in pieces][3] == 5
    assert [piece.visible_chars for piece in pieces][7:9] == [2, 6]
    assert pieces[10].tool_chars == 2
    assert (pieces[11].finish, pieces[11].event) == ("completed", "response.completed")
    assert pieces[11].usage == Usage(input=20, cached_read=16, output=7, reasoning=5)


def test_responses_created_is_no_token_and_a_quota_error_after_it_is_an_error() -> None:
    """Item 6: fallback must still be possible when `response.created` comes before the error."""
    reader = stream_reader(Surface.RESPONSES)
    pieces = read(Surface.RESPONSES, golden("responses_failed"), reader=reader)

    assert kinds(pieces) == [META, ERROR]
    assert reader.num_generated == 0
    assert pieces[1].error is not None
    assert pieces[1].error.code == "rate_limit_exceeded"
    assert pieces[1].error.message == "You exceeded your current quota"


def test_responses_incomplete_finishes_with_its_reason_and_usage() -> None:
    finish, end = read(Surface.RESPONSES, golden("responses_incomplete"))[-2:]

    assert (finish.kind, finish.finish, end.kind) == (FINISH, "max_output_tokens", END)
    assert finish.usage is not None


@pytest.mark.parametrize(
    "body",
    [
        ',"code":"server_error","message":"broke","param":null',
        ',"error":{"code":"server_error","message":"broke"}',
    ],
)
def test_responses_error_event_in_either_form(body: str) -> None:
    last = read(Surface.RESPONSES, CREATED, SPOKEN, event("error", body))[-1]

    assert last.error is not None
    assert (last.error.code, last.error.message) == ("server_error", "broke")


def test_responses_stream_without_its_last_event_is_truncated() -> None:
    last = read(Surface.RESPONSES, CREATED, SPOKEN)[-1]

    assert last.error is not None
    assert last.error.code == "stream_truncated"


def test_responses_end_mark_of_another_dialect_does_not_end_it() -> None:
    reader = stream_reader(Surface.RESPONSES)
    pieces = read(Surface.RESPONSES, CREATED, SPOKEN, b"data: [DONE]\n\n", reader=reader)

    assert pieces[-1].kind is ERROR
    assert reader.protocol_faults == 1


def test_responses_server_that_sends_no_deltas_has_answered_all_the_same() -> None:
    done = event("response.output_text.done", ',"text":"all at once"')
    pieces = read(Surface.RESPONSES, CREATED, done)

    assert pieces[1].kind is GENERATED
    assert pieces[1].visible_chars == 11


def test_responses_text_repeated_in_done_events_counts_once() -> None:
    done = event("response.output_text.done", ',"text":"hi"')
    pieces = read(Surface.RESPONSES, CREATED, SPOKEN, done)

    assert sum(piece.visible_chars for piece in pieces) == 2


def test_responses_with_output_only_in_the_last_event_are_not_empty() -> None:
    reader = stream_reader(Surface.RESPONSES)
    last = event("response.completed", ',"response":{"output":[{"type":"function_call"}]}')
    read(Surface.RESPONSES, CREATED, last, reader=reader)

    assert reader.num_generated == 1


@pytest.mark.parametrize("surface", [Surface.MESSAGES, Surface.RESPONSES])
def test_an_unreadable_event_is_an_error_not_a_gap(surface: Surface) -> None:
    last = read(surface, b"event: x\ndata: {broken\n\n")[-1]

    assert last.error is not None
    assert last.error.code == "malformed_event"


@pytest.mark.parametrize("surface", [Surface.EMBEDDINGS, Surface.MODELS, Surface.COUNT_TOKENS])
def test_surfaces_without_streams_have_no_reader(surface: Surface) -> None:
    with pytest.raises(ValueError, match="no streams"):
        stream_reader(surface)


@pytest.mark.parametrize(
    ("surface", "stream"),
    [
        (
            Surface.CHAT,
            b'data: {"id":"c","service_tier":"flex","choices":[{"index":0,"delta":{},'
            b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
        ),
        (
            Surface.CHAT,
            b'data: {"choices":[],"service_tier":"flex","usage":{"prompt_tokens":1}}\n\n',
        ),
        (
            Surface.MESSAGES,
            event("message_start", ',"message":{"usage":{"input_tokens":7,"service_tier":"flex"}}'),
        ),
        (
            Surface.RESPONSES,
            event("response.completed", ',"response":{"output":[],"service_tier":"flex"}'),
        ),
    ],
)
def test_streams_say_the_tier_they_were_served_at(surface: Surface, stream: bytes) -> None:
    assert "flex" in [piece.tier for piece in read(surface, stream)]
