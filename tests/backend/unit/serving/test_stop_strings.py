"""Stop strings: the text before the first, and nothing held back that need not be."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.serving.stop_strings import StopAutomaton, StopStrings
from tests.support.text_models import chunked

LETTERS = st.sampled_from("ab\nc")
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 40), max_size=12)


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first place where a stop string is complete; the longest of those."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=st.text(LETTERS, max_size=40), stops=STOPS, cuts=CUTS)
def test_every_division_of_the_text_ends_at_the_same_place(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    reader = StopStrings(StopAutomaton(stops))

    out = "".join(reader.feed(piece) for piece in chunked(text, cuts))
    out += reader.finish()

    assert (out, reader.matched) == by_definition(text, stops)


@given(text=st.text(LETTERS, max_size=30), stops=STOPS)
def test_exactly_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    reader = StopStrings(StopAutomaton(stops))
    out = ""

    for end, character in enumerate(text, 1):
        out += reader.feed(character)
        if reader.matched is not None:
            break
        held = max(
            size
            for size in range(end + 1)
            if size == 0 or any(stop.startswith(text[end - size : end]) for stop in stops)
        )
        assert out == text[: end - held]


@pytest.mark.parametrize(
    ("stops", "text", "out", "matched"),
    [
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (["END", "."], "a.END", "a", "."),
        (["bc", "abcd"], "xabcd", "xa", "bc"),  # complete first counts
        (["b", "ab"], "xab", "x", "ab"),  # the longest of those complete together
        (["é🙂"], "caf é🙂!", "caf ", "é🙂"),
        (["aab"], "aaaab", "aa", "aab"),
        (["stop"], "nonstop", "non", "stop"),
    ],
)
def test_known_cases(stops: list[str], text: str, out: str, matched: str) -> None:
    reader = StopStrings(StopAutomaton(stops))

    assert reader.feed(text) == out
    assert reader.matched == matched
    assert reader.feed("more") == reader.finish() == ""


def test_choices_of_a_request_share_an_automaton_but_no_state() -> None:
    automaton = StopAutomaton(["ab", "ab"])
    first, second = StopStrings(automaton), StopStrings(automaton)

    assert first.feed("xa") == "x"
    assert second.feed("b") == "b"
    assert first.feed("b") == ""
    assert (first.matched, second.matched) == ("ab", None)
    assert automaton.stops == ("ab",)


def test_cost_is_linear_in_the_text() -> None:
    """The text that makes a naive search try every place again."""
    reader = StopStrings(StopAutomaton(["a" * 255 + "b"]))
    began = time.process_time()

    for _ in range(2000):
        reader.feed("a" * 50)

    assert time.process_time() - began < 2.0
    assert reader.finish() == "a" * 255
