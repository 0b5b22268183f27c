"""Splits an answer into what the model thought and what it says.

A model that reasons writes `<think>…</think>` before its answer; some templates write the opening
tag into the prompt, so that the answer starts inside. Only the beginning of an answer counts: a
later `<think>` is text. Line ends next to the tags belong to neither part.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Split:
    """New text of both parts."""

    reasoning: str = ""
    content: str = ""


class _State(Enum):
    START = auto()  # the opening tag may still come
    REASONING_START = auto()  # line ends behind the opening tag
    REASONING = auto()
    CONTENT_START = auto()  # line ends behind the closing tag
    CONTENT = auto()


def is_reasoning_open(prompt: str) -> bool:
    """Whether the rendered prompt ends inside the reasoning."""
    return prompt.rstrip().endswith(OPEN)


class ReasoningSplitter:
    """One answer. `is_open`: it starts inside the reasoning."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._state = _State.REASONING_START if is_open else _State.START
        self._held = ""

    def feed(self, text: str) -> Split:
        return self._read(text, is_last=False)

    def finish(self) -> Split:
        """The answer has ended: what was held back belongs to the part it stands in."""
        return self._read("", is_last=True)

    def _read(self, text: str, *, is_last: bool) -> Split:
        reasoning: list[str] = []
        text, self._held = self._held + text, ""
        if self._state is _State.START:
            text = self._begin(text, is_last)
        if self._state is _State.REASONING_START:
            text = text.lstrip("\n")
            if text:
                self._state = _State.REASONING
        if self._state is _State.REASONING:
            text = self._think(text, reasoning, is_last)
        if self._state is _State.CONTENT_START:
            text = text.lstrip("\n")
            if text:
                self._state = _State.CONTENT
        content = text if self._state is _State.CONTENT else ""
        return Split("".join(reasoning), content)

    def _begin(self, text: str, is_last: bool) -> str:
        stripped = text.lstrip()
        if stripped.startswith(OPEN):
            self._state = _State.REASONING_START
            return stripped[len(OPEN) :]
        if OPEN.startswith(stripped) and not is_last:  # blanks alone too
            self._held = text
            return ""
        self._state = _State.CONTENT
        return text

    def _think(self, text: str, reasoning: list[str], is_last: bool) -> str:
        at = text.find(CLOSE)
        if at >= 0:
            reasoning.append(text[:at].rstrip("\n"))
            self._state = _State.CONTENT_START
            return text[at + len(CLOSE) :]
        num_out = len(text) if is_last else _settled_len(text)
        reasoning.append(text[:num_out].rstrip("\n") if is_last else text[:num_out])
        self._held = text[num_out:]
        return ""


def _settled_len(text: str) -> int:
    """How much of it is reasoning whatever follows: not the start of a closing tag, and not the
    line ends that may stand before one."""
    end = len(text)
    for size in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-size:]):
            end -= size
            break
    return len(text[:end].rstrip("\n"))
