"""Turns that the target writes on its bare template: from where the user's words begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.errors import BadRequest, SetupError
from backend.models.loading import TokenizerSource
from backend.serving.loading import Prepared
from backend.serving.prompting import TextSide
from backend.serving.tokenizer import Tokenizer
from backend.serving.tokenizer_files import load_tokenizer
from backend.train.prompts.making import Recipe, make_prompts
from backend.train.prompts.own_turns import (
    TURN_CHARS_MIN,
    TURN_TOKENS_MAX,
    own_turns,
    turn_start,
)
from tests.support.text_models import gguf_metadata, smollm2_tokenizer, train_fast

PLAIN = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
SYSTEM = "<|assistant|>Be brief.<|end|>" + PLAIN
GLUED = "{% for m in messages %}Q: {{ m.content }}\nA:{% endfor %}"
SEVENS = (" 7f 7f 7f 7f 7f 7f 7f a Q: A:",) * 9  # so that the blank and the 7 become one token


def tokenizer_of(template: str, **more: Any) -> Tokenizer:
    metadata = gguf_metadata(train_fast(texts=SEVENS), "gpt-2", **more)
    if template:
        metadata["tokenizer.chat_template"] = template
    return load_tokenizer(TokenizerSource("gguf", Path("small.gguf"), metadata))


def started(tokenizer: Tokenizer) -> str:
    return tokenizer.decode(turn_start(TextSide(tokenizer)), shows_control=True)


@pytest.mark.parametrize(
    ("template", "start"),
    [(PLAIN, "<|user|>"), (SYSTEM, "<|assistant|>Be brief.<|end|><|user|>"), (GLUED, "Q: ")],
    ids=["plain", "system", "glued"],
)
def test_a_turn_starts_behind_the_template_s_own_words(template: str, start: str) -> None:
    assert started(tokenizer_of(template)) == start


def test_what_was_glued_to_the_words_is_no_part_of_the_start() -> None:
    """The blank before the words is its own token where nothing follows it."""
    tokenizer = tokenizer_of(GLUED)
    assert tokenizer.encode("Q: 7f")[: len(tokenizer.encode("Q: "))] != tokenizer.encode("Q: ")

    assert list(turn_start(TextSide(tokenizer))) == tokenizer.encode("Q: ")


def test_a_begin_token_is_there_once() -> None:
    """Also where the template writes one, and the tokenizer puts one before every text."""
    template = "{{ bos_token }}" + GLUED
    tokenizer = tokenizer_of(template, bos_token_id=3, add_bos_token=True)

    assert started(tokenizer) == "[CALL]Q: "


def test_of_a_real_model() -> None:
    start = started(smollm2_tokenizer())

    assert start.endswith("<|im_start|>user\n")
    assert start.count("<|im_start|>") == 2  # before it the system's own


def test_without_a_chat_template_there_is_no_turn(
    spelling: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = TextSide(tokenizer_of(""))
    with pytest.raises(BadRequest, match="no chat template"):
        turn_start(bare)

    monkeypatch.setattr("backend.train.prompts.own_turns.turn_start", lambda _: turn_start(bare))
    with pytest.raises(SetupError, match="own turns need a chat template: this model has no chat"):
        make_prompts(Recipe(chat=1, math=0, code=0), spelling, tmp_path / "out", lambda _: None)


def turns(spelling: Prepared, openings: list[str], **changes: Any) -> list[str]:
    given = {"temperature": 0.01, "seed": 0, "at_once": 3, **changes}
    return list(own_turns(spelling.make_engine(), spelling.text, openings, **given))


def test_turns_go_on_from_their_openings_to_their_end(spelling: Prepared) -> None:
    whole = '{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    # The third never ends, the fourth is hardly a turn, the last is no control token.
    found = turns(spelling, ["Hello", '{"name": "', "no end: b", " you?", "<|go_think|>"])

    assert sorted(found) == ["Hello world, how are you?", whole]
    assert TURN_TOKENS_MAX < 256, "the third ran into its limit, not into the context's end"


def test_turns_are_drawn_by_the_seed(spelling: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.train.prompts.own_turns.TURN_TOKENS_MAX", 12)

    first, again, other = (
        sorted(turns(spelling, [""] * 40, temperature=1.0, seed=seed)) for seed in (1, 1, 1000)
    )

    assert first == again
    assert first != other
    assert all(len(turn) >= TURN_CHARS_MIN for turn in first)
