"""Tiles and compile options found best on a chip: data files, never tuned while serving.

`tuned/<arch>.json` maps an op to the sizes it was tuned at (a string the op makes up) to values.
An op gives its default with the question, so a chip without a file works all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol

from kernels.ops.launching import current_target
from kernels.specs import BY_NAME

Values = Mapping[str, int]
Tuned = Mapping[str, Mapping[str, Values]]


@dataclass(frozen=True, slots=True)
class Question:
    """What an op asked: values for its sizes, of which it has a default."""

    op: str
    sizes: str
    default: Values


class TextFile(Protocol):
    """Of a path, or of a package's data."""

    @property
    def name(self) -> str: ...

    def is_file(self) -> bool: ...

    def read_text(self, encoding: str) -> str: ...


_asked: ContextVar[list[Question] | None] = ContextVar("kernels_asked", default=None)
_tried: ContextVar[Tuned | None] = ContextVar("kernels_tried", default=None)


def tuned(op: str, sizes: str, default: Values) -> Values:
    """`default` with what the file of the current chip says for these sizes put over it.

    Raises ValueError if the file names a value that the op does not have, or is none.
    """
    if (asked := _asked.get()) is not None:
        asked.append(Question(op, sizes, dict(default)))
    tried = _tried.get()
    values = _of(current_target().arch) if tried is None else tried
    found = values.get(op, {}).get(sizes, {})
    unknown = sorted(set(found) - set(default))
    if unknown:
        raise ValueError(
            f"kernels/ops/tuned/{current_target().arch}.json: {op} {sizes} sets "
            f"{', '.join(unknown)}, which the op does not have; it has {', '.join(default)}"
        )
    return {**default, **found}


@contextmanager
def asking() -> Iterator[list[Question]]:
    """The list gets every question that ops ask inside."""
    asked: list[Question] = []
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)


@contextmanager
def trying(values: Tuned) -> Iterator[None]:
    """Inside, these values are given, and no chip's file; where there are none the default."""
    token = _tried.set(values)
    try:
        yield
    finally:
        _tried.reset(token)


def read(file: TextFile) -> Tuned:
    """What a file of tuned values says; nothing if it is not there. Raises ValueError if it holds
    anything but known ops, their sizes and whole numbers.
    """
    if not file.is_file():
        return {}
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _refused(file, f"it is not JSON ({error})") from error
    if not isinstance(loaded, dict):
        raise _refused(file, "it must map ops to sizes to values")
    for op, by_sizes in loaded.items():
        if op not in BY_NAME:
            raise _refused(file, f"there is no op {op!r}; the table has {', '.join(BY_NAME)}")
        if not isinstance(by_sizes, dict):
            raise _refused(file, f"{op} must map sizes to values")
        for sizes, values in by_sizes.items():
            if not isinstance(values, dict) or any(
                type(each) is not int for each in values.values()
            ):
                raise _refused(file, f"{op} {sizes} must map names to whole numbers")
    found: Tuned = loaded
    return found


def _refused(file: TextFile, why: str) -> ValueError:
    return ValueError(
        f"{file.name} is no file of tuned values: {why}. Mend or remove it; `python -m kernels "
        "tune` writes it anew, and without one the defaults serve (kernels/ops/tuned/README.md)"
    )


@cache
def _of(arch: str) -> Tuned:
    found = read(files("kernels.ops").joinpath("tuned", f"{arch}.json"))
    return found
