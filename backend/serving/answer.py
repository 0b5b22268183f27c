"""From the tokens of one answer to what a client reads: text, reasoning, tool calls.

Tokens become text; the text ends before a stop string; reasoning is split off; tool calls are found
in the rest. Each stage holds back only what it cannot decide yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backend.serving.detokenizer import Detokenizer
from backend.serving.reasoning import ReasoningSplitter, Split
from backend.serving.stop_strings import StopStrings
from backend.serving.tool_parsers import Piece, ToolCallParser


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What is new, reasoning first; texts and tool calls in order."""

    reasoning: str = ""
    pieces: tuple[Piece, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.pieces)


class AnswerReader:
    """One answer. None for a stage that the request does not want."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stops: StopStrings | None = None,
        reasoning: ReasoningSplitter | None = None,
        tools: ToolCallParser | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._reasoning = reasoning
        self._tools = tools

    @property
    def stop_matched(self) -> str | None:
        """The stop string that has ended the answer: cancel the rest, then call `finish`."""
        return None if self._stops is None else self._stops.matched

    def feed(self, token_ids: Iterable[int]) -> AnswerDelta:
        text = self._detokenizer.feed(token_ids)
        if self._stops is not None:
            text = self._stops.feed(text)
        split = Split(content=text) if self._reasoning is None else self._reasoning.feed(text)
        return self._delta(split)

    def finish(self) -> AnswerDelta:
        """Everything that was held back."""
        text = self._detokenizer.finish()
        if self._stops is not None:
            text = self._stops.feed(text) + self._stops.finish()
        split = Split(content=text)
        if self._reasoning is not None:
            first, last = self._reasoning.feed(text), self._reasoning.finish()
            split = Split(first.reasoning + last.reasoning, first.content + last.content)
        delta = self._delta(split)
        if self._tools is None:
            return delta
        return AnswerDelta(delta.reasoning, (*delta.pieces, *self._tools.finish()))

    def _delta(self, split: Split) -> AnswerDelta:
        if self._tools is not None:
            return AnswerDelta(split.reasoning, tuple(self._tools.feed(split.content)))
        return AnswerDelta(split.reasoning, (split.content,) if split.content else ())
