"""Where this platform keeps what can be made anew: one folder of ours, a name for each use."""

from __future__ import annotations

import platform
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder for `name`, perhaps not made yet. Raises OSError where there is no home folder."""
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(f"there is no home folder for a cache: {error}") from error
    if platform.system() == "Darwin":
        return home / "Library/Caches/looprouter" / name
    return home / ".cache/looprouter" / name
