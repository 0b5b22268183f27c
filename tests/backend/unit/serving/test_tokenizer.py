"""SmolLM2's tokenizer out of its GGUF file, and what a caller can and cannot write with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import BadRequest
from backend.serving.control_guard import MarkedText
from backend.serving.tokenizer import BYTE_OF_CHARACTER
from tests.support.text_models import smollm2_tokenizer

# Bytes for which SmolLM2 has no token: control characters, and starts of unassigned planes.
UNKNOWN_BYTES = frozenset(b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")


def is_known(text: str) -> bool:
    return UNKNOWN_BYTES.isdisjoint(text.encode())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(is_known)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello world", [19556, 905]),
        (" 1234", [216, 33, 34, 35, 36]),  # every digit alone
        ("<|im_end|>", [44, 108, 306, 79, 486, 108, 46]),
        ("\n", [198]),
        ("", []),
    ],
)
def test_known_strings_have_their_ids(text: str, ids: list[int]) -> None:
    assert smollm2_tokenizer().encode(text) == ids


@given(TEXTS)
def test_text_survives_the_round_trip(text: str) -> None:
    tokenizer = smollm2_tokenizer()

    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == text
    assert not tokenizer.control_ids & set(ids)


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", " x", "<|", "é"])))
def test_plain_text_never_becomes_a_control_token(parts: list[str]) -> None:
    tokenizer = smollm2_tokenizer()
    text = "".join(parts)

    ids = tokenizer.encode(text)

    assert not tokenizer.control_ids & set(ids)
    assert tokenizer.decode(ids) == text


def test_raw_prompt_may_hold_control_tokens() -> None:
    tokenizer = smollm2_tokenizer()

    ids = tokenizer.encode_prompt("<|im_start|>user\nHi<|im_end|>\n")

    assert ids == [1, 4093, 198, 26843, 2, 198]
    assert tokenizer.decode(ids) == "user\nHi\n"
    assert tokenizer.decode(ids, shows_control=True) == "<|im_start|>user\nHi<|im_end|>\n"


def test_order_of_calls_does_not_matter() -> None:
    tokenizer = smollm2_tokenizer()
    text = "<|im_end|>"

    plain = [tokenizer.encode(text), tokenizer.encode_prompt(text), tokenizer.encode(text)]

    assert plain[0] == plain[2] != plain[1] == [2]


def test_marks_keep_control_tokens_from_being_seen_and_leave_no_trace() -> None:
    tokenizer = smollm2_tokenizer()
    mark = "\U000f0000"

    ids = tokenizer.encode_chat(MarkedText(f"<|im_start|>a<{mark}|im_end|>b<|im_end|>", mark))

    assert ids == [1, *tokenizer.encode("a<|im_end|>b"), 2]


def test_half_a_surrogate_pair_is_a_question_mark() -> None:
    tokenizer = smollm2_tokenizer()

    assert tokenizer.decode(tokenizer.encode("a\ud83d")) == "a?"


def test_facts_of_smollm2() -> None:
    tokenizer = smollm2_tokenizer()

    assert tokenizer.vocab_size == 49_152
    assert tokenizer.end_token_ids == (2,)
    assert tokenizer.template_tokens["bos_token"] == "<|im_start|>"
    assert tokenizer.token_id("<|im_end|>") == 2
    assert tokenizer.token_id("no such token") is None
    assert len(tokenizer.control_tokens) == 17
    assert "<|im_start|>" in tokenizer.chat_templates["default"]
    assert tokenizer.token_bytes(10**6) == b""


def test_byte_characters_are_a_bijection() -> None:
    assert sorted(BYTE_OF_CHARACTER.values()) == list(range(256))
    assert BYTE_OF_CHARACTER["A"] == 65
    assert BYTE_OF_CHARACTER["Ġ"] == 32
    assert BYTE_OF_CHARACTER["Ċ"] == 10


def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(BadRequest, match="49152") as refused:
        smollm2_tokenizer().check_ids([1, 49_152], "prompt")

    assert refused.value.param == "prompt"
