"""A chat or a raw prompt as token ids, and how the answer to it is to be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.errors import BadRequest
from backend.serving.chat_template import ChatTemplate
from backend.serving.choice import AnswerShape
from backend.serving.control_guard import MarkedText
from backend.serving.reasoning import CLOSE, OPEN, is_reasoning_open
from backend.serving.stop_strings import StopAutomaton
from backend.serving.tokenizer import Tokenizer
from backend.serving.tool_calls import ToolFormat, format_of, markers_of

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Messages and tools as templates read them. `forced_tool`: "" for any; None: none is."""

    messages: Messages
    tools: Messages = ()
    forced_tool: str | None = None
    is_one_call: bool = False
    stops: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    shape: AnswerShape


class TextSide:
    """What serving knows of a model's text. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UnsafeFormat for a chat template that may not be used."""
        self.tokenizer = tokenizer
        self._templates = {
            name: ChatTemplate(source, tokenizer.template_tokens, tokenizer.guard)
            for name, source in tokenizer.chat_templates.items()
        }

    @property
    def has_chat(self) -> bool:
        return bool(self._templates)

    @property
    def can_call_tools(self) -> bool:
        return self.has_chat and format_of(self._template(has_tools=True).source) is not None

    @property
    def can_reason(self) -> bool:
        return any(OPEN in each.source for each in self._templates.values())

    def chat_prompt(self, chat: ChatRequest) -> Prompt:
        """Raises BadRequest: no template, no place for tools in it, or it refuses the messages."""
        template = self._template(has_tools=bool(chat.tools))
        tool_format = self._tool_format(template) if chat.tools else None
        rendered = template.render(
            [_for_template(each) for each in chat.messages],
            tools=chat.tools,
            variables=chat.variables,
        )
        is_open = is_reasoning_open(rendered.text)
        start = ""
        if tool_format is not None and chat.forced_tool is not None:
            start = call_start(tool_format, chat.forced_tool)
            # A call stands behind the reasoning, which is closed without a word.
            lead = f"\n{CLOSE}\n\n" if is_open else ""
            is_open = False
            rendered = MarkedText(rendered.text + lead + start, rendered.mark)
        shape = AnswerShape(
            tokenizer=self.tokenizer,
            stops=StopAutomaton(chat.stops) if chat.stops else None,
            splits_reasoning=OPEN in template.source and not start,
            is_reasoning_open=is_open,
            tool_format=tool_format,
            tool_names=frozenset(each["function"]["name"] for each in chat.tools),
            call_start=start,
            is_one_call=chat.is_one_call,
            shown_ids=self._shown_ids(tool_format, OPEN in template.source),
        )
        return Prompt(tuple(self.tokenizer.encode_chat(rendered)), shape)

    def raw_prompt(self, given: str | Sequence[int], stops: tuple[str, ...]) -> Prompt:
        """Raises BadRequest for token ids that the model does not have."""
        if isinstance(given, str):
            token_ids = tuple(self.tokenizer.encode_prompt(given))
        else:
            self.tokenizer.check_ids(given, "prompt")
            token_ids = tuple(given)
        if not token_ids:
            raise BadRequest("`prompt` is empty; send at least one token", param="prompt")
        automaton = StopAutomaton(stops) if stops else None
        return Prompt(token_ids, AnswerShape(tokenizer=self.tokenizer, stops=automaton))

    def _template(self, *, has_tools: bool) -> ChatTemplate:
        wanted = ("tool_use", "default") if has_tools else ("default", "tool_use")
        for name in (*wanted, *self._templates):
            if name in self._templates:
                return self._templates[name]
        raise BadRequest("this model has no chat template; use /v1/completions", param="messages")

    def _tool_format(self, template: ChatTemplate) -> ToolFormat:
        found = format_of(template.source)
        if found is None:
            raise BadRequest(
                "this model's chat template has no place for tools; send none", param="tools"
            )
        return found

    def _shown_ids(self, tool_format: ToolFormat | None, can_reason: bool) -> frozenset[int]:
        markers = markers_of(tool_format) if tool_format is not None else ()
        tags = (OPEN, CLOSE) if can_reason else ()
        known = self.tokenizer.control_tokens
        return frozenset(known[each] for each in (*markers, *tags) if each in known)


def call_start(tool_format: ToolFormat, name: str) -> str:
    """The first characters of a call, to be put behind the prompt when one is demanded.

    Nothing constrains what the model writes behind them.
    """
    opening = {
        ToolFormat.HERMES: "<tool_call>\n",
        ToolFormat.LLAMA3: "",
        ToolFormat.MISTRAL: "[TOOL_CALLS][",
    }[tool_format]
    key = "parameters" if tool_format is ToolFormat.LLAMA3 else "arguments"
    head = '{"name": "'
    return f'{opening}{head}{name}", "{key}": ' if name else opening + head


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of earlier calls as objects: templates write them out by themselves."""
    made = dict(message)
    if made["role"] == "developer":
        made["role"] = "system"
    if calls := made.get("tool_calls"):
        made["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _parsed(call)}} for call in calls
        ]
    return made


def _parsed(call: Mapping[str, Any]) -> Any:
    text = call["function"].get("arguments", "")
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return text
    return found if isinstance(found, dict) else text
