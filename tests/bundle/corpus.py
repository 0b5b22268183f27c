"""Conversations out of the grammar, and prompts to answer. All of it follows from a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.bundle.chat import chat
from tests.bundle.problems import Turn, problem

Message = dict[str, str]
Line = dict[str, Any]  # of a prompt file, as `backend.train.prompts.files` reads it

# What is drawn for: the target's training, a head's training, and what neither has seen.
TARGET, HEADS, HELD_OUT = "target", "heads", "held out"
NUM_PROMPTS = 1600  # that the heads are trained on
_MATH_SHARE = 0.5


def turns(draw: str, seed: int) -> Iterator[tuple[str, Turn]]:
    """(kind, turn) without end."""
    rng = random.Random(f"{draw} {seed}")
    while True:
        is_math = rng.random() < _MATH_SHARE
        yield ("math", problem(rng)) if is_math else ("chat", chat(rng))


def messages_of(made: Sequence[Turn]) -> list[Message]:
    roles = ("user", "assistant")
    return [
        {"role": role, "content": text}
        for turn in made
        for role, text in zip(roles, turn, strict=True)
    ]


def prompts(seed: int, number: int) -> list[Line]:
    """For the heads' training."""
    return list(itertools.islice(_lines(HEADS, seed), number))


def held_out_prompts(seed: int, number: int, *, unlike: Iterable[Line]) -> list[Line]:
    """Without any question that one of `unlike` asks."""
    known = {question(each) for each in unlike}
    fresh = (each for each in _lines(HELD_OUT, seed) if question(each) not in known)
    return list(itertools.islice(fresh, number))


def question(line: Line) -> str:
    asked: str = line["messages"][-1]["content"]
    return asked


def _lines(draw: str, seed: int) -> Iterator[Line]:
    """One to three turns each."""
    rng, source = random.Random(f"lengths {draw} {seed}"), turns(draw, seed)
    while True:
        taken = [next(source) for _ in range(rng.choice((1, 1, 2, 3)))]
        yield {"messages": messages_of([turn for _, turn in taken])[:-1], "kind": taken[-1][0]}
