"""Text ↔ token ids. The only place that knows what the ids of a model mean."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from backend.errors import BadRequest
from backend.serving.control_guard import ControlGuard, MarkedText


class ByteCoding(StrEnum):
    """How a vocabulary's strings stand for bytes."""

    BYTE_LEVEL = "byte_level"  # GPT-2: each byte is one printable character
    METASPACE = "metaspace"  # SentencePiece: "▁" for a space, <0x0A> for other bytes


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """What `tokenizer_files` reads out of a directory or a GGUF file."""

    fast: FastTokenizer
    coding: ByteCoding
    control_tokens: Mapping[str, int]  # not to be written by a caller, not shown in an answer
    added_tokens: Mapping[int, str]  # control tokens and others that stand for themselves
    template_tokens: Mapping[str, str]  # bos_token, eos_token…, as templates name them
    end_token_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # "default", "tool_use"


def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + index): byte for index, byte in enumerate(others)},
    }


BYTE_OF_CHARACTER = _byte_of_character()


class Tokenizer:
    """One model's tokenizer; safe to call from several threads."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._fast = parts.fast
        self._coding = parts.coding
        self._added = parts.added_tokens
        # How control tokens in a text are read is a state of the tokenizer underneath.
        self._lock = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        self.guard = ControlGuard(parts.control_tokens)
        self.control_tokens = parts.control_tokens
        self.control_ids = frozenset(parts.control_tokens.values())
        self.template_tokens = parts.template_tokens
        self.end_token_ids = parts.end_token_ids
        self.chat_templates = parts.chat_templates
        self.vocab_size = self._fast.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Plain text: a control token in it becomes the characters that it is written with."""
        return self._encode(text, is_plain=True)

    def encode_prompt(self, text: str) -> list[int]:
        """A raw prompt as /v1/completions takes it: the caller may write control tokens, and what
        the model wants before every text (a begin token, say) is put there."""
        return self._encode(text, is_plain=False, is_whole=True)

    def encode_chat(self, rendered: MarkedText) -> list[int]:
        """What a template made: its own control tokens count, the caller's do not."""
        if not rendered.mark or rendered.mark not in rendered.text:
            return self._encode(rendered.text, is_plain=False)
        ids: list[int] = []
        for piece, is_control in self.guard.split(rendered):
            ids += [self.control_tokens[piece]] if is_control else self.encode(piece)
        return ids

    def decode(self, token_ids: Iterable[int], *, shows_control: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD; control tokens are left out unless asked for."""
        shown = (each for each in token_ids if shows_control or each not in self.control_ids)
        return b"".join(map(self.token_bytes, shown)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text; empty for an id that only pads the vocabulary."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_id(self, token: str) -> int | None:
        """Of a token as the vocabulary writes it."""
        found: int | None = self._fast.token_to_id(token)
        return found

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raises BadRequest for an id that is not in the vocabulary."""
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise BadRequest(
                    f"{param} holds {token_id}; this model has ids below {self.vocab_size}",
                    param=param,
                )

    def _encode(self, text: str, *, is_plain: bool, is_whole: bool = False) -> list[int]:
        # JSON can carry half of a surrogate pair, which is no character.
        text = text.encode("utf-8", "replace").decode("utf-8")
        with self._lock:
            self._fast.encode_special_tokens = is_plain
            encoded: Any = self._fast.encode(text, add_special_tokens=is_whole)
        ids: list[int] = encoded.ids
        return ids

    def _spell(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._fast.id_to_token(token_id)
        if token is None:
            return b""
        if self._coding is ByteCoding.BYTE_LEVEL:
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return str(token).replace("▁", " ").encode()
