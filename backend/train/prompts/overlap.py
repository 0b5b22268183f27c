"""Nothing that a head is measured on may be among what it is trained on."""

from __future__ import annotations

import re
from collections.abc import Iterable

GRAM = 13  # words; the size that the GPT-3 paper (arXiv 2005.14165, appendix C) uses
_WORD = re.compile(r"[a-z0-9]+")


class HeldOut:
    """Texts that are kept out, by the runs of words in them."""

    def __init__(self, texts: Iterable[str], gram: int = GRAM) -> None:
        self._gram = gram
        self._grams: set[tuple[str, ...]] = set()
        for text in texts:
            self._grams.update(self._of(text))

    def overlaps(self, text: str) -> bool:
        """Whether any run of 13 words is in one that is kept out; of a shorter text, whether one
        that is kept out says the same and no more."""
        return any(each in self._grams for each in self._of(text))

    def _of(self, text: str) -> list[tuple[str, ...]]:
        """Case and punctuation do not count."""
        words = _WORD.findall(text.lower())
        last = max(1, len(words) - self._gram + 1)
        return [tuple(words[at : at + self._gram]) for at in range(last)] if words else []
