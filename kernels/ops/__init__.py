"""Ops in Triton: AMD's GPUs first, NVIDIA's by the same code, no GPU under the interpreter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from kernels import specs

_log = logging.getLogger(__name__)


def load() -> Mapping[str, Callable[..., Any]] | None:
    """The ops by name, one a file of its name, and `pack_int8` beside `linear_int8`.

    None, with the reason logged, where triton is missing, or neither a GPU nor its interpreter is
    there to run what it compiles.
    """
    reason = why_not()
    if reason:
        _log.warning("triton kernels are not used: %s", reason)
        return None
    offered: dict[str, Callable[..., Any]] = {}
    for op in specs.BY_NAME:
        if find_spec(f"{__name__}.{op}") is None:
            continue  # torch's own is as good, as for dense products
        module = import_module(f"{__name__}.{op}")
        offered[op] = getattr(module, op)
        if op == "linear_int8":
            offered["pack_int8"] = module.pack_int8
    return offered


def why_not() -> str:
    """What is missing on this machine; empty where the ops can run."""
    from kernels.ops.launching import IS_INTERPRETED

    if find_spec("triton") is None:
        return "triton is not installed; on Linux: pip install 'looprouter[backend]'"
    if not IS_INTERPRETED and not torch.cuda.is_available():
        return "torch finds no GPU; TRITON_INTERPRET=1 runs them on a CPU, for tests"
    return ""
