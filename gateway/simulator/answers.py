"""What the simulated provider will say: tokens by choice and segment, before any wire format."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import msgspec

from gateway.simulator.asks import Ask, AskError, Tool
from gateway.simulator.instances import SchemaNotSupported, instance
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.words import LABEL, answer_length, split_tokens, text_rng, text_tokens


class Kind(StrEnum):
    REASONING = "reasoning"
    TEXT = "text"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One run of tokens of one kind; for a tool call the tokens are its JSON arguments."""

    kind: Kind
    tokens: tuple[str, ...]
    call_id: str = ""
    tool_name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    segments: tuple[Segment, ...]
    finish: str  # "stop" | "length" | "tool_calls" | "stop_sequence"
    stop_sequence: str = ""

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.segments if each.kind is Kind.TEXT)

    @property
    def reasoning(self) -> str:
        return "".join(each.text for each in self.segments if each.kind is Kind.REASONING)

    @property
    def tools(self) -> tuple[Segment, ...]:
        return tuple(each for each in self.segments if each.kind is Kind.TOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    choices: tuple[Choice, ...]
    output: int  # tokens, reasoning not included
    reasoning: int


def compose(ask: Ask, profile: ProviderProfile, nonce: int) -> Answer:
    """The whole answer. Equal for an equal ask when it is greedy or seeded; else `nonce` varies it.

    Raises AskError when a schema cannot be satisfied.
    """
    salt = 0 if ask.is_greedy and ask.seed is None else ask.seed
    choices = tuple(
        _choice(ask, profile, text_rng(ask.prompt, index, nonce if salt is None else salt))
        for index in range(ask.num_choices)
    )
    counted = [segment for choice in choices for segment in choice.segments]
    reasoning = sum(len(each.tokens) for each in counted if each.kind is Kind.REASONING)
    total = sum(len(each.tokens) for each in counted)
    return Answer(choices=choices, output=total - reasoning, reasoning=reasoning)


def _choice(ask: Ask, profile: ProviderProfile, rng: random.Random) -> Choice:
    segments = [_reasoning(ask, profile, rng)] if _num_reasoning(ask, profile) else []
    called = _called_tools(ask)
    finish = "stop"
    stop_sequence = ""
    try:
        if called:
            segments += [_call(tool, rng) for tool in called]
            finish = "tool_calls"
        else:
            body, stop_sequence = _stopped(_body(ask, profile, rng), ask.stop)
            segments.append(body)
            finish = "stop_sequence" if stop_sequence else "stop"
    except SchemaNotSupported as error:
        raise AskError(f"Invalid schema: {error}", "schema") from error
    cap = min(ask.max_tokens or profile.output_tokens_max, profile.output_tokens_max)
    if sum(len(each.tokens) for each in segments) > cap:
        return Choice(segments=_capped(segments, cap), finish="length")
    return Choice(segments=tuple(segments), finish=finish, stop_sequence=stop_sequence)


def _num_reasoning(ask: Ask, profile: ProviderProfile) -> int:
    wanted = ask.directives.get("reasoning")
    if wanted is not None and wanted.isdigit():
        return int(wanted)
    if not ask.wants_reasoning:
        return 0
    return min(profile.reasoning_tokens, ask.reasoning_tokens_max or profile.reasoning_tokens)


def _reasoning(ask: Ask, profile: ProviderProfile, rng: random.Random) -> Segment:
    return Segment(
        kind=Kind.REASONING, tokens=tuple(text_tokens(rng, _num_reasoning(ask, profile)))
    )


def _body(ask: Ask, profile: ProviderProfile, rng: random.Random) -> Segment:
    if ask.json_schema is not None:
        value = instance(ask.json_schema, rng)
        return Segment(kind=Kind.TEXT, tokens=_json_tokens(value))
    if ask.json_object:
        value = {"simulated": True, "answer": LABEL + rng.choice((" yes", " no", " perhaps"))}
        return Segment(kind=Kind.TEXT, tokens=_json_tokens(value))
    wanted = ask.directives.get("tokens", "")
    num_tokens = (
        min(int(wanted), profile.output_tokens_max)
        if wanted.isdigit()
        else answer_length(
            rng, profile.answer_tokens_median, profile.answer_sigma, profile.output_tokens_max
        )
    )
    return Segment(kind=Kind.TEXT, tokens=tuple(text_tokens(rng, num_tokens)))


def _json_tokens(value: object) -> tuple[str, ...]:
    return tuple(split_tokens(msgspec.json.encode(value).decode()))


def _called_tools(ask: Ask) -> tuple[Tool, ...]:
    """Which tools the "model" calls: the one it must, those the user names, else the first.

    After a tool result it answers in text, so that a tool loop ends.
    """
    if not ask.tools or ask.tool_mode == "none":
        return ()
    if ask.tool_mode not in ("auto", "required"):
        return tuple(tool for tool in ask.tools if tool.name == ask.tool_mode)
    if ask.tool_mode == "auto" and ask.after_tool_result:
        return ()
    named = tuple(tool for tool in ask.tools if tool.name in ask.user_text)
    return (named if ask.is_parallel else named[:1]) or ask.tools[:1]


def _call(tool: Tool, rng: random.Random) -> Segment:
    arguments = instance(tool.schema, rng)
    return Segment(
        kind=Kind.TOOL,
        tokens=_json_tokens(arguments),
        call_id=f"{rng.getrandbits(96):024x}",
        tool_name=tool.name,
    )


def _stopped(segment: Segment, stop: tuple[str, ...]) -> tuple[Segment, str]:
    """The segment up to the first stop string (not included), and which one it was."""
    text = segment.text
    found = min(((at, each) for each in stop if (at := text.find(each)) >= 0), default=None)
    if found is None:
        return segment, ""
    end, matched = found
    kept: list[str] = []
    for token in segment.tokens:
        if end <= 0:
            break
        kept.append(token[:end])
        end -= len(token)
    return replace(segment, tokens=tuple(kept)), matched


def _capped(segments: list[Segment], cap: int) -> tuple[Segment, ...]:
    kept: list[Segment] = []
    for segment in segments:
        if cap <= 0:
            break
        kept.append(replace(segment, tokens=segment.tokens[:cap]))
        cap -= len(segment.tokens)
    return tuple(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A few tokens of one segment that go out together."""

    choice: int
    segment: int
    kind: Kind
    tokens: tuple[str, ...]
    is_first: bool  # of its segment
    is_last: bool


def events(answer: Answer, tokens_per_event: int) -> Iterator[Event]:
    """The answer in the order it is sent: choices take turns, as real servers send them."""
    waiting = [_choice_events(i, each, tokens_per_event) for i, each in enumerate(answer.choices)]
    while waiting:
        for each in list(waiting):
            event = next(each, None)
            if event is None:
                waiting.remove(each)
            else:
                yield event


def _choice_events(index: int, choice: Choice, tokens_per_event: int) -> Iterator[Event]:
    for place, segment in enumerate(choice.segments):
        num_tokens = len(segment.tokens)
        for start in range(0, num_tokens, tokens_per_event):
            yield Event(
                choice=index,
                segment=place,
                kind=segment.kind,
                tokens=segment.tokens[start : start + tokens_per_event],
                is_first=start == 0,
                is_last=start + tokens_per_event >= num_tokens,
            )
