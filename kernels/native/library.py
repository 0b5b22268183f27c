"""The C functions of the compiled library, typed for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# lr::Kind in source/values.h.
KINDS = {torch.float32: 0, torch.bfloat16: 1}

Function = Callable[..., Any]

# Ops take one packed struct each: a bytes object costs a third of as many arguments in ctypes.
_OP = (c_int32, (c_char_p,))
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lr_set_num_threads": (c_int32, (c_int32,)),
    "lr_num_threads": (c_int32, ()),
    "lr_int8_panel": (c_int32, ()),
    "lr_pack_int8": (None, (c_void_p, c_int64, c_int64, c_int64, c_void_p)),
    "lr_linear_int8": _OP,
    "lr_rms_norm": _OP,
    "lr_gated_mul": _OP,
    "lr_rope_kv_write": _OP,
    "lr_paged_attention": _OP,
    "lr_sample": _OP,
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


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a copy in one piece. Cheaper than torch's own when there is nothing to do."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


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
