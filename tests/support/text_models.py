"""Tokenizers to test with: the real one of SmolLM2, and a small byte-level one made here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from backend.cli.fetch_wheel import SMOLLM2
from backend.models.gguf_file import read_gguf
from backend.models.loading import TokenizerSource
from backend.serving.tokenizer import Tokenizer
from backend.serving.tokenizer_files import load_tokenizer

CONTROL = ("<|end|>", "<|user|>", "<|assistant|>", "[CALL]")
TEXTS = (
    "The quick brown fox jumps over the lazy dog. 1234567890 times, isn't it?\n\n",
    "Größe, déjà vu, 你好世界, привет, ελληνικά, नमस्ते, 👩‍👩‍👧‍👦 🙂\r\n\t  three  spaces ",
    'def f(x):\n    return {"name": "get_weather", "arguments": {"city": "Paris"}}\n',
)


@cache
def smollm2_file() -> Path:
    """From the package in this environment; nothing of it is imported."""
    return Path(str(metadata.distribution(SMOLLM2.distribution).locate_file(SMOLLM2.member)))


@cache
def smollm2_metadata() -> dict[str, Any]:
    found = read_gguf(smollm2_file()).metadata
    return {key: value for key, value in found.items() if key.startswith("tokenizer.")}


@cache
def smollm2_tokenizer() -> Tokenizer:
    return load_tokenizer(TokenizerSource("gguf", smollm2_file(), smollm2_metadata()))


def train_fast(
    pre_tokenizer: Any = None, *, texts: Sequence[str] = TEXTS, ignores_merges: bool = False
) -> FastTokenizer:
    """A byte-level BPE of a few hundred tokens; every byte is among them."""
    fast = FastTokenizer(models.BPE(ignore_merges=ignores_merges))
    fast.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    fast.train_from_iterator(texts, trainer)
    return fast


def gguf_metadata(fast: FastTokenizer, pre: str, **more: Any) -> dict[str, Any]:
    """What a converter writes of such a tokenizer."""
    model = json.loads(fast.to_str())["model"]
    vocab = fast.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=lambda token: vocab[token])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CONTROL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": vocab.get(CONTROL[0], 0),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


@cache
def small_tokenizer() -> Tokenizer:
    described = gguf_metadata(train_fast(), "gpt-2")
    return load_tokenizer(TokenizerSource("gguf", Path("small.gguf"), described))


def chunked(text: Sequence[Any], cuts: Iterable[int]) -> list[Any]:
    """The pieces between these places, empty ones among them."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]
