"""Which target a head was made for: a file beside its weights, and the check at start-up.

A head drafts what its target would say. For another revision, template or thinking mode it still
loads and drafts, and nearly nothing is accepted; the text stays right, so nobody would notice.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from backend.errors import BadCheckpoint, SetupError
from backend.models.safetensors_files import read_json

log = logging.getLogger(__name__)

IDENTITY_FILE = "looprouter_draft.json"
_FORMAT = 1

# "none": the target's template knows no thinking.
Thinking = Literal["none", "on", "off"]


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """A model as it is served. `has_thinking`: its template can switch thinking on and off."""

    weights: str  # models.fingerprint.weights_fingerprint
    text: str  # tokenizer and chat template
    has_thinking: bool
    name: str = ""


@dataclass(frozen=True, slots=True)
class HeadIdentity:
    """`weights`, `text`: every digest that is the same model (a GGUF file beside a directory).

    `acceptance`: rates measured after training, by kind of work; what is far below is an alarm.
    """

    method: str
    target_name: str
    weights: tuple[str, ...]
    text: tuple[str, ...]
    thinking: Thinking
    acceptance: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


def write_identity(directory: Path, identity: HeadIdentity) -> None:
    """Replaces the file in one move."""
    content = json.dumps({"format": _FORMAT, **asdict(identity)}, indent=2) + "\n"
    unfinished = directory / f".{IDENTITY_FILE}.part"
    unfinished.write_text(content, encoding="utf-8")
    os.replace(unfinished, directory / IDENTITY_FILE)


def read_identity(directory: Path) -> HeadIdentity | None:
    """None for a head that says nothing, as others publish them. Raises BadCheckpoint."""
    file = directory / IDENTITY_FILE
    if not file.exists():
        return None
    raw = read_json(file)
    if raw.get("format") != _FORMAT:
        raise BadCheckpoint(f"{file}: format {raw.get('format')!r} is not {_FORMAT}")
    try:
        thinking = raw["thinking"]
        if thinking not in ("none", "on", "off"):
            raise BadCheckpoint(f"{file}: thinking {thinking!r} is none of none, on, off")
        return HeadIdentity(
            method=str(raw["method"]),
            target_name=str(raw["target_name"]),
            weights=tuple(map(str, raw["weights"])),
            text=tuple(map(str, raw["text"])),
            thinking=thinking,
            acceptance={str(key): float(rate) for key, rate in raw["acceptance"].items()},
            notes=dict(raw["notes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCheckpoint(f"{file}: {error!r}; the file is not complete") from error


def check_identity(
    directory: Path, target: TargetIdentity, *, is_forced: bool = False
) -> HeadIdentity | None:
    """What the head says of itself. Raises SetupError where it was made for another target.

    `is_forced`: says so in the log instead.
    """
    identity = read_identity(directory)
    if identity is None:
        log.warning(
            "the draft head in %s does not say which target it was made for; watch its acceptance",
            directory,
        )
        return None
    faults = _faults(identity, target)
    if not faults:
        return identity
    said = (
        f"the draft head in {directory} was made for {identity.target_name or 'another target'}, "
        f"not for {target.name or 'this one'}: {'; '.join(faults)}"
    )
    if not is_forced:
        raise SetupError(f"{said}; few of its drafts would be accepted. Take its own target, or "
                         "force it (--force-draft)")  # fmt: skip
    log.warning("%s; it is used all the same", said)
    return identity


def _faults(identity: HeadIdentity, target: TargetIdentity) -> list[str]:
    faults = []
    for what, made_for, served in (
        ("weights", identity.weights, target.weights),
        ("tokenizer and template", identity.text, target.text),
    ):
        if served not in made_for:
            known = ", ".join(map(_short, made_for)) or "nothing"
            faults.append(f"its {what} are {known}, here they are {_short(served)}")
    if (identity.thinking == "none") == target.has_thinking:
        here = "has a switch for it" if target.has_thinking else "has none"
        faults.append(f"its thinking mode is {identity.thinking}, the template here {here}")
    return faults


def _short(digest: str) -> str:
    return digest[:19]
