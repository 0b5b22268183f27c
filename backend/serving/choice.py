"""One choice of an answer: its events as deltas in OpenAI's words, with an end and logprobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from backend.engine.interface import FinishReason, TokenEvent, TokenLogprob
from backend.serving.answer import AnswerDelta, AnswerReader
from backend.serving.detokenizer import Detokenizer
from backend.serving.reasoning import ReasoningSplitter
from backend.serving.stop_strings import StopAutomaton, StopStrings
from backend.serving.tokenizer import Tokenizer
from backend.serving.tool_calls import ToolCall, ToolFormat
from backend.serving.tool_parsers import make_parser


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """How the answers of one request are read; shared by its choices."""

    tokenizer: Tokenizer
    stops: StopAutomaton | None = None
    splits_reasoning: bool = False
    is_reasoning_open: bool = False  # the prompt ends inside the reasoning
    tool_format: ToolFormat | None = None
    tool_names: frozenset[str] = frozenset()
    # What the prompt already holds of a call that the request demands; the parser reads it first.
    call_start: str = ""
    is_one_call: bool = False  # nothing is wanted behind the first call
    shown_ids: Collection[int] = ()

    def reader(self) -> AnswerReader:
        tools = None
        if self.tool_format is not None:
            tools = make_parser(self.tool_format, self.tool_names)
            tools.feed(self.call_start)
        splitter = ReasoningSplitter(is_open=self.is_reasoning_open)
        return AnswerReader(
            Detokenizer(self.tokenizer, shown_ids=self.shown_ids),
            stops=StopStrings(self.stops) if self.stops is not None else None,
            reasoning=splitter if self.splits_reasoning else None,
            tools=tools,
        )


@dataclass(slots=True)
class Delta:
    """What is new. `finish` in OpenAI's words ends the answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls or self.logprobs or self.finish)


class Choice:
    """Feed it every event of one sequence until it `has_ended`: at a stop string, or behind the
    one call that is wanted, that is before the engine ends the sequence."""

    def __init__(self, shape: AnswerShape) -> None:
        self._reader = shape.reader()
        self._is_one_call = shape.is_one_call
        self._logprobs = _HeldLogprobs(shape)
        self._num_calls = 0
        self.has_ended = False
        self.num_generated = 0
        self.num_cached_tokens = 0

    def take(self, event: TokenEvent) -> Delta:
        """What the event completes."""
        self.num_generated = event.num_generated
        self.num_cached_tokens = event.num_cached_tokens
        delta = Delta()
        self._add(delta, self._reader.feed(event.token_ids))
        is_stopped = self._reader.stop_matched is not None
        if is_stopped or event.finish is not None:
            self._add(delta, self._reader.finish())
            self._end(delta, is_length=not is_stopped and event.finish is FinishReason.LENGTH)
        elif self._has_enough:
            self._end(delta, is_length=False)
        if event.logprobs or self.has_ended:
            delta.logprobs = self._logprobs.take(event, is_last=self.has_ended)
        return delta

    def _add(self, delta: Delta, new: AnswerDelta) -> None:
        delta.reasoning += new.reasoning
        for piece in new.pieces:
            if self._has_enough:
                break
            if isinstance(piece, ToolCall):
                delta.calls.append(piece)
                self._num_calls += 1
            else:
                delta.content += piece

    @property
    def _has_enough(self) -> bool:
        return self._is_one_call and self._num_calls > 0

    def _end(self, delta: Delta, *, is_length: bool) -> None:
        self.has_ended = True
        if is_length and not self._has_enough:
            delta.finish = "length"
        else:
            delta.finish = "tool_calls" if self._num_calls else "stop"


class _HeldLogprobs:
    """Where there are stop strings, a token's logprob waits until its text may go out, so that
    none is told of text that is cut off."""

    def __init__(self, shape: AnswerShape) -> None:
        self._tokenizer = shape.tokenizer
        self._detokenizer = Detokenizer(shape.tokenizer, shown_ids=shape.shown_ids)
        self._stops = StopStrings(shape.stops) if shape.stops is not None else None
        self._hidden_ids = shape.tokenizer.control_ids - frozenset(shape.shown_ids)
        self._held: deque[tuple[int, TokenLogprob]] = deque()  # with where its text begins
        self._num_bytes_in = 0
        self._num_bytes_out = 0

    def take(self, event: TokenEvent, *, is_last: bool) -> list[TokenLogprob]:
        if self._stops is None:
            return list(event.logprobs)
        for each in event.logprobs:
            self._held.append((self._num_bytes_in, each))
            if each.token_id not in self._hidden_ids:
                self._num_bytes_in += len(self._tokenizer.token_bytes(each.token_id))
        text = self._stops.feed(self._detokenizer.feed(event.token_ids))
        self._num_bytes_out += len(text.encode())
        released = []
        is_whole = is_last and self._stops.matched is None
        while self._held and (is_whole or self._held[0][0] < self._num_bytes_out):
            released.append(self._held.popleft()[1])
        return released
