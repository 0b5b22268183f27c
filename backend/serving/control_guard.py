"""Keeps what a caller wrote from becoming control tokens.

A chat template mixes control tokens of its own with strings of the caller, and one string comes
out. Before it runs, every place in the caller's strings where a control token could begin gets a
mark behind its first character; after it ran, control tokens are looked for with the marks in
place, then the marks are taken out and the rest is encoded as plain text. So `<|im_end|>` in a
message reaches the model as the characters it is made of, whatever the template did to the message.

The mark is one private-use character that occurs nowhere in the request. Marked are whole control
tokens, and a beginning of one at a string's end or an end of one at its start, so that two strings
cannot make one together. Strings without any of these, nearly all, are passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A rendered chat. `mark` is in it wherever a control token must not be seen; "": nowhere."""

    text: str
    mark: str = ""


class ControlGuard:
    """Knows one tokenizer's control tokens by their text. A token of one character is left out."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        self._tokens = sorted({t for t in control_tokens if len(t) > 1}, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, self._tokens))
        self._any = re.compile(alternatives) if self._tokens else None
        # A look-ahead, so that tokens that overlap are all found.
        self._begins = re.compile(f"(?=(?:{alternatives}))") if self._tokens else None
        self._heads = {token[:size] for token in self._tokens for size in range(1, len(token))}
        self._tails = {token[-size:] for token in self._tokens for size in range(1, len(token))}
        self._len_max = max(map(len, self._tokens), default=0)

    def protect(self, value: Any) -> tuple[Any, str]:
        """A JSON value → the same with marks, and the mark; ("" if none was needed)."""
        mark = ""

        def marked(text: str) -> str:
            nonlocal mark
            places = self._places(text)
            if not places:
                return text
            mark = mark or _unused_character(value)
            for place in sorted(places, reverse=True):
                text = text[:place] + mark + text[place:]
            return text

        return _mapped(value, marked), mark

    def split(self, marked: MarkedText) -> Iterator[tuple[str, bool]]:
        """Pieces in order, each with whether it is a control token; the marks are taken out."""
        last = 0
        for match in self._any.finditer(marked.text) if self._any else ():
            yield from _plain(marked.text[last : match.start()], marked.mark)
            yield match[0], True
            last = match.end()
        yield from _plain(marked.text[last:], marked.mark)

    def _places(self, text: str) -> set[int]:
        """Where a mark must stand: behind the first, or before the last, character of a token."""
        if self._begins is None:
            return set()
        places = {match.start() + 1 for match in self._begins.finditer(text)}
        # Templates trim; what then stands at the end or start counts too.
        for ending in {text, text.rstrip()}:
            for size in range(1, min(self._len_max, len(ending) + 1)):
                if ending[-size:] in self._heads:
                    places.add(len(ending) - size + 1)
        for skipped in {0, len(text) - len(text.lstrip())}:
            for size in range(1, min(self._len_max, len(text) - skipped + 1)):
                if text[skipped : skipped + size] in self._tails:
                    places.add(skipped + size - 1)
        return places


def _plain(text: str, mark: str) -> Iterator[tuple[str, bool]]:
    text = text.replace(mark, "") if mark else text
    if text:
        yield text, False


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(each, change) for each in value]
    return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _strings(key)
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)


def _unused_character(value: Any) -> str:
    used = {character for text in _strings(value) if not text.isascii() for character in text}
    return next(chr(code) for code in _PRIVATE_USE if chr(code) not in used)
