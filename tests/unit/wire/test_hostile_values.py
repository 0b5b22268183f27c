"""No value of an upstream, of whatever type at whatever place, raises in a reader or writer."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.answers import read_answer
from gateway.wire.errors import read_error
from gateway.wire.pieces import PieceKind, Surface
from gateway.wire.sse import SseDecoder, encode_event
from tests.support.wire_streams import golden, golden_names, read, relay, surface_of

ODD = [
    None, True, False, 0, -1, 10**18, 1.5, "", "text", "error", [], [None], ["a"], [[]], {},
    {"message": 5}, {"index": "x"}, [{"index": []}], [{"delta": []}], {"usage": []}, 10**400,
]  # fmt: skip
odd = st.sampled_from(ODD)
surfaces = st.sampled_from(list(Surface))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in inner:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


def spoiled(event: Any, choice: int, value: Any) -> Any:
    event = copy.deepcopy(event)
    paths = list(places(event))
    *way, last = paths[choice % len(paths)]
    holder = event
    for key in way:
        holder = holder[key]
    holder[last] = value
    return event


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


@given(
    st.sampled_from(golden_names()),
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), odd), min_size=1, max_size=3
    ),
    st.booleans(),
)
def test_streams_with_odd_values_end_in_one_way(
    name: str, edits: list[tuple[int, int, Any]], include_usage: bool
) -> None:
    surface = surface_of(name)
    events = [(e.event, e.data) for e in SseDecoder().feed(golden(name)) if e.data != b"[DONE]"]
    for at, place, value in edits:
        event, data = events[at % len(events)]
        if data.startswith(b"{"):
            odd_event = spoiled(msgspec.json.decode(data), place, value)
            events[at % len(events)] = (event, encoded(odd_event))
    stream = b"".join(encode_event(data, event) for event, data in events)

    kinds = [piece.kind for piece in read(surface, stream)]
    assert kinds[-1] in (PieceKind.DONE, PieceKind.ERROR)
    assert not {PieceKind.DONE, PieceKind.ERROR} & set(kinds[:-1])
    out = relay(surface, stream, include_usage=include_usage, extra={"cost": "1"})
    if kinds[-1] is PieceKind.ERROR:
        assert b"[DONE]" not in out


@given(surfaces, st.dictionaries(st.sampled_from(
    ["choices", "content", "output", "data", "usage", "error", "model", "status", "type",
     "stop_reason", "input_tokens", "message", "detail", "incomplete_details"]), odd))  # fmt: skip
def test_answers_with_odd_values_are_read(surface: Surface, body: dict[str, Any]) -> None:
    read_answer(surface, encoded(body))
    read_error(encoded(body), 500)


@given(surfaces, st.binary(max_size=60))
def test_answers_of_any_bytes_are_read(surface: Surface, body: bytes) -> None:
    assert read_answer(surface, body).error is not None
    assert read_error(body, 500).message


@given(st.sampled_from([Surface.CHAT, Surface.MESSAGES, Surface.RESPONSES]), st.binary(max_size=80))
def test_streams_of_any_bytes_end_in_an_error(surface: Surface, stream: bytes) -> None:
    pieces = read(surface, stream)

    assert pieces[-1].kind is PieceKind.ERROR or b"[DONE]" in stream
