"""Texts for SmolLM2-135M-Instruct, the real model of the slow tests: a question, and a long one."""

from __future__ import annotations

import importlib
import inspect

END = 2  # <|im_end|>
# Long explanations in English with some code; the order fixes the text.
DOCUMENTED = (
    "argparse decimal heapq statistics difflib pdb pickletools random optparse doctest zipfile enum"
)


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
