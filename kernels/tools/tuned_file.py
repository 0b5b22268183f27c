"""What `tune` leaves on disk: a chip's file of values, and how far it got."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

import kernels
from kernels.ops import configs
from kernels.ops.configs import Question, Tuned
from kernels.targets import BY_ARCH
from kernels.tools.compiling import triton_version
from kernels.tools.sources import digest_of

# What other times come of. Not the files of values themselves: `tune` writes one as it goes.
DIGESTED = ("ops", "reference", "cases", "tools", "interface.py", "targets.py")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Of one question: the fastest `values` seen, and whether they are kept."""

    op: str
    sizes: str
    num_cases: int
    num_tried: int
    values: Mapping[str, int]
    default_s: float
    own_s: float
    gain: float
    is_kept: bool
    wrong: tuple[str, ...] = ()  # candidates that failed, and how


class _Kept(msgspec.Struct, kw_only=True):
    key: tuple[str, ...]
    choices: list[Choice]


class Progress:
    """Beside the file that is written, so that a run goes on where one before it ended."""

    def __init__(self, out: Path, chip: str) -> None:
        """What an older file says counts for the same chip, libraries and kernels only."""
        self.path = out.with_suffix(".progress")
        root = Path(kernels.__file__).parent
        digest = digest_of(root, DIGESTED, (".py",))
        self._kept = _Kept(key=(chip, str(torch.__version__), triton_version(), digest), choices=[])
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except (OSError, ValueError):  # msgspec's errors are ValueErrors
            return
        if found.key == self._kept.key:
            self._kept = found

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(self._kept.choices)

    def has(self, question: Question) -> bool:
        return any(
            (each.op, each.sizes) == (question.op, question.sizes) for each in self._kept.choices
        )

    def add(self, choice: Choice) -> None:
        """Raises OSError."""
        self._kept.choices.append(choice)
        _replace(self.path, msgspec.json.format(msgspec.json.encode(self._kept)).decode() + "\n")

    def forget(self) -> None:
        """All is done: the next run begins anew."""
        self.path.unlink(missing_ok=True)


def check(out: Path, arch: str) -> None:
    """Raises ValueError for a file that is another chip's, or says what no such file may."""
    if out.stem != arch and out.stem in BY_ARCH:
        raise ValueError(f"{out} is for {out.stem}, and this GPU is {arch}; give another --out")
    if not out.parent.is_dir():
        raise ValueError(
            f"there is no folder {out.parent} to write {out.name} to; give another --out"
        )
    configs.read(out)


def write(out: Path, choice: Choice) -> None:
    """Puts what is kept in, takes out what is not, and leaves the rest. Raises OSError."""
    before = configs.read(out)
    after = _with(before, choice)
    if after != before:
        _replace(out, json.dumps(after, indent=1, sort_keys=True) + "\n")


def _with(values: Tuned, choice: Choice) -> Tuned:
    changed = {op: dict(by_sizes) for op, by_sizes in values.items()}
    own = changed.setdefault(choice.op, {})
    own.pop(choice.sizes, None)
    if choice.is_kept:
        own[choice.sizes] = choice.values
    return {op: by_sizes for op, by_sizes in changed.items() if by_sizes}


def _replace(path: Path, text: str) -> None:
    """In one rename: a reader sees the old one or the new one."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
