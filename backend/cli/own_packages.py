"""Whose `kernels`, `backend` and `gateway` this Python finds: others publish packages so named."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from backend.errors import SetupError

NAMES = ("backend", "gateway", "kernels")
_OURS = re.compile(r'^__distribution__ = "looprouter"', re.MULTILINE)
_HERE = Path(__file__).resolve().parents[2]  # where the three lie side by side


@dataclass(frozen=True, slots=True)
class ForeignPackage:
    """`path`: what a plain import would take; None: nothing at all."""

    name: str
    path: Path | None

    def __str__(self) -> str:
        if self.path is None:
            return (
                f"LoopRouter's package `{self.name}` is missing; install it again: "
                "python -m pip install --force-reinstall --no-deps looprouter"
            )
        folder = self.path.parent.parent
        if folder == _HERE:
            mend = (
                f"it was installed over LoopRouter's own: python -m pip uninstall {self.name}, "
                "then python -m pip install --force-reinstall --no-deps looprouter"
            )
        elif folder == Path.cwd():
            mend = f"it hides LoopRouter's own ({_HERE / self.name}): start in another folder"
        else:
            mend = (
                f"it hides LoopRouter's own ({_HERE / self.name}): take {folder} out of "
                "PYTHONPATH, or give LoopRouter a virtual environment of its own"
            )
        return f"`{self.name}` is another project's package here, {self.path}; {mend}"


def check_own_packages() -> None:
    """Raises SetupError naming the path of a package that is not ours, and the way out."""
    foreign = [found for name in NAMES if (found := foreign_package(name)) is not None]
    if foreign:
        raise SetupError("\n".join(map(str, foreign)))


def foreign_package(name: str) -> ForeignPackage | None:
    """None if `name` is ours. Reads the file, so that no foreign code is run to find out."""
    path = _path_of(name)
    if path is None:
        return ForeignPackage(name, None)
    path = path.resolve()
    is_ours = path.parent.parent == _HERE and _OURS.search(path.read_text("utf-8", "replace"))
    return None if is_ours else ForeignPackage(name, path)


def _path_of(name: str) -> Path | None:
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin)
    folders = list(spec.submodule_search_locations or ())  # a folder without __init__.py
    return Path(folders[0]) / "__init__.py" if folders else None
