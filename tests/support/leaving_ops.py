"""An implementation whose one op ends the process without a word."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any


def load() -> Mapping[str, Callable[..., Any]]:
    return {"rms_norm": leaves}


def leaves(*args: Any, **kwargs: Any) -> Any:
    os._exit(3)
