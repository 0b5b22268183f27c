"""The policy's JSON Schema, for editors and CI, generated from the structs."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.policy.schema import PolicySpec

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def policy_schema() -> dict[str, Any]:
    """
    A JSON Schema (2020-12) with every field's description.

    It knows types and choices, not references between sections: `looprouter policy validate`
    checks those too.
    """
    (schema,), components = msgspec.json.schema_components(
        [PolicySpec], ref_template="#/$defs/{name}"
    )
    root = components.pop("PolicySpec", schema)
    for definition in components.values():
        _make_friendly(definition)
    _make_friendly(root)
    return {
        "$schema": SCHEMA_DIALECT,
        "title": "LoopRouter policy",
        **{key: value for key, value in root.items() if key != "title"},
        "$defs": dict(sorted(components.items())),
    }


def _make_friendly(node: Any) -> None:
    """Editors show `description`; a default of {} or null says nothing and is dropped."""
    if isinstance(node, list):
        for item in node:
            _make_friendly(item)
    if not isinstance(node, dict):
        return
    if "description" in node and isinstance(node["description"], str):
        node["description"] = " ".join(node["description"].split())
    if node.get("default", 0) is None:
        del node["default"]
    for value in node.values():
        _make_friendly(value)
