"""Tokenizers from GGUF metadata and from directories: the same as those they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from backend.errors import BadCheckpoint
from backend.models.loading import TokenizerSource
from backend.serving.control_guard import MarkedText
from backend.serving.tokenizer import Tokenizer
from backend.serving.tokenizer_files import load_tokenizer
from tests.support.text_models import CONTROL, TEXTS, gguf_metadata, train_fast

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BY_REGEX = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES_ONLY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split_by(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), BYTES_ONLY]
    )


PRE_TOKENIZERS = {
    "gpt-2": BY_REGEX,
    "default": BY_REGEX,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BY_REGEX]),
    "llama-bpe": split_by(LLAMA3),
    "qwen2": split_by(LLAMA3.replace("{1,3}", "")),
}
MADE = {
    name: train_fast(pre, ignores_merges=name == "llama-bpe")
    for name, pre in PRE_TOKENIZERS.items()
}
MADE["qwen2"].normalizer = normalizers.NFC()


def from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(TokenizerSource("gguf", Path("model.gguf"), metadata))


READ = {
    name: from_gguf(gguf_metadata(fast, name, add_bos_token=False)) for name, fast in MADE.items()
}


def save(directory: Path, fast: FastTokenizer, **config: Any) -> Tokenizer:
    fast.save(str(directory / "tokenizer.json"))
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(TokenizerSource("hf_directory", directory, {}))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@given(
    text=st.lists(
        st.sampled_from(
            [
                *TEXTS,
                "I'LL",
                "don't",
                "12345",
                " 1",
                "  ",
                "\n\n",
                "\r\n",
                "e\u0301",
                "ﬁ",
                "!?",
                "\t x",
            ]
        )
        | st.text(max_size=8)
    ).map("".join)
)
def test_gguf_splits_and_merges_as_the_original(pre: str, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    for control in CONTROL:
        text = text.replace(control, "")

    assert READ[pre].encode(text) == MADE[pre].encode(text).ids


def test_llama3_prefers_a_whole_token_to_its_merges() -> None:
    fast = FastTokenizer(models.BPE({"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, [("a", "b")]))
    fast.add_tokens(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"a", "b", "c"}))
    described = gguf_metadata(fast, "llama-bpe")

    assert from_gguf(described).encode("abc") == [4]
    assert from_gguf({**described, "tokenizer.ggml.pre": "gpt-2"}).encode("abc") == [3, 2]


@pytest.mark.parametrize(
    ("pre", "flag", "begins"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True),
     ("llama-bpe", False, False)],
)  # fmt: skip
def test_raw_prompts_begin_as_the_file_says(pre: str, flag: bool | None, begins: bool) -> None:
    more = {} if flag is None else {"add_bos_token": flag}
    tokenizer = from_gguf(gguf_metadata(MADE[pre], pre, bos_token_id=1, **more))

    assert (tokenizer.encode_prompt("x")[0] == 1) is begins
    assert (
        tokenizer.encode("x") == tokenizer.encode_chat(MarkedText("x")) == MADE[pre].encode("x").ids
    )


def test_user_defined_tokens_are_text_that_is_one_token() -> None:
    described = gguf_metadata(MADE["gpt-2"], "gpt-2")
    described["tokenizer.ggml.tokens"].append("<think>")
    described["tokenizer.ggml.token_type"].append(4)
    tokenizer = from_gguf(described)
    think = len(described["tokenizer.ggml.tokens"]) - 1

    assert tokenizer.encode("a<think>b")[1] == think
    assert tokenizer.decode([think]) == "<think>"
    assert think not in tokenizer.control_ids


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "llama"}, "kind 'llama' is not supported"),
        ({"pre": "starcoder"}, "pre-tokenizer 'starcoder' is not supported; known: "),
        ({"tokens": None}, "tokens is missing"),
        ({"merges": [1, 2]}, "merges is missing or no list of strings"),
        ({"merges": ["no such merge"]}, "the merges do not fit the tokens"),
        ({"token_type": [1]}, "token types"),
        ({"eos_token_id": 10**6}, "eos_token_id 1000000 is none of"),
        (
            {"tokens": ["a", "b"], "token_type": [1, 1], "merges": []},
            "no token stands for the bytes",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    described = gguf_metadata(MADE["gpt-2"], "gpt-2")
    described |= {f"tokenizer.ggml.{key}": value for key, value in change.items()}

    with pytest.raises(BadCheckpoint, match=said):
        from_gguf(described)


def test_vocabulary_that_is_not_byte_level_is_refused() -> None:
    described = gguf_metadata(MADE["gpt-2"], "gpt-2")
    described["tokenizer.ggml.tokens"].append("▁the house")
    described["tokenizer.ggml.token_type"].append(1)

    with pytest.raises(BadCheckpoint, match="not byte-level BPE"):
        from_gguf(described)


# ------------------------------------------------------------------ Hugging Face directory


def test_directory_gives_ids_tokens_and_template(tmp_path: Path) -> None:
    fast = train_fast()
    fast.post_processor = processors.TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", 1)]
    )
    tokenizer = save(
        tmp_path,
        fast,
        bos_token={"content": "<|user|>", "lstrip": False},
        eos_token="<|end|>",
        pad_token=None,
        chat_template="{{ bos_token }}",
    )

    assert tokenizer.encode("Größe 12") == fast.encode("Größe 12", add_special_tokens=False).ids
    assert tokenizer.encode_prompt("x") == [1, *tokenizer.encode("x")]
    assert tokenizer.template_tokens == {"bos_token": "<|user|>", "eos_token": "<|end|>"}
    assert tokenizer.end_token_ids == (0,)
    assert tokenizer.chat_templates == {"default": "{{ bos_token }}"}
    assert tokenizer.decode([*tokenizer.encode("你好"), 0]) == "你好"


def test_newest_place_of_a_template_wins(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert save(tmp_path, train_fast(), chat_template=listed).chat_templates == {
        "default": "a",
        "tool_use": "b",
    }
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.json").write_text('{"chat_template": "c"}')
    assert save(tmp_path, train_fast()).chat_templates == {"default": "c"}
    (tmp_path / "chat_template.jinja").write_text("d")
    assert save(tmp_path, train_fast()).chat_templates == {"default": "d"}


def test_control_tokens_cannot_be_written_in_another_form(tmp_path: Path) -> None:
    """Normalized forms of control tokens are not looked for, whatever the file says."""
    fast = train_fast()
    fast.normalizer = normalizers.NFKC()
    fast.add_special_tokens([AddedToken("<|end|>", special=True, normalized=True)])
    tokenizer = save(tmp_path, fast)

    assert 0 not in tokenizer.encode_prompt("＜|end|＞")
    assert tokenizer.encode_prompt("<|end|>") == [0]


def test_sentencepiece_bytes_and_blanks_are_spelled(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, **{f"<0x{b:02X}>": 4 + b for b in range(256)}}
    fast = FastTokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    fast.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = save(tmp_path, fast)

    assert tokenizer.decode(tokenizer.encode("a a é")) == "a a é"
    assert [tokenizer.token_bytes(each) for each in (3, 4 + 0xC3)] == [b" a", b"\xc3"]


def test_broken_or_foreign_directories_are_refused(tmp_path: Path) -> None:
    source = TokenizerSource("hf_directory", tmp_path, {})
    file = tmp_path / "tokenizer.json"
    with pytest.raises(BadCheckpoint, match=r"tokenizer\.json is missing"):
        load_tokenizer(source)
    described = json.loads(train_fast().to_str())
    for change, said in (
        ({"decoder": {"type": "WordPiece"}}, "a decoder of WordPiece is not supported"),
        ({"decoder": None}, "a decoder of nothing is not supported"),
        ({"model": {"type": "Nonsense"}}, "is no tokenizer"),
        ({"added_tokens": [{"id": "x"}]}, "which is no token"),
    ):
        file.write_text(json.dumps({**described, **change}))
        with pytest.raises(BadCheckpoint, match=said):
            load_tokenizer(source)
