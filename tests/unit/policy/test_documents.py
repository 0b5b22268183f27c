"""The reference and the JSON Schema say what the structs say."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gateway.policy.jsonschema import policy_schema
from gateway.policy.parse import fields_of
from gateway.policy.reference import policy_reference_markdown
from gateway.policy.schema import PolicySpec

ROOT = Path(__file__).parents[3]


def all_structs(struct: type = PolicySpec) -> set[type]:
    found = {struct}
    pending = list(fields_of(struct).values())
    while pending:
        hint = pending.pop()
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            if hint not in found:
                found.add(hint)
                pending += fields_of(hint).values()
        else:
            pending += getattr(hint, "__args__", ())
    return found


def test_reference_file_is_current() -> None:
    """Renew it with: python -m gateway.policy.reference > docs/policy.md"""
    written = (ROOT / "docs" / "policy.md").read_text()

    assert written == policy_reference_markdown()


@pytest.mark.parametrize("struct", sorted(all_structs(), key=lambda s: s.__name__))
def test_every_field_is_described_in_reference_and_schema(struct: type) -> None:
    reference, schema = policy_reference_markdown(), policy_schema()
    definition = schema if struct is PolicySpec else schema["$defs"][struct.__name__]
    for name in fields_of(struct):
        assert f"| `{name}` |" in reference
        assert definition["properties"][name].get("description"), f"{struct.__name__}.{name}"
    assert definition["additionalProperties"] is False


def test_schema_is_plain_json_and_resolves_its_own_references() -> None:
    schema = json.loads(json.dumps(policy_schema()))
    references = {part.split('"')[0] for part in json.dumps(schema).split("#/$defs/")[1:]}

    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["required"] == ["version"]
    assert references == set(schema["$defs"])


def test_every_struct_refuses_unknown_fields() -> None:
    assert all(struct.__struct_config__.forbid_unknown_fields for struct in all_structs())
    assert len(all_structs()) == 19
