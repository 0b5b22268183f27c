"""A prompt file out of several sources, shuffled, without what is held out for measuring."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import BadRequest, SetupError
from backend.serving.loading import Prepared
from backend.train.prompts.code import code_prompts
from backend.train.prompts.files import read_prompts, write_prompts
from backend.train.prompts.overlap import GRAM, HeldOut
from backend.train.prompts.own_turns import own_turns
from backend.train.prompts.word_problems import openings

_MATH_TEMPERATURE, _CHAT_TEMPERATURE = 0.8, 1.0
# Answers to some chats are drawn at random: a head serves those requests as well.
_DRAWN_SHARE, _ANSWER_TEMPERATURE = 0.3, 0.7
_SEED_STEP = 1_000_000  # between the sources


@dataclass(frozen=True, slots=True)
class Recipe:
    """How many of which. `more`: prompt files; `hold_out`: JSON lines with `prompt`."""

    chat: int
    math: int
    code: int
    more: tuple[Path, ...] = ()
    hold_out: tuple[Path, ...] = ()
    seed: int = 0


def make_prompts(recipe: Recipe, prepared: Prepared, out: Path, say: Callable[[str], None]) -> int:
    """How many were written. Raises SetupError for a model without a chat template, and for a file
    that cannot be read."""
    held_out = HeldOut(_held_out_texts(recipe.hold_out))
    rng = random.Random(recipe.seed)  # noqa: S311 - an order, not a secret
    made: dict[str, dict[str, Any]] = {}
    num_left_out = 0
    for kind, turn, temperature in _turns(recipe, prepared, rng, say):
        if held_out.overlaps(turn):
            num_left_out += 1
            continue
        message = {"role": "user", "content": turn}
        made[turn] = {"messages": [message], "kind": kind, "temperature": temperature}
    lines = list(made.values())
    rng.shuffle(lines)
    say(f"{num_left_out} left out, which share {GRAM} words in a row with what is held out")
    return write_prompts(out, lines)


def _turns(
    recipe: Recipe, prepared: Prepared, rng: random.Random, say: Callable[[str], None]
) -> Iterator[tuple[str, str, float]]:
    """(kind, user turn, temperature of its answer)."""
    for path in recipe.more:
        for line in read_prompts(path):
            if not line.messages or line.messages[-1]["role"] != "user":
                raise SetupError(f"{path}:{line.number}: only chats whose last turn is the user's")
            yield line.kind, line.messages[-1]["content"], line.temperature
    for turn in itertools.islice(code_prompts(recipe.seed), recipe.code):
        yield "code", turn, 0.0
    starts = list(itertools.islice(openings(recipe.seed), recipe.math))
    for turn in _own(recipe, prepared, starts, _MATH_TEMPERATURE, say):
        yield "math", turn, 0.0
    for turn in _own(recipe, prepared, [""] * recipe.chat, _CHAT_TEMPERATURE, say):
        yield "chat", turn, _ANSWER_TEMPERATURE if rng.random() < _DRAWN_SHARE else 0.0


def _own(
    recipe: Recipe,
    prepared: Prepared,
    starts: list[str],
    temperature: float,
    say: Callable[[str], None],
) -> Iterator[str]:
    if not starts:
        return
    try:
        turns = own_turns(
            prepared.make_engine(),
            prepared.text,
            starts,
            temperature=temperature,
            seed=recipe.seed * _SEED_STEP,
            at_once=prepared.config.sequences_max,
        )
        for number, turn in enumerate(turns, 1):
            if number % 200 == 0:
                say(f"{number} of {len(starts)} turns of the model's own")
            yield turn
    except BadRequest as error:
        raise SetupError(f"own turns need a chat template: {error}") from error


def _held_out_texts(paths: tuple[Path, ...]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                yield str(json.loads(line)["prompt"])
            except (ValueError, KeyError, TypeError) as error:
                raise SetupError(f"{path}:{number}: no object with a `prompt`") from error
