"""Prompts → what the target answers, written down line by line, so that a stop loses little."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.engine.engine import Engine
from backend.engine.interface import FinishReason
from backend.errors import SetupError
from backend.sampling.params import SamplingParams
from backend.serving.prompting import TextSide
from backend.train.corpus import Text
from backend.train.generating import Wanted, write_all
from backend.train.loops import without_loop
from backend.train.prompts.files import PromptLine, token_ids_of

# (answers so far, of how many, tokens so far).
Progress = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """JSON lines; the first says of which target, and with which limit, the others are."""

    path: Path
    target: str  # fingerprint of the weights
    tokens_max: int

    def read(self) -> dict[int, dict[str, Any]]:
        """Line number of the prompt → its answer. Raises SetupError for another target's file."""
        if not self.path.exists():
            return {}
        with self.path.open("rb") as file:
            head, *lines = file.read().split(b"\n")
        if not lines:
            return {}  # not even the first line is whole: a run that was killed
        if json.loads(head) != self._head:
            raise SetupError(
                f"{self.path} holds answers of another target or of another length limit; name "
                "another folder (--work) or remove it"
            )
        return {each["line"]: each for each in map(_parsed, lines) if each is not None}

    def append(self, answers: Iterator[dict[str, Any]]) -> None:
        with self.path.open("ab+") as file:
            _cut_half_line(file)
            if file.tell() == 0:
                file.write(json.dumps(self._head).encode() + b"\n")
            for each in answers:
                file.write(json.dumps(each).encode() + b"\n")
                file.flush()

    @property
    def _head(self) -> dict[str, Any]:
        return {"target": self.target, "tokens_max": self.tokens_max}


def regenerate(
    engine: Engine,
    text_side: TextSide,
    lines: Sequence[PromptLine],
    kept: AnswerFile,
    *,
    prompts_path: Path,
    at_once: int,
    on_progress: Progress,
) -> list[Text]:
    """Answers what has no answer yet; all texts, in the order of the prompts.

    Prompts that leave no room for an answer are left out. Raises SetupError.
    """
    have = _still_asked(kept.read(), lines, text_side, prompts_path)
    num_tokens = sum(len(each["answer"]) for each in have.values())

    def wanted() -> Iterator[Wanted]:
        for line in lines:
            if line.number in have:
                continue
            prompt = token_ids_of(line, text_side, prompts_path)
            if len(prompt) + kept.tokens_max > engine.context_len_max:
                continue
            params = SamplingParams(
                max_tokens=kept.tokens_max, temperature=line.temperature, seed=line.number
            )
            yield Wanted(line.number, prompt, params)

    def answered() -> Iterator[dict[str, Any]]:
        nonlocal num_tokens
        for each in write_all(engine, wanted(), at_once=at_once):
            if each.finish is FinishReason.ERROR:
                continue
            have[each.wanted.key] = {
                "line": each.wanted.key,
                "temperature": each.wanted.params.temperature,
                "prompt": each.wanted.prompt,
                "answer": each.token_ids,
                "finish": each.finish.value,
            }
            num_tokens += len(each.token_ids)
            on_progress(len(have), len(lines), num_tokens)
            yield have[each.wanted.key]

    kept.append(answered())
    end = text_side.tokenizer.end_token_ids[:1]
    return [
        _text(line, have[line.number], end)
        for line in lines
        if line.number in have and have[line.number]["answer"]
    ]


def _still_asked(
    found: Mapping[int, dict[str, Any]],
    lines: Sequence[PromptLine],
    text_side: TextSide,
    prompts_path: Path,
) -> dict[int, dict[str, Any]]:
    """Answers to what the prompt file says now: it may be another one, or have been changed."""
    return {
        line.number: each
        for line in lines
        if (each := found.get(line.number)) is not None
        and each.get("temperature", line.temperature) == line.temperature
        and tuple(each["prompt"]) == token_ids_of(line, text_side, prompts_path)
    }


def _text(line: PromptLine, found: dict[str, Any], end: tuple[int, ...]) -> Text:
    """Without a tail that runs in circles; with the end token, if the answer came to an end."""
    answer = without_loop(found["answer"])
    is_whole = len(answer) == len(found["answer"])
    if is_whole and found["finish"] == FinishReason.STOP.value:
        answer += end
    return Text(line.kind, tuple(found["prompt"]), answer, is_greedy=line.temperature == 0.0)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for the half line of a run that was killed."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "answer" in found else None


def _cut_half_line(file: Any) -> None:
    """What a run that was killed left behind the last whole line."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        file.truncate(whole)
    file.seek(0, os.SEEK_END)
