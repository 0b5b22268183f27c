"""The compiled ops for tests, built once a machine into the usual cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from kernels import native


@cache
def native_ops() -> Mapping[str, Callable[..., Any]]:
    ops = native.load()
    assert ops is not None, "the native kernels do not load: the log says why"
    return ops


@contextmanager
def threads(num_threads: int) -> Iterator[None]:
    native_ops()
    native.set_num_threads(num_threads)
    try:
        yield
    finally:
        native.set_num_threads(1)
