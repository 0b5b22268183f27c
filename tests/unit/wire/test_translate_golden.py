"""Streams as providers send them, and byte for byte what a client of the other dialect gets.

A file's name begins with the dialect of the upstream. After a wanted change, write what
`translated` gives into the `.out.sse` files and read the difference line by line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.wire.pieces import Surface
from tests.support.translating import events_of, heard_as_chat, heard_as_messages, translated

GOLDEN = Path(__file__).parents[2] / "golden" / "translate"
INPUTS = sorted(GOLDEN.glob("*.in.sse"))


def surface_of(path: Path) -> Surface:
    return Surface(path.name.partition("_")[0])


@pytest.mark.parametrize("split", [0, 1, 37])
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name.removesuffix(".in.sse"))
def test_golden_stream(path: Path, split: int) -> None:
    expected = path.with_name(path.name.replace(".in.", ".out.")).read_bytes()

    assert translated(path.read_bytes(), surface_of(path), split=split) == expected


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name.removesuffix(".in.sse"))
def test_golden_stream_obeys_the_grammar_of_its_dialect(path: Path) -> None:
    out = translated(path.read_bytes(), surface_of(path))
    if "error" in path.name:
        name, payload = events_of(out)[-1]
        assert b'"error"' in payload
        assert name == ("error" if surface_of(path) is Surface.CHAT else "")
    elif surface_of(path) is Surface.CHAT:
        heard_as_messages(out)
    else:
        heard_as_chat(out)


def test_there_are_golden_streams_of_both_dialects() -> None:
    assert {surface_of(path) for path in INPUTS} == {Surface.CHAT, Surface.MESSAGES}
    assert len(INPUTS) >= 14
