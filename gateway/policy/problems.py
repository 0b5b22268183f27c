"""What is wrong with a YAML file, told all together."""

from __future__ import annotations

from gateway.errors import PolicyError

PROBLEMS_MAX = 50  # reported at once


class Problems:
    """Collects what is wrong; raises it all together."""

    def __init__(self, lines: dict[str, int], source: str) -> None:
        self._lines = lines
        self._source = source
        self._found: list[str] = []

    def report(self, path: str, message: str) -> None:
        """Something wrong at `path`, with the line of it or of what holds it."""
        self._found.append(f"{path}: {message}{self._line(path)}")

    def raise_any(self) -> None:
        """Raise PolicyError where there is anything."""
        if not self._found:
            return
        shown = list(dict.fromkeys(self._found))
        text = "\n".join(shown[:PROBLEMS_MAX])
        if len(shown) > PROBLEMS_MAX:
            text += f"\n… and {len(shown) - PROBLEMS_MAX} more"
        prefix = f"{self._source}: " if self._source and len(shown) == 1 else ""
        if self._source and len(shown) > 1:
            prefix = f"{self._source}: {len(shown)} problems\n"
        raise PolicyError(prefix + text, tuple(shown))

    def _line(self, path: str) -> str:
        while path:
            if path in self._lines:
                return f" (line {self._lines[path]})"
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return ""
