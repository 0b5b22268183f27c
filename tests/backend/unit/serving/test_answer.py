"""The whole way of an answer: tokens in any division, the same text, reasoning and calls out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving.answer import AnswerDelta, AnswerReader
from backend.serving.detokenizer import Detokenizer
from backend.serving.reasoning import ReasoningSplitter
from backend.serving.stop_strings import StopAutomaton, StopStrings
from backend.serving.tool_calls import ToolCall, ToolFormat
from backend.serving.tool_parsers import Piece, make_parser
from tests.support.text_models import chunked, small_tokenizer

ANSWER = (
    "<think>\nHm, 你好…\n</think>\n\nOne moment.\n<tool_call>\n"
    '{"name": "add", "arguments": {"a": "é🙂"}}\n</tool_call>\nSTOP and no more'
)


def reader_of(stops: list[str], *, reasons: bool, calls: bool) -> AnswerReader:
    numbers = itertools.count(1)
    return AnswerReader(
        Detokenizer(small_tokenizer()),
        stops=StopStrings(StopAutomaton(stops)) if stops else None,
        reasoning=ReasoningSplitter() if reasons else None,
        tools=make_parser(ToolFormat.HERMES, ["add"], lambda: f"id{next(numbers)}")
        if calls
        else None,
    )


def read(reader: AnswerReader, parts: list[list[int]]) -> tuple[str, list[Piece]]:
    deltas: list[AnswerDelta] = []
    for part in parts:
        deltas.append(reader.feed(part))
        if reader.stop_matched is not None:
            break
    deltas.append(reader.finish())
    pieces: list[Piece] = []
    for piece in (piece for delta in deltas for piece in delta.pieces):
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return "".join(delta.reasoning for delta in deltas), pieces


@given(cuts=st.lists(st.integers(0, 150), max_size=30))
def test_every_division_of_the_tokens_gives_the_same_answer(cuts: list[int]) -> None:
    ids = small_tokenizer().encode(ANSWER)

    reasoning, pieces = read(reader_of(["STOP"], reasons=True, calls=True), chunked(ids, cuts))

    assert reasoning == "Hm, 你好…"
    assert pieces == ["One moment.\n", ToolCall("id1", "add", '{"a": "é🙂"}')]


@pytest.mark.parametrize("reasons", [False, True])
@pytest.mark.parametrize("calls", [False, True])
def test_stages_that_are_not_wanted_leave_the_text_alone(reasons: bool, calls: bool) -> None:
    ids = small_tokenizer().encode(ANSWER)

    reasoning, pieces = read(reader_of([], reasons=reasons, calls=calls), [[each] for each in ids])

    assert bool(reasoning) is reasons
    assert any(isinstance(each, ToolCall) for each in pieces) is calls
    if not reasons and not calls:
        assert pieces == [ANSWER]


@pytest.mark.parametrize(
    ("stop", "reasoning", "text"),
    [
        ("你", "Hm, ", ""),
        ("moment", "Hm, 你好…", "One "),
        ("arguments", "Hm, 你好…", 'One moment.\n<tool_call>\n{"name": "add", "'),
        ('"}}\n', "Hm, 你好…", ANSWER[ANSWER.index("One") : ANSWER.index('"}}')]),
    ],
)
def test_stop_string_ends_every_stage(stop: str, reasoning: str, text: str) -> None:
    ids = small_tokenizer().encode(ANSWER)
    reader = reader_of([stop], reasons=True, calls=True)

    got = read(reader, [[each] for each in ids])

    assert got == (reasoning, [text] if text else [])
    assert reader.stop_matched == stop


def test_text_that_could_still_become_a_stop_string_comes_at_the_end() -> None:
    reader = reader_of(["END"], reasons=False, calls=False)

    first = reader.feed(small_tokenizer().encode("The E"))

    assert first.pieces == ("The ",)
    assert reader.finish().pieces == ("E",)
    assert reader.stop_matched is None
    assert not AnswerDelta()
