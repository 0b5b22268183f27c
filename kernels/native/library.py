"""The C functions of the compiled library, typed for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# lr::Kind in source/values.h.
KINDS = {torch.float32: 0, torch.bfloat16: 1}

Function = Callable[..., Any]

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lr_set_num_threads": (c_int32, (c_int32,)),
    "lr_num_threads": (c_int32, ()),
    "lr_int8_panel": (c_int32, ()),
    "lr_pack_int8": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p)),
    "lr_linear_int8": (
        c_int32,
        (c_void_p, c_void_p, c_int64, c_int32, c_int64, c_void_p, c_void_p, c_int64, c_int32),
    ),
}


class Library:
    """Functions come in two forms. `brief` ones keep the interpreter's lock: for calls that are
    over in microseconds, where giving it away means to wait until another thread hands it back.
    `long` ones release it.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file is no library for this machine."""
        self._brief = ctypes.PyDLL(str(path))
        self._long = ctypes.CDLL(str(path))

    def brief(self, name: str) -> Function:
        return _typed(self._brief, name)

    def long(self, name: str) -> Function:
        return _typed(self._long, name)


def kind_of(tensor: Tensor) -> int:
    """The C name of the tensor's dtype. Raises TypeError for a dtype the kernels do not have."""
    kind = KINDS.get(tensor.dtype)
    if kind is None:
        raise TypeError(f"native kernels take float32 or bfloat16, not {tensor.dtype}")
    return kind


def _typed(library: ctypes.CDLL, name: str) -> Function:
    function = library[name]
    function.restype, function.argtypes = _SIGNATURES[name]
    return function
