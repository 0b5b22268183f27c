"""An implementation of ops each of which goes wrong in a way of its own, but for `rms_norm`."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from kernels.dispatch import REFERENCE
from kernels.reference.linear_int8 import pack_int8

SLEPT_S = 0.02


def load() -> Mapping[str, Callable[..., Any]]:
    return {
        "rms_norm": REFERENCE["rms_norm"],
        "rope_kv_write": forgets_a_write,
        "paged_attention": aborts,
        "gated_mul": errs,
        "linear_int8": reads_nowhere,
        "pack_int8": pack_int8,
        "row_stats": raises,
        "sample": takes_the_next_token,
        "verify_rejection": hangs,
        "residual_pick": dawdles,
    }


def forgets_a_write(*args: Any, **kwargs: Any) -> Any:
    """The queries are right; of the values only a copy is written."""
    *others, v_cache = args
    return REFERENCE["rope_kv_write"](*others, v_cache.clone(), **kwargs)


def aborts(*args: Any, **kwargs: Any) -> Any:
    print("Memory access fault by GPU node-1", file=sys.stderr, flush=True)
    os.abort()


def errs(*args: Any, **kwargs: Any) -> Any:
    return REFERENCE["gated_mul"](*args, **kwargs) * 1.001


def reads_nowhere(*args: Any, **kwargs: Any) -> Any:
    return ctypes.string_at(0)


def raises(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("out of resources: shared memory\nwith a second line")


def takes_the_next_token(*args: Any, **kwargs: Any) -> Any:
    return REFERENCE["sample"](*args, **kwargs) + 1


def hangs(*args: Any, **kwargs: Any) -> Any:
    while True:
        time.sleep(1.0)


def dawdles(*args: Any, **kwargs: Any) -> Any:
    time.sleep(SLEPT_S)
    return REFERENCE["residual_pick"](*args, **kwargs)
