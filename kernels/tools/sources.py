"""Which kernels there are: a digest, as they differ in one version of the package."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def digest_of(root: Path, names: Sequence[str], suffixes: Sequence[str]) -> str:
    """Of the files under `root` that are `names`, or below folders of them."""
    digest = hashlib.sha256()
    for name in names:
        for path in sorted((root / name, *(root / name).rglob("*"))):
            if path.suffix in suffixes:
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
