"""Lines and array elements come out whole, whatever pieces their bytes arrive in."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batch.array_splitter import ArraySplitter, NotThatArray
from gateway.batch.line_splitter import Line, LineSplitter, LineTooLong

ROOMY = 1 << 20
texts = st.text(alphabet=st.sampled_from('ab"\\{}[],:é\n\t 0'), max_size=20)
objects = st.dictionaries(
    texts, st.one_of(texts, st.integers(), st.lists(texts, max_size=3)), max_size=3
)


def in_pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def split(data: bytes, cuts: Sequence[int], line_bytes_max: int = ROOMY) -> list[Line]:
    splitter = LineSplitter(line_bytes_max)
    found = [line for piece in in_pieces(data, cuts) for line in splitter.feed(piece)]
    return [*found, *splitter.end()]


@given(
    st.lists(st.binary(max_size=12).filter(lambda each: b"\n" not in each)),
    st.lists(st.integers(0, 999)),
)
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines)
    found = split(data, cuts)
    assert found == split(data, ())
    for line in found:
        assert data[line.offset_bytes : line.offset_bytes + len(line.data)] == line.data
        assert line.data.strip()
    kept = [each.removesuffix(b"\r") for each in lines if each.removesuffix(b"\r").strip()]
    first = kept[:1] and kept[0].removeprefix(b"\xef\xbb\xbf")
    assert [line.data for line in found][1:] == kept[1:] or first == b""


def test_numbers_count_empty_lines_and_crlf_ends_a_line() -> None:
    found = split(b"\xef\xbb\xbfone\r\n\r\n  \nfour\nfive", (2, 5, 6, 9))
    assert [(line.number, line.data) for line in found] == [(1, b"one"), (4, b"four"), (5, b"five")]
    assert found[0].offset_bytes == 3


@pytest.mark.parametrize("cuts", [(), (3,), (1, 2, 3, 4, 5, 6, 7)])
def test_a_line_too_long_is_told_by_its_number(cuts: tuple[int, ...]) -> None:
    assert len(split(b"ok\n123456789\n", cuts, 9)) == 2
    with pytest.raises(LineTooLong) as told:
        split(b"ok\n1234567890\n", cuts, 9)
    assert told.value.number == 2


def elements(data: bytes, cuts: Sequence[int], element_bytes_max: int = ROOMY) -> list[bytes]:
    splitter = ArraySplitter("requests", element_bytes_max)
    found = [each for piece in in_pieces(data, cuts) for each in splitter.feed(piece)]
    splitter.finish()
    return found


@given(
    st.lists(objects, max_size=5),
    st.dictionaries(texts.filter(lambda each: each != "requests"), objects, max_size=2),
    st.sampled_from([None, 2]),
    st.lists(st.integers(0, 9_999)),
)
def test_elements_are_the_same_however_they_arrive(
    wanted: list[dict[str, object]],
    others: dict[str, object],
    indent: int | None,
    cuts: list[int],
) -> None:
    data = json.dumps(
        {**others, "requests": wanted, "z": {"requests": [1]}}, indent=indent
    ).encode()
    assert [json.loads(each) for each in elements(data, cuts)] == wanted


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"requests": [{}, 5]}', "objects only"),
        (b'{"requests": [{}, "x"]}', "objects only"),
        (b'{"requests": [[{}]]}', "objects only"),
        (b'{"requests": [{} {}]}', "comma"),
        (b'{"requests": [{},]}', "comma"),
        (b'{"requests": [{}], "requests": []}', "given twice"),
        (b'{"other": [{}]}', "missing"),
        (b'{"a": "requests", "b": {"requests": [{}]}}', "missing"),
        (b'{"requests": [{}]', "ends too early"),
        (b'{"requests": [{}]} x', "stands behind"),
        (b"[{}]", "must be a JSON object"),
        (b'x {"requests": [{}]}', "must be a JSON object"),
        (b'{"requests": [{}]} {"requests": [{}]}', "object"),
        (b'{"requests": [}', "do not match"),
        (b"", "missing"),
    ],
)
@pytest.mark.parametrize("cuts", [(), (1, 5, 9, 14), tuple(range(60))])
def test_what_is_no_such_array_is_refused_and_nothing_skipped(
    data: bytes, words: str, cuts: tuple[int, ...]
) -> None:
    with pytest.raises(NotThatArray, match=words):
        elements(data, cuts)


def test_an_element_that_never_ends_is_not_collected_for_ever() -> None:
    splitter = ArraySplitter("requests", 1_000)
    list(splitter.feed(b'{"requests": ['))
    list(splitter.feed(b'{"a": "' + b"x" * 900))
    with pytest.raises(NotThatArray, match="over 1000 bytes"):
        list(splitter.feed(b"x" * 200))
