"""Tiles and compile options found best on a chip: data files, never tuned while serving.

`tuned/<arch>.json` maps an op to the sizes it was tuned at (a string the op makes up) to values.
An op gives its default with the question, so a chip without a file works all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from kernels.ops.launching import current_target


def tuned(op: str, sizes: str, default: Mapping[str, int]) -> Mapping[str, int]:
    """`default` with what the file of the current chip says for these sizes put over it.

    Raises ValueError if the file names a value that the op does not have.
    """
    found = _of(current_target().arch).get(op, {}).get(sizes, {})
    unknown = sorted(set(found) - set(default))
    if unknown:
        raise ValueError(
            f"kernels/ops/tuned/{current_target().arch}.json: {op} {sizes} sets "
            f"{', '.join(unknown)}, which the op does not have; it has {', '.join(default)}"
        )
    return {**default, **found}


@cache
def _of(arch: str) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    file = files("kernels.ops").joinpath("tuned", f"{arch}.json")
    if not file.is_file():
        return {}
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded
