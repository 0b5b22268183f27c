"""Name → model family. A family is one file beside this one and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from backend.errors import BadCheckpoint
from backend.models.family import Family
from backend.models.llama import FAMILY as LLAMA
from backend.models.qwen3 import FAMILY as QWEN3

FAMILIES: Mapping[str, Family] = {family.name: family for family in (LLAMA, QWEN3)}


def family_of_hf(architecture: str) -> Family:
    """By `architectures` of config.json. Raises BadCheckpoint."""
    for family in FAMILIES.values():
        if family.hf_architecture == architecture:
            return family
    known = ", ".join(sorted(family.hf_architecture for family in FAMILIES.values()))
    raise BadCheckpoint(f"architecture {architecture!r} is not supported; known: {known}")


def family_of_gguf(architecture: str) -> Family:
    """By general.architecture. Raises BadCheckpoint."""
    for family in FAMILIES.values():
        if family.gguf_architecture == architecture:
            return family
    known = ", ".join(sorted(family.gguf_architecture for family in FAMILIES.values()))
    raise BadCheckpoint(f"general.architecture {architecture!r} is not supported; known: {known}")
