"""Prompt files: JSON lines, one conversation each, whose next answer the target is to write.

    {"messages": [{"role": "user", "content": "…"}], "kind": "chat", "temperature": 0.0}
    {"prompt": "raw text", "kind": "code"}

Assistant turns at the end are dropped: the target writes its own. `kind` and `temperature` may be
left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import BadRequest, SetupError
from backend.serving.prompting import ChatRequest, TextSide

LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class PromptLine:
    """`number` counts lines from 1."""

    number: int
    kind: str
    temperature: float
    messages: tuple[Mapping[str, Any], ...] = ()
    text: str = ""  # a raw prompt, where there are no messages

    def token_ids(self, text_side: TextSide) -> tuple[int, ...]:
        """Raises BadRequest for what the model's template does not take."""
        if self.messages:
            return text_side.chat_prompt(ChatRequest(messages=self.messages)).token_ids
        return text_side.raw_prompt(self.text, ()).token_ids


def read_prompts(path: Path) -> Iterator[PromptLine]:
    """Raises SetupError naming file and line for one that cannot be used."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parsed(line, f"{path}:{number}", number)
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from error


def write_prompts(path: Path, lines: Iterable[Mapping[str, Any]]) -> int:
    """Returns how many were written. The file is there whole or not at all."""
    unfinished, number = path.with_name(f".{path.name}.part"), 0
    with unfinished.open("w", encoding="utf-8") as file:
        for number, line in enumerate(lines, 1):  # noqa: B007 - the last one is the count
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    unfinished.replace(path)
    return number


def _parsed(line: bytes, where: str, number: int) -> PromptLine:
    if len(line) > LINE_BYTES_MAX:
        raise SetupError(f"{where}: {len(line)} bytes; a line has at most {LINE_BYTES_MAX}")
    try:
        raw = json.loads(line)
    except ValueError as error:
        raise SetupError(f"{where}: not JSON ({error}); write one object a line") from error
    if not isinstance(raw, dict):
        raise SetupError(f"{where}: not an object; write {{'messages': […]}} or {{'prompt': '…'}}")
    kind, temperature = raw.get("kind", ""), raw.get("temperature", 0.0)
    if not isinstance(kind, str) or not isinstance(temperature, int | float):
        raise SetupError(f"{where}: `kind` is a text and `temperature` a number")
    if not 0.0 <= temperature <= 2.0:
        raise SetupError(f"{where}: temperature {temperature} is not from 0 to 2")
    if isinstance(raw.get("prompt"), str) and raw["prompt"]:
        return PromptLine(number, kind, float(temperature), text=raw["prompt"])
    return PromptLine(number, kind, float(temperature), _turns(raw.get("messages"), where))


def _turns(messages: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(messages, list) or not all(
        isinstance(each, dict)
        and isinstance(each.get("role"), str)
        and isinstance(each.get("content"), str)
        for each in messages
    ):
        raise SetupError(f"{where}: `messages` is a list of {{'role': …, 'content': 'text'}}")
    kept = list(messages)
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    if not kept:
        raise SetupError(f"{where}: no turn is left that asks for an answer")
    return tuple(kept)


def token_ids_of(line: PromptLine, text_side: TextSide, path: Path) -> tuple[int, ...]:
    """Raises SetupError naming the line where the template refuses it."""
    try:
        return line.token_ids(text_side)
    except BadRequest as error:
        raise SetupError(f"{path}:{line.number}: {error}") from error
