"""Text as it comes: whole characters only, and the same text however the tokens arrive."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from backend.serving.detokenizer import Detokenizer
from tests.support.text_models import chunked, small_tokenizer, smollm2_tokenizer

CUTS = st.lists(st.integers(0, 200), max_size=20)


@given(ids=st.lists(st.integers(0, 399), max_size=60), cuts=CUTS)
def test_every_division_of_the_tokens_gives_the_same_text(ids: list[int], cuts: list[int]) -> None:
    """Any tokens at all: what a model makes need not be UTF-8."""
    tokenizer = small_tokenizer()
    detokenizer = Detokenizer(tokenizer)

    pieces = [detokenizer.feed(part) for part in chunked(ids, cuts)]

    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_piece_ever_holds_half_a_character(text: str) -> None:
    tokenizer = small_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    seen = ""

    for token_id in tokenizer.encode(text):
        seen += detokenizer.feed([token_id])
        assert text.startswith(seen)

    assert seen == text
    assert detokenizer.finish() == ""


def test_a_character_comes_with_the_last_of_its_tokens() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode("🦜")
    detokenizer = Detokenizer(tokenizer)

    pieces = [detokenizer.feed([each]) for each in ids]

    assert len(ids) > 1
    assert pieces == [""] * (len(ids) - 1) + ["🦜"]


def test_an_answer_that_ends_inside_a_character_says_so() -> None:
    tokenizer = smollm2_tokenizer()
    detokenizer = Detokenizer(tokenizer)

    assert detokenizer.feed(tokenizer.encode("a🦜")[:-1]) == "a"
    assert detokenizer.finish() == "\ufffd"


def test_control_tokens_are_shown_only_where_wanted() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode_prompt("<|im_start|>x<|im_end|>")

    assert Detokenizer(tokenizer).feed(ids) == "x"
    assert Detokenizer(tokenizer, shown_ids=[2]).feed(ids) == "x<|im_end|>"


def test_cost_does_not_grow_with_the_length_of_the_answer() -> None:
    tokenizer = smollm2_tokenizer()
    ids = tokenizer.encode("The quick brown fox jumps over 12 lazy dogs, 你好. ") * 400
    detokenizer = Detokenizer(tokenizer)
    half = len(ids) // 2

    def seconds(part: list[int]) -> float:
        began = time.process_time()
        for token_id in part:
            detokenizer.feed([token_id])
        return time.process_time() - began

    first, second = seconds(ids[:half]), seconds(ids[half:])

    assert second < 5 * first + 0.05
