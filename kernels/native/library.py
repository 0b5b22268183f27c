"""The C functions of the compiled library, typed for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, cast

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
    "lr_linear_dense": _OP,
    "lr_linear_int8": _OP,
    "lr_rms_norm": _OP,
    "lr_gated_mul": _OP,
    "lr_rope_kv_write": _OP,
    "lr_paged_attention": _OP,
    "lr_sample": _OP,
    "lr_markov_pick": _OP,
    "lr_run_program": (c_int32, (c_char_p, c_int64)),
}


class Tape:
    """The op calls that one thread makes while they are recorded: address and struct of each."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bytes]] = []
        self._thread_id = get_ident()

    def note(self, address: int, call: bytes) -> None:
        if get_ident() == self._thread_id:
            self.calls.append((address, call))


class Library:
    """Functions come in two forms. `brief` ones keep the interpreter's lock: for calls that are
    over in microseconds, where giving it away means to wait until another thread hands it back.
    `long` ones release it.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file is no library for this machine."""
        self.tape: Tape | None = None  # while calls are recorded
        self.recording = Lock()
        self._brief = ctypes.PyDLL(str(path))
        self._long = ctypes.CDLL(str(path))

    def brief(self, name: str) -> Function:
        return self._recorded(_typed(self._brief, name))

    def long(self, name: str) -> Function:
        return self._recorded(_typed(self._long, name))

    def _recorded(self, function: Any) -> Function:
        if function.argtypes != _OP[1]:
            return cast("Function", function)
        address = ctypes.cast(function, c_void_p).value
        assert address is not None

        def run(call: bytes) -> int:
            tape = self.tape
            if tape is not None:
                tape.note(address, call)
            return cast("int", function(call))

        return run


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a copy in one piece. Cheaper than torch's own when there is nothing to do."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def kind_of(tensor: Tensor) -> int:
    """The C name of the tensor's dtype. Raises TypeError for a dtype the kernels do not have."""
    kind = KINDS.get(tensor.dtype)
    if kind is None:
        raise TypeError(f"native kernels take float32 or bfloat16, not {tensor.dtype}")
    return kind


def _typed(library: ctypes.CDLL, name: str) -> Any:
    function = library[name]
    function.restype, function.argtypes = _SIGNATURES[name]
    return function
