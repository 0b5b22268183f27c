"""What a tool call is, and the formats in which models write one.

hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>, repeated   (Hermes, Qwen)
llama3    {"name": …, "parameters": {…}}; …   as the whole answer          (Llama 3)
mistral   [TOOL_CALLS][{"name": …, "arguments": {…}}, …]                   (Mistral)
          [TOOL_CALLS]name[ARGS]{…}, repeated                              (Mistral, newer)
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_ID_CHARACTERS = string.ascii_letters + string.digits


class ToolFormat(StrEnum):
    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


def format_of(template: str) -> ToolFormat | None:
    """What a model with this chat template writes; None: it was not made for tools."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template:
        return ToolFormat.HERMES
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL
    if "<|python_tag|>" in template or '"parameters"' in template:
        return ToolFormat.LLAMA3
    return None


def markers_of(tool_format: ToolFormat) -> tuple[str, ...]:
    """Tokens to be written out for the parser, although they may be control tokens."""
    return {
        ToolFormat.HERMES: ("<tool_call>", "</tool_call>"),
        ToolFormat.LLAMA3: ("<|python_tag|>",),
        ToolFormat.MISTRAL: ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    }[tool_format]


def id_maker(tool_format: ToolFormat) -> Callable[[], str]:
    """Random ids of the shape that the format's templates take."""
    # Mistral's templates refuse ids that are not nine letters or digits.
    size, prefix = (9, "") if tool_format is ToolFormat.MISTRAL else (24, "call_")
    return lambda: prefix + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(size))


class CallReader:
    """JSON text → calls of tools that were offered; None for anything else."""

    def __init__(self, names: frozenset[str], make_id: Callable[[], str]) -> None:
        self._names = names
        self._make_id = make_id

    def one(self, text: str) -> list[ToolCall] | None:
        return self._calls([_parsed(text)])

    def several(self, text: str) -> list[ToolCall] | None:
        found = _parsed(text)
        return self._calls(found) if isinstance(found, list) and found else None

    def named(self, name: str, arguments: str) -> list[ToolCall] | None:
        return self._calls([{"name": name, "arguments": _parsed(arguments)}])

    def _calls(self, found: list[Any]) -> list[ToolCall] | None:
        read = [_name_and_arguments(each) for each in found]
        known = [each for each in read if each is not None and each[0] in self._names]
        if len(known) < len(found):
            return None
        return [ToolCall(self._make_id(), name, arguments) for name, arguments in known]


def _name_and_arguments(found: Any) -> tuple[str, str] | None:
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the object as a string
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict):
        return None
    return found["name"], json.dumps(arguments, ensure_ascii=False)


def _parsed(text: str) -> Any:
    """None for what is no JSON; NaN and Infinity are none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
