"""Values against types, collecting every problem with its path instead of stopping at the first."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from gateway.policy.schema import EnvName
from gateway.policy.units import DURATION_PATTERN

VALUE_CHARS_MAX = 60  # of a wrong value repeated in a message

Report = Callable[[str, str], None]  # path, what is wrong and the fix


def check(value: object, annotation: Any, path: str, report: Report) -> None:
    """Reports all that keeps `value` from being an `annotation`; nothing when it is one."""
    struct = _struct_in(annotation)
    plain = _without_annotated(annotation)
    if isinstance(value, dict) and struct is not None:
        _check_struct(value, struct, path, report)
    elif isinstance(value, dict) and get_origin(plain) is dict:
        item = get_args(plain)[1]
        for key, inner in value.items():
            at = f"{path}.{key}" if path else str(key)
            if isinstance(key, str):
                check(inner, item, at, report)
            else:
                report(at, f"the name {key!r} is not text; put it in quotes")
    elif isinstance(value, list) and (item_type := _tuple_item(annotation)) is not None:
        for index, inner in enumerate(value):
            check(inner, item_type, f"{path}[{index}]", report)
    else:
        try:
            msgspec.convert(value, annotation, strict=True)
        except msgspec.ValidationError as error:
            report(path, _explain(value, annotation, str(error)))


def _check_struct(value: dict[Any, Any], struct: type, path: str, report: Report) -> None:
    hints = fields_of(struct)
    required = {f.name for f in msgspec.structs.fields(struct) if f.required}
    for key, inner in value.items():
        at = f"{path}.{key}" if path else str(key)
        if key in hints:
            check(inner, hints[key], at, report)
        else:
            report(at, f"unknown field; {_meant(str(key), list(hints))}")
    for name in sorted(required - value.keys()):
        where = path or "the policy"
        report(where, f"the field `{name}` is missing; add it")


@cache
def fields_of(struct: type) -> dict[str, Any]:
    """A struct's annotations, `Annotated` kept."""
    return typing.get_type_hints(struct, include_extras=True)


def choices_in(annotation: Any) -> list[str]:
    """The words of every Literal in it."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in choices_in(part)]


def _meant(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"use {_listed(known)}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _explain(value: object, annotation: Any, said: str) -> str:
    if annotation_mentions(annotation, EnvName):
        # Never repeat the value: people paste the key itself here.
        return "must be the name of an environment variable, like GROQ_API_KEY, not the key itself"
    shown = _shown(value)
    choices = choices_in(annotation)
    if _is_duration(annotation):
        auto = "auto, or " if "auto" in said else ""
        return f"{shown} is no duration; write {auto}a number and a unit, like 150ms, 3s or 24h"
    if choices and (isinstance(value, str | bool) or value is None or value == 1):
        return f"{shown} is unknown; use {_listed(choices)}"
    if choices:
        return f"{shown} is wrong; use {_listed(choices)}"
    if "matching regex" in said:
        return (
            f"{shown} must begin with a letter or digit and hold only those and . _ - (64 at most)"
        )
    # msgspec: "Expected `int` >= 1, got `str` - at `$…`": its own words, without its own path.
    expected = said.split(" - at `")[0].split(", got `")[0]
    wanted = expected.removeprefix("Expected ").replace("`", "")
    for theirs, ours in _PLAIN_WORDS:
        wanted = wanted.replace(theirs, ours)
    return f"{shown} is wrong; must be {wanted}"


_PLAIN_WORDS: tuple[tuple[str, str], ...] = (
    ("str | array", "text or a list"),
    ("str", "text"),
    ("int", "a whole number"),
    ("float", "a number"),
    ("bool", "true or false"),
    ("array", "a list"),
    ("object", "a mapping"),
    (" | null", ""),
    (" | ", " or "),
)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "an empty value"
    text = repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def annotation_mentions(annotation: Any, wanted: Any) -> bool:
    return annotation == wanted or any(annotation_mentions(a, wanted) for a in _parts(annotation))


def _is_duration(annotation: Any) -> bool:
    metadata = getattr(annotation, "__metadata__", ())
    if any(DURATION_PATTERN in (getattr(meta, "pattern", None) or "") for meta in metadata):
        return True
    return any(_is_duration(part) for part in _parts(annotation))


def _parts(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return ()
    return get_args(annotation)


def _without_annotated(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    plain = _without_annotated(annotation)
    if get_origin(plain) in (Union, types.UnionType):
        return tuple(_without_annotated(part) for part in get_args(plain))
    return (plain,)


def _struct_in(annotation: Any) -> type | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, msgspec.Struct):
            return member
    return None


def _tuple_item(annotation: Any) -> Any:
    for member in _members(annotation):
        if get_origin(member) is tuple:
            return get_args(member)[0]
    return None
