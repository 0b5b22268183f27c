"""Server-sent events: WHATWG rules at any split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sse import SseDecoder, SseEvent, SseLimitError, encode_event
from tests.support.wire_streams import cut

PIECES = [
    b"data: a", b"data:b", b"data:  two spaces", b"data", b"data:", b"event: x", b"event:y",
    b"id: 1", b"retry: 10", b": comment", b":", b"unknown: z", b"data: \xc3\xa9\xe4\xb8\x96",
    b"data: \xff bad", b"data: [DONE]", b"datax: no", "data: \U0001f30d".encode(),
]  # fmt: skip
LINE_ENDS = [b"\n", b"\r\n", b"\r"]


def reference(stream: bytes) -> list[SseEvent]:
    """The specification's algorithm (HTML, 9.2.6), slow and literal."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events: list[SseEvent] = []
    data: list[str] = []
    name = ""
    for line in lines:
        if line == "":
            if data:
                events.append(SseEvent(name, "\n".join(data).encode()))
            data, name = [], ""
            continue
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ") if colon else ""
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
    return events


streams = st.lists(
    st.tuples(st.sampled_from([*PIECES, b"", b"", b""]), st.sampled_from(LINE_ENDS)), max_size=25
).map(lambda lines: b"".join(text + end for text, end in lines))


@given(streams, st.booleans(), st.lists(st.integers(0, 9), max_size=60))
def test_events_are_those_of_the_specification_at_every_split(
    stream: bytes, has_mark: bool, sizes: list[int]
) -> None:
    stream = b"\xef\xbb\xbf" + stream if has_mark else stream
    expected = reference(stream)

    for chunks in ([stream], cut(stream, sizes), cut(stream, [1] * len(stream))):
        decoder = SseDecoder()
        assert expected == [event for chunk in chunks for event in decoder.feed(chunk)]


def test_an_event_without_its_blank_line_is_never_dispatched() -> None:
    decoder = SseDecoder()

    assert decoder.feed(b"data: a\ndata: b\n") == []
    assert [SseEvent("", b"a\nb")] == decoder.feed(b"\n")


def test_comments_are_counted_and_not_dispatched() -> None:
    decoder = SseDecoder()

    assert decoder.feed(b": one\n\n: two\n:\n\n") == []
    assert decoder.num_comments == 3


def test_invalid_utf8_becomes_the_replacement_character_and_a_fault() -> None:
    decoder = SseDecoder()

    assert [SseEvent("", "a\ufffdb".encode())] == decoder.feed(b"data: a\xffb\n\n")
    assert decoder.num_faults == 1


def test_a_replacement_character_of_the_upstream_is_no_fault() -> None:
    decoder = SseDecoder()

    assert [SseEvent("", "\ufffd".encode())] == decoder.feed("data: \ufffd\n\n".encode())
    assert decoder.num_faults == 0


def test_a_character_split_over_reads_arrives_whole() -> None:
    decoder = SseDecoder()
    stream = "data: 世\n\n".encode()

    assert decoder.feed(stream[:7]) == []
    assert [SseEvent("", "世".encode())] == decoder.feed(stream[7:])
    assert decoder.num_faults == 0


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_event_over_the_limit_is_an_error_that_keeps_the_events_before_it(size: int) -> None:
    stream = b"data: a\n\n" + b"data: " + b"x" * 60 + b"\n\n"
    decoder = SseDecoder(event_bytes_max=64)
    seen: list[SseEvent] = []

    def feed_all() -> None:
        for chunk in cut(stream, [size] * (len(stream) // size)):
            seen.extend(decoder.feed(chunk))

    with pytest.raises(SseLimitError) as caught:
        feed_all()
    assert [SseEvent("", b"a")] == seen + caught.value.events


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_event_of_just_the_limit_passes(size: int) -> None:
    stream = b"data: " + b"x" * 58 + b"\n\n"
    decoder = SseDecoder(event_bytes_max=64)

    chunks = cut(stream, [size] * (len(stream) // size))
    assert len([event for chunk in chunks for event in decoder.feed(chunk)]) == 1


def test_a_line_without_end_cannot_fill_the_memory() -> None:
    decoder = SseDecoder(event_bytes_max=1000)

    for _ in range(1000 // 14):
        decoder.feed(b": never ending")
    with pytest.raises(SseLimitError):
        decoder.feed(b": never ending")


def test_a_large_event_byte_by_byte_is_not_searched_over_and_over() -> None:
    decoder = SseDecoder()
    stream = b"data: " + b"x" * 200_000 + b"\n\n"

    events = [event for byte in stream for event in decoder.feed(bytes([byte]))]
    assert [len(event.data) for event in events] == [200_000]


@given(st.text(max_size=40), st.sampled_from(["", "ping", "response.created"]))
def test_an_encoded_event_decodes_to_itself(data: str, name: str) -> None:
    normal = data.replace("\r\n", "\n").replace("\r", "\n")

    assert [SseEvent(name, normal.encode())] == SseDecoder().feed(encode_event(data.encode(), name))
