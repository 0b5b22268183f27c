"""How much one rendering of a chat template may compute and allocate.

A template comes with the model, so it may be anybody's. The sandbox keeps it from reaching anything
but its variables; this keeps it from never ending and from filling the memory. Every loop turn,
call, operator and concatenation pays; what would be too large is refused before it is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateRuntimeError

RENDER_S_MAX = 2.0
ELEMENTS_MAX = 200_000  # of one list or mapping, all that is nested in it counted
INTEGER_BITS_MAX = 4096
CALLS_PER_LOOK = 16  # at the clock
VALUES_PER_STEP = 32

CONTAINERS = (list, tuple, Mapping, set, frozenset)
SCALARS = frozenset({str, int, float, bool, type(None)})


class TemplateLimit(TemplateRuntimeError):
    """The template wants more than any chat needs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Characters and steps; they grow with what the caller sent, which is bounded elsewhere."""

    text_max: int  # of one string, the whole answer among them
    made_max: int  # of all strings made on the way
    steps_max: int

    @classmethod
    def for_input(cls, num_chars: int, num_values: int) -> Limits:
        return cls(
            text_max=4_000_000 + 8 * num_chars,
            made_max=64_000_000 + 64 * num_chars,
            steps_max=1_000_000 + 500 * num_values,
        )


class Budget:
    """What is left of one rendering. Raises TemplateLimit when it is used up."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_steps = 0
        self._num_made = 0
        self._num_calls = 0
        # Of this thread: what others do on the machine is not the template's fault.
        self._ends_at_s = time.thread_time() + RENDER_S_MAX

    def step(self, count: int = 1) -> None:
        self._num_steps += count
        self._num_calls += 1
        if self._num_steps > self._limits.steps_max:
            raise TemplateLimit("it takes too many steps")
        if self._num_calls % CALLS_PER_LOOK == 0 and time.thread_time() > self._ends_at_s:
            raise TemplateLimit(f"it takes longer than {RENDER_S_MAX:.0f} s")

    def text(self, num_chars: int) -> None:
        """Before a string of this length is made."""
        self._num_made += num_chars
        if num_chars > self._limits.text_max or self._num_made > self._limits.made_max:
            raise TemplateLimit("it makes too much text")

    def value(self, value: Any) -> Any:
        """After a value was made: pays for its text and its elements."""
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, CONTAINERS):
            num_values, num_chars = measure(value)
            self.step(1 + num_values // VALUES_PER_STEP)
            self.text(num_chars)
        return value

    def shape(self, value: Any) -> Any:
        """Like `value`, for elements that existed before: only their number counts."""
        if isinstance(value, CONTAINERS):
            self.step(1 + sum(map(len, groups(value))) // VALUES_PER_STEP)
        return value


_current: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    return _current.get()


def begin(limits: Limits) -> Budget:
    """For the rest of this context; each rendering runs in a context of its own."""
    budget = Budget(limits)
    _current.set(budget)
    return budget


def groups(value: Any) -> Iterator[Sequence[Any]]:
    """A JSON value and all in it, siblings together. Raises TemplateLimit beyond ELEMENTS_MAX
    values, so that lists which hold each other many times over end too."""
    num_values = 0
    waiting: list[Sequence[Any]] = [[value]]
    while waiting:
        group = waiting.pop()
        num_values += len(group)
        if num_values > ELEMENTS_MAX:
            raise TemplateLimit("it makes too large a list")
        yield group
        if SCALARS.issuperset(map(type, group)):
            continue  # nearly all lists, and quick to see
        for each in group:
            if isinstance(each, Mapping):
                waiting += (list(each), list(each.values()))
            elif isinstance(each, CONTAINERS):
                waiting.append(each if isinstance(each, list | tuple) else list(each))


def measure(value: Any) -> tuple[int, int]:
    """Values and characters in a JSON value."""
    num_values, num_chars = 0, 0
    for group in groups(value):
        num_values += len(group)
        num_chars += sum(len(each) for each in group if isinstance(each, str))
    return num_values, num_chars


def as_text(value: Any) -> str:
    """`str(value)`, paid for."""
    if isinstance(value, str):
        return value
    if isinstance(value, CONTAINERS):
        budget = current()
        budget.value(value)
        text = str(value)
        budget.text(len(text))
        return text
    return str(value)


def concat(values: Iterable[Any]) -> str:
    """All of them as one text; paid for before it is made."""
    budget = current()
    texts = []
    for value in values:
        budget.step()
        texts.append(as_text(value))
    budget.text(sum(map(len, texts)))
    return "".join(texts)
