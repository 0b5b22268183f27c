"""Where a text begins to run in circles; which texts share words with what is held out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.train.loops import GRAM, KEPT, RUN_MIN, loop_start, repeated_share, without_loop
from backend.train.prompts.overlap import GRAM as WORDS
from backend.train.prompts.overlap import HeldOut

rng = random.Random(0)
PLAIN = [rng.randrange(5000) for _ in range(120)]


@pytest.mark.parametrize("period", [1, 2, 7, 8, 9, 30])
def test_a_circle_is_cut_a_little_behind_its_second_beginning(period: int) -> None:
    circle = PLAIN[:period]
    text = [*PLAIN[40:80], *(circle * 40)[: period + 90]]

    # The first gram that was there before: one period behind the circle's start.
    assert loop_start(text) == 40 + period
    assert without_loop(text) == tuple(text[: 40 + period + KEPT])
    assert loop_start(without_loop(text)) == 40 + period + KEPT


def test_a_phrase_that_comes_again_is_no_circle() -> None:
    phrase = PLAIN[:20]
    text = [*phrase, *PLAIN[30:60], *phrase, *PLAIN[60:90], *phrase]

    assert loop_start(text) == len(text)
    assert without_loop(text) == tuple(text)
    assert repeated_share(text) > 0.2


def test_a_circle_that_has_hardly_begun_is_left() -> None:
    longest = [*PLAIN[:50], *PLAIN[:50]][: 50 + RUN_MIN - 1 + GRAM - 1]

    assert loop_start(longest) == len(longest)
    assert loop_start([*longest, PLAIN[len(longest) - 50]]) == 50


@given(st.lists(st.integers(0, 3), max_size=120))
def test_a_text_is_cut_and_never_changed(text: list[int]) -> None:
    kept = without_loop(text)

    assert kept == tuple(text[: len(kept)])
    assert 0.0 <= repeated_share(text) <= 1.0


def test_the_share_of_repeated_grams() -> None:
    assert repeated_share(PLAIN) == 0.0
    assert repeated_share([3] * 108) == 1 - 1 / 101
    assert repeated_share(PLAIN[: GRAM - 1]) == 0.0
    assert repeated_share([1, 2, 1, 2], gram=2) == pytest.approx(1 / 3)


WORDY = " ".join(f"word{number}" for number in range(40))


def run_of(size: int, start: int = 10) -> str:
    return " ".join(f"word{number}" for number in range(start, start + size))


def test_thirteen_words_in_a_row_are_shared_and_twelve_are_not() -> None:
    held_out = HeldOut(["something else", WORDY])

    assert held_out.overlaps(f"Before it {run_of(WORDS)} and behind")
    assert not held_out.overlaps(f"Before it {run_of(WORDS - 1)} and behind")
    # Twice twelve of them, with another word between.
    assert not held_out.overlaps(f"{run_of(12)} but {run_of(12, 22)} and behind")
    assert WORDS == 13


def test_case_and_punctuation_do_not_count() -> None:
    held_out = HeldOut(["Tom's 3 cats, (all black) sat; on a mat - and then they ate the fish."])

    assert held_out.overlaps("SO: tom's 3 cats all BLACK sat on a mat and then they, ate!")
    assert not held_out.overlaps("SO: tom's 4 cats all BLACK sat on a mat and then they, ate!")


def test_a_short_text_is_shared_as_a_whole() -> None:
    held_out = HeldOut(["What is the capital of France?", WORDY])

    assert held_out.overlaps("what is the capital of france")
    assert not held_out.overlaps("What is the capital of Spain?")
    assert not held_out.overlaps("the capital of France")


@pytest.mark.parametrize("text", ["", "  ", "?!", "你好"])
def test_a_text_without_words_is_nobody_s(text: str) -> None:
    assert not HeldOut(["", "?!", WORDY]).overlaps(text)
