"""Top-level members: validated, unique, bounded, put together again byte for byte."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.rawjson import WireFormatError, parse_members

MIB = 1 << 20


scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
names = st.text(max_size=5) | st.sampled_from(["model", "messages", "a", "é", '"', "\\"])
pairs = st.lists(st.tuples(names, values), max_size=6)
styles = st.sampled_from(
    [
        {"separators": (",", ":"), "ensure_ascii": False},
        {"separators": (",", ":"), "ensure_ascii": True},
        {"separators": (", ", ": "), "ensure_ascii": False},
        {"indent": 2, "ensure_ascii": True},
    ]
)


def written(members: list[tuple[str, Any]], style: dict[str, Any]) -> bytes:
    """JSON text of an object, duplicates and all."""
    comma, colon = style.get("separators", (",\n  ", " : "))
    parts = [
        json.dumps(name, **style) + colon + json.dumps(value, **style) for name, value in members
    ]
    edge = "\n" if "indent" in style else ""
    return ("{" + edge + comma.join(parts) + edge + "}").encode()


@given(pairs, styles)
def test_members_agree_with_json_and_duplicates_are_refused(
    members: list[tuple[str, Any]], style: dict[str, Any]
) -> None:
    body = written(members, style)
    seen: list[tuple[str, Any]] = []
    json.loads(body, object_pairs_hook=lambda found: seen.__setitem__(slice(None), found))
    is_unique = len({name for name, _ in seen}) == len(seen)

    if not is_unique:
        with pytest.raises(WireFormatError, match="twice"):
            parse_members(body)
        return
    parsed = parse_members(body)
    assert [name for name, _ in seen] == list(parsed.names())
    for name, value in members:
        raw = parsed.raw(name)
        assert raw is not None
        assert value == json.loads(raw)


@given(pairs, styles, st.lists(st.tuples(names, st.none() | values), max_size=4))
def test_rewrite_changes_what_it_is_told_and_no_other_byte(
    members: list[tuple[str, Any]], style: dict[str, Any], edits: list[tuple[str, Any]]
) -> None:
    members = list(dict(members).items())
    body = written(members, style)
    parsed = parse_members(body)
    changes = {name: None if value is None else json.dumps(value).encode() for name, value in edits}

    changed = parse_members(parsed.rewrite(changes))

    expected = {
        name: parsed.raw(name) for name in parsed.names() if changes.get(name, b"") is not None
    }
    expected |= {name: value for name, value in changes.items() if value is not None}
    assert expected == {name: changed.raw(name) for name in changed.names()}
    assert list(expected) == list(changed.names())


@given(pairs, styles)
def test_rewrite_without_a_change_returns_the_body_itself(
    members: list[tuple[str, Any]], style: dict[str, Any]
) -> None:
    body = written(list(dict(members).items()), style)
    parsed = parse_members(body)

    assert parsed.rewrite({}) is body
    assert parsed.rewrite({name: parsed.raw(name) for name in parsed.names()}) is body
    assert parsed.rewrite({"not there, surely": None}) is body


def test_rewrite_keeps_numbers_and_escapes_as_they_were_written() -> None:
    body = b'{"model":"a","temperature":0.10,"seed":1E2,"text":"\\u00e9\\/"}'

    assert (
        parse_members(body).rewrite({"model": b'"b"'})
        == b'{"model":"b","temperature":0.10,"seed":1E2,"text":"\\u00e9\\/"}'
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"   ", "empty"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b'{"a":1', "not valid JSON"),
        (b'{"a":1}}', "not valid JSON"),
        (b'{"a":1} x', "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":[Infinity]}', "not valid JSON"),
        (b'{"a":-Infinity}', "not valid JSON"),
        (b'{"a":01}', "not valid JSON"),
        (b'{"a":"\x01"}', "not valid JSON"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        (b'{"\xc0\x80":1}', "not UTF-8"),
        (b'{"\\ud800":1}', "surrogate"),
        (b'{"a":"\\ud83d"}', "surrogate"),
        (b'{"a":"x\\udc00y and more text"}', "surrogate"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        (b'{"a":1,"a":2}', "'a' occurs twice"),
        (b'{"a":1,"a":1}', "'a' occurs twice"),
        (b'{"a":1,"b":2,"a":1}', "'a' occurs twice"),
        (b'{"a":1,"\\u0061":1}', "'a' occurs twice"),
        (b'{"a" : 12, "a" : 1}', "'a' occurs twice"),
        (b'{"a":1, "a":1 }', "'a' occurs twice"),
        (b'{"model": "x", "b": 1, "model": "x"}', "'model' occurs twice"),
    ],
)
def test_a_body_that_is_not_one_plain_object_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(WireFormatError, match=re.escape(says)):
        parse_members(body)


def test_white_space_of_just_the_spaced_length_does_not_hide_a_duplicate() -> None:
    # Two members seen, so the spaced form has 3 bytes more; here a duplicate takes that room.
    body = b'{"a":1,"bb":2,"":3,"":3}'

    with pytest.raises(WireFormatError, match="twice"):
        parse_members(body)


@pytest.mark.parametrize(("depth", "is_fine"), [(64, True), (65, False)])
def test_depth_is_counted_to_the_level(depth: int, is_fine: bool) -> None:
    inner = depth - 1
    body = b'{"a":' + b"[" * inner + b"]" * inner + b',"text":"]]}}[{\\"[["}'

    if is_fine:
        assert parse_members(body).names() == ("a", "text")
    else:
        with pytest.raises(WireFormatError, match="deeper than 64"):
            parse_members(body)


def test_alternating_arrays_and_objects_count_as_a_level_each() -> None:
    body = b'{"a":' + b'[{"b":' * 33 + b"1" + b"}]" * 33 + b"}"

    with pytest.raises(WireFormatError, match="deeper than 64"):
        parse_members(body)


def test_brackets_in_strings_are_not_depth() -> None:
    body = b'{"a":"' + b"[{" * 1000 + b'\\\\","b":"\\"' + b"[" * 100 + b'"}'

    assert parse_members(body).names() == ("a", "b")


def test_depth_far_beyond_any_stack_is_refused() -> None:
    body = b'{"a":' + b"[" * 40_000 + b"]" * 40_000 + b"}"

    with pytest.raises(WireFormatError, match="deeper"):
        parse_members(body)


@pytest.mark.parametrize(("num", "is_fine"), [(97, True), (99, False)])
def test_values_are_counted(num: int, is_fine: bool) -> None:
    body = b'{"a":[' + b",".join([b'",,[["'] * num) + b"]}"

    if is_fine:
        parse_members(body, nodes_max=100)
    else:
        with pytest.raises(WireFormatError, match="more than 100 values"):
            parse_members(body, nodes_max=100)


def test_too_many_members_are_refused() -> None:
    body = b"{" + b",".join(b'"k%d":1' % i for i in range(1001)) + b"}"

    with pytest.raises(WireFormatError, match="1000 members"):
        parse_members(body)


BOMBS = {
    "depth": b'{"a":' + b"[" * (10 * MIB),
    "values": b'{"a":[' + b"1," * (5 * MIB) + b"1]}",
    "strings": b'{"a":[' + b'"",' * (3 * MIB) + b"1]}",
    "arrays": b'{"a":[' + b"[]," * (3 * MIB) + b"1]}",
    "duplicates": b"{" + b'"a":1,' * (MIB) + b'"a":1}',
    "members": b"{" + b",".join(b'"k%d":1' % i for i in range(400_000)) + b"}",
    "members just below the limit of values": b"{"
    + b",".join(b'"k%d" : 1' % i for i in range(99_000))
    + b"}",
    "backslashes": b'{"a":"' + b"\\\\" * (5 * MIB) + b'","a":1}',
    "quotes": b'{"a":"' + b'\\"' * (5 * MIB) + b'","a":1}',
    "text in any script": b'{"a":"' + "世".encode() * (3 * MIB) + b'","a":1}',
    "white space": b'{"a":1' + b" " * (10 * MIB) + b',"a":1}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_ten_mebibytes_of_bomb_are_refused_quickly(name: str) -> None:
    started = time.process_time()
    with pytest.raises(WireFormatError):
        parse_members(BOMBS[name])
    elapsed_s = time.process_time() - started

    assert elapsed_s < 1.0  # the goal is 0.1 s; ten times looser, for a busy machine


def test_a_large_honest_body_passes() -> None:
    text = json.dumps("words, words [and] {more}. " * 300_000).encode()
    body = b'{"model":"m","messages":[{"role":"user","content":' + text + b"}]}"

    assert parse_members(body).names() == ("model", "messages")
