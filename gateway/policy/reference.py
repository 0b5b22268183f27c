"""The policy reference as Markdown, generated from the structs, so that it cannot go stale."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from gateway.policy.parse import fields_of
from gateway.policy.schema import PolicySpec
from gateway.policy.units import DURATION_PATTERN

_INTRODUCTION = """\
# Policy reference

Generated from `gateway/policy/schema.py` by `gateway.policy.reference`; do not edit by hand.
`looprouter policy validate FILE` checks a policy and names every problem with its path and line;
`looprouter policy schema` prints the JSON Schema for an editor.

Durations are a number and a unit: `150ms`, `3s`, `10m`, `24h`, `7d`. Prices are dollars per million
tokens. Secrets never stand in a policy: `key_env` names an environment variable or a stored secret.
Unknown fields are errors.

A request names a public model, or one endpoint as `provider/model`. The suffixes `:nitro`
(throughput first, priority tier allowed), `:floor` (price first) and `:batch` (batch lane) may
follow it. Where no route matches, the batch lane is routed `cheapest` within 24 h, streams
`fastest` and the rest `balanced` at $0.0005 a second.
"""


def policy_reference_markdown() -> str:
    """One section a struct, in the order they are met from the top."""
    parts = [_INTRODUCTION]
    for struct, where in _structs(PolicySpec, ""):
        title = f"`{where}`" if where else "Top level"
        parts.append(f"## {title}\n\n{' '.join((struct.__doc__ or '').split())}\n")
        parts.append(_table(struct))
    return "\n".join(parts)


def _table(struct: type) -> str:
    hints = fields_of(struct)
    lines = ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        kind = _type_name(hint).replace("|", "\\|")
        lines.append(f"| `{field.name}` | {kind} | {_default(field)} | {_description(hint)} |")
    return "\n".join(lines) + "\n"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    default = field.default
    if default is msgspec.NODEFAULT:
        factory = field.default_factory
        default = factory() if callable(factory) else None
    if default is None or default == () or default == {}:
        return ""
    if isinstance(default, msgspec.Struct):
        return "see below"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _description(hint: Any) -> str:
    found = [m.description for m in getattr(hint, "__metadata__", ()) if isinstance(m, Meta)]
    return next((text for text in reversed(found) if text), "")


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        patterns = [getattr(meta, "pattern", None) or "" for meta in hint.__metadata__]
        if any(DURATION_PATTERN in pattern for pattern in patterns):
            return "duration or `auto`" if any("auto" in p for p in patterns) else "duration"
        return _type_name(get_args(hint)[0])
    origin = get_origin(hint)
    if origin is Literal:
        return " \\| ".join(f"`{word}`" for word in get_args(hint)).replace("\\|", "|")
    if origin in (Union, types.UnionType):
        names = [_type_name(part) for part in get_args(hint) if part is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if origin is dict:
        return f"name → {_type_name(get_args(hint)[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "mapping"
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[hint]


def _structs(struct: type, where: str) -> Iterator[tuple[type, str]]:
    yield struct, where
    for name, hint in fields_of(struct).items():
        for inner, suffix in _structs_in(hint):
            at = f"{where}.{name}{suffix}" if where else f"{name}{suffix}"
            yield from _structs(inner, at)


def _structs_in(hint: Any) -> Iterator[tuple[type, str]]:
    origin = get_origin(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint, ""
    elif origin is tuple:
        yield from ((inner, f"[]{rest}") for inner, rest in _structs_in(get_args(hint)[0]))
    elif origin is dict:
        yield from ((inner, f".NAME{rest}") for inner, rest in _structs_in(get_args(hint)[1]))
    elif origin is not Literal:
        for part in get_args(hint):
            if not isinstance(part, Meta):
                yield from _structs_in(part)


if __name__ == "__main__":
    print(policy_reference_markdown(), end="")
