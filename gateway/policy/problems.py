"""What is wrong with a YAML file, told all together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.errors import Place, PolicyError

PROBLEMS_MAX = 50  # reported at once


class Mark(NamedTuple):
    """Where something stands in the text; both begin at 1."""

    line: int
    column: int


class Problems:
    """Collects what is wrong; raises it all together."""

    def __init__(self, marks: Mapping[str, Mark], source: str) -> None:
        self._marks = marks
        self._source = source
        self._found: dict[str, Place] = {}

    def report(self, path: str, message: str) -> None:
        """Something wrong at `path`, with the line of it or of what holds it."""
        mark = self._mark(path)
        line = f" (line {mark.line})" if mark is not None else ""
        place = Place(message, path, *(mark or (None, None)))
        self._found.setdefault(f"{path}: {message}{line}", place)

    def raise_any(self) -> None:
        """Raise PolicyError where there is anything."""
        if not self._found:
            return
        shown = list(self._found)
        text = "\n".join(shown[:PROBLEMS_MAX])
        if len(shown) > PROBLEMS_MAX:
            text += f"\n… and {len(shown) - PROBLEMS_MAX} more"
        prefix = f"{self._source}: " if self._source and len(shown) == 1 else ""
        if self._source and len(shown) > 1:
            prefix = f"{self._source}: {len(shown)} problems\n"
        raise PolicyError(prefix + text, tuple(shown), tuple(self._found.values()))

    def _mark(self, path: str) -> Mark | None:
        while path:
            if path in self._marks:
                return self._marks[path]
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return None
