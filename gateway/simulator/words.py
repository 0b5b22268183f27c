"""The built-in text generator: words of a fixed list, drawn by a seeded generator, and labelled."""

from __future__ import annotations

import random
from hashlib import blake2b

LABEL = "[simulated]"
BYTES_PER_TOKEN = 4

_WORDS = """
the a of and to in for with on by from as at is are was can may will one two each every
request answer token stream router price second model provider gateway budget measure
signal river garden window letter morning engine harbour mountain paper silver copper
field bridge market lantern compass station valley forest island meadow orchard village
steady quick quiet bright early late small large simple careful honest plain clear warm
moves holds turns keeps finds sends takes gives shows opens closes counts waits begins
slowly often always never again together apart between before after under over through
where when which while because although until since yet so then than more less most few
"""

# One entry is one token. Leading spaces make any run of entries readable text.
WORDS: tuple[str, ...] = (
    *(f" {word}" for word in _WORDS.split()),
    ",",
    ",",
    ".",
    ".",
    ".\n",
)


def text_tokens(rng: random.Random, num_tokens: int) -> list[str]:
    """`num_tokens` tokens of text; the first is the label that says it is simulated."""
    if num_tokens <= 0:
        return []
    return [LABEL, *rng.choices(WORDS, k=num_tokens - 1)]


def split_tokens(text: str) -> list[str]:
    """Text that must come out exactly (JSON), in token-sized pieces."""
    return [text[i : i + BYTES_PER_TOKEN] for i in range(0, len(text), BYTES_PER_TOKEN)]


def count_tokens(text: bytes) -> int:
    return -(-len(text) // BYTES_PER_TOKEN)


def text_rng(prompt: bytes, *salt: int | str) -> random.Random:
    """A generator that is the same for the same prompt and salt, on any machine."""
    digest = blake2b(prompt, digest_size=8, key=repr(salt).encode()[:64])
    return random.Random(int.from_bytes(digest.digest()))


def answer_length(rng: random.Random, median: int, sigma: float, tokens_max: int) -> int:
    return max(1, min(tokens_max, round(median * rng.lognormvariate(0.0, sigma))))
