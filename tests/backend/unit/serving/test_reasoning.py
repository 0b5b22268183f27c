"""Reasoning and answer apart, the same however the text comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving.reasoning import ReasoningSplitter, is_reasoning_open
from tests.support.text_models import chunked

PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "\n", " ", "a", "<", "b\n\n"]),
    max_size=12,
).map("".join)


def split(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(is_open=is_open)
    parts = [splitter.feed(piece) for piece in pieces]
    parts.append(splitter.finish())
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts)


@given(text=PIECES, cuts=st.lists(st.integers(0, 60), max_size=12), is_open=st.booleans())
def test_every_division_of_the_text_is_split_alike(
    text: str, cuts: list[int], is_open: bool
) -> None:
    assert split(chunked(text, cuts), is_open=is_open) == split([text], is_open=is_open)
    assert split(list(text), is_open=is_open) == split([text], is_open=is_open)


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("\n <think>Hm.</think>Yes.", False, "Hm.", "Yes."),
        ("Yes. <think>no</think>", False, "", "Yes. <think>no</think>"),
        ("Yes.", False, "", "Yes."),
        ("  Yes.\n", False, "", "  Yes.\n"),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("<think>two\n\nparts\n</think>x\n", False, "two\n\nparts", "x\n"),
        ("<think>cut off", False, "cut off", ""),
        ("cut off </thin", True, "cut off </thin", ""),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("<thinker>", False, "", "<thinker>"),
        ("<thi", False, "", "<thi"),
        ("", True, "", ""),
    ],
)
def test_known_answers(text: str, is_open: bool, reasoning: str, content: str) -> None:
    assert split([text], is_open=is_open) == (reasoning, content)


def test_reasoning_is_told_while_it_is_thought() -> None:
    splitter = ReasoningSplitter()

    assert splitter.feed("<think>\nFirst").reasoning == "First"
    assert splitter.feed(", second\n").reasoning == ", second"
    assert splitter.feed("third </").reasoning == "\nthird "
    assert splitter.feed("think>\n\nDone").content == "Done"


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_template_that_opens_the_reasoning_is_recognized(prompt: str, is_open: bool) -> None:
    assert is_reasoning_open(prompt) is is_open
