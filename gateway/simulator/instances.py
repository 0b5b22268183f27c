"""A value that satisfies a simple JSON Schema, for structured answers and tool arguments."""

from __future__ import annotations

import random
from typing import Any

from gateway.simulator.words import LABEL, WORDS

DEPTH_MAX = 12

# Keywords whose meaning we would have to obey and do not: better refused than answered wrongly.
_UNSUPPORTED = ("pattern", "not", "if", "patternProperties", "dependentRequired", "contains")

_FORMATS: dict[str, str] = {
    "date": "2026-01-15",
    "time": "10:30:00Z",
    "date-time": "2026-01-15T10:30:00Z",
    "email": "simulated@example.com",
    "uri": "https://example.com/simulated",
    "uuid": "00000000-0000-4000-8000-000000000001",
    "ipv4": "192.0.2.1",
}


class SchemaNotSupported(ValueError):
    """The schema uses something this generator cannot satisfy."""


def instance(
    schema: object, rng: random.Random, root: dict[str, Any] | None = None, depth: int = 0
) -> Any:
    """A JSON value valid under `schema`. Raises SchemaNotSupported naming the keyword."""
    if schema is True:
        return LABEL
    if not isinstance(schema, dict):
        raise SchemaNotSupported("a schema must be an object")
    if depth > DEPTH_MAX:
        raise SchemaNotSupported(f"schema nests deeper than {DEPTH_MAX} levels")
    root = schema if root is None else root
    for keyword in _UNSUPPORTED:
        if keyword in schema:
            raise SchemaNotSupported(f"the simulated provider cannot satisfy '{keyword}'")
    if "$ref" in schema:
        return instance(_resolve(schema["$ref"], root), rng, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            return instance(schema[keyword][0], rng, root, depth + 1)
    if schema.get("allOf"):
        return instance(_merged(schema["allOf"], root), rng, root, depth + 1)
    return _typed(schema, rng, root, depth)


def _typed(schema: dict[str, Any], rng: random.Random, root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    match kind:
        case "object":
            properties = schema.get("properties", {})
            missing = set(schema.get("required", ())) - set(properties)
            made = {name: instance(each, rng, root, depth + 1) for name, each in properties.items()}
            return made | dict.fromkeys(sorted(missing), LABEL)
        case "array":
            least = max(int(schema.get("minItems", 1)), 0)
            num_items = min(max(least, 1), int(schema.get("maxItems", max(least, 1))))
            return [
                instance(schema.get("items", True), rng, root, depth + 1) for _ in range(num_items)
            ]
        case "string":
            return _string(schema, rng)
        case "integer" | "number":
            return _number(schema, rng, is_integer=kind == "integer")
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    raise SchemaNotSupported(f"unknown type {kind!r}")


def _string(schema: dict[str, Any], rng: random.Random) -> str:
    if "format" in schema:
        return _FORMATS.get(schema["format"], LABEL)
    text = LABEL + "".join(rng.choices(WORDS[:-5], k=3))
    least = int(schema.get("minLength", 0))
    text = text + "." * max(0, least - len(text))
    return text[: int(schema.get("maxLength", len(text)))]


def _number(schema: dict[str, Any], rng: random.Random, *, is_integer: bool) -> int | float:
    step = schema.get("multipleOf", 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None:
        low = 0 if high is None else high - 100 * step
    if high is None:
        high = low + 100 * step
    # Steps strictly inside both bounds where there are any, so that exclusive bounds hold too.
    first, last = low // step + 1, -(-high // step) - 1
    if first > last:
        if "exclusiveMinimum" in schema or "exclusiveMaximum" in schema or low > high:
            if is_integer or low >= high:
                raise SchemaNotSupported("no number lies between the bounds of the schema")
            return float(low + high) / 2
        return int(low) if is_integer else float(low)
    value = rng.randint(int(first), int(last)) * step
    return int(value) if is_integer else float(value)


def _resolve(reference: object, root: dict[str, Any]) -> object:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise SchemaNotSupported("only references inside the schema ('#/…') are supported")
    place: Any = root
    for part in reference[1:].strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if not key:
            continue
        if not isinstance(place, dict) or key not in place:
            raise SchemaNotSupported(f"reference {reference!r} leads nowhere")
        place = place[key]
    return place


def _merged(parts: list[Any], root: dict[str, Any]) -> dict[str, Any]:
    """One schema that is as strict as all of `parts`, for parts that are plain objects."""
    merged: dict[str, Any] = {"properties": {}, "required": []}
    for part in parts:
        body = _resolve(part["$ref"], root) if "$ref" in part else part
        assert isinstance(body, dict)
        merged["properties"] |= body.get("properties", {})
        merged["required"] += body.get("required", [])
        merged |= {k: v for k, v in body.items() if k not in ("properties", "required")}
    if not merged["properties"]:
        del merged["properties"]
    return merged
