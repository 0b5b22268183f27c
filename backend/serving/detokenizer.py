"""Tokens to text as they come: never half a character, and each token is looked at once."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from backend.serving.tokenizer import Tokenizer


class Detokenizer:
    """One answer. A character whose bytes lie in several tokens comes with the last of them.

    `shown_ids`: control tokens to write out, because a parser behind this looks for them; all
    others are left out.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.control_ids - frozenset(shown_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that is complete now."""
        spelled = (
            self._tokenizer.token_bytes(token_id)
            for token_id in token_ids
            if token_id not in self._hidden_ids
        )
        return self._decoder.decode(b"".join(spelled))

    def finish(self) -> str:
        """What is left: U+FFFD if the answer ended inside a character."""
        return self._decoder.decode(b"", final=True)
