"""Calls of native ops, recorded once and repeated in one call: the CPU's form of a graph.

A decode step of a small model is some hundred calls of microseconds each; what the interpreter does
between them costs as much as a tenth of the step. Repeated, they read and write the same memory.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.native.library import Library, Tape

_ALIGNMENT = 8
_ALLOCATIONS = frozenset((torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default))


def capture(library: Library, work: Callable[[], None]) -> Callable[[], bool] | None:
    """Does the work, and gives a function that does it again on the same memory.

    That function returns False where an op fails; the work itself then says why. None: torch took
    part in the work (an op that is not native, a copy), which cannot be repeated from here. Empty
    memory that the work asks for is not given back: each repetition uses it again.
    """
    tape, torch_work = Tape(), _TorchWork()
    with library.recording:
        library.tape = tape
        try:
            with torch_work:
                work()
        finally:
            library.tape = None
    if torch_work.is_seen:
        return None
    return Program(library, tape.calls, torch_work.memory).run


class Program:
    """`calls`: the address of an op and the struct that it takes. `memory`: what they write to."""

    def __init__(
        self, library: Library, calls: Sequence[tuple[int, bytes]], memory: Sequence[Tensor] = ()
    ) -> None:
        self._memory = memory
        self._run = library.long("lr_run_program")
        offsets, size = [], 0
        for _, call in calls:
            offsets.append(size)
            size += -(-len(call) // _ALIGNMENT) * _ALIGNMENT
        self._structs = (ctypes.c_uint64 * (size // _ALIGNMENT + 1))()
        base = ctypes.addressof(self._structs)
        for offset, (_, call) in zip(offsets, calls, strict=True):
            ctypes.memmove(base + offset, call, len(call))
        self._count = len(calls)
        self._steps = b"".join(
            struct.pack("@2Q", address, base + offset)
            for offset, (address, _) in zip(offsets, calls, strict=True)
        )

    def run(self) -> bool:
        return bool(self._run(self._steps, self._count) == 0)


class _TorchWork(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes whether torch computed anything; views do not count, and empty memory is kept."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.is_seen = False
        self.memory: list[Tensor] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self.memory.append(made)
        elif not func.is_view or _is_apart(made, args):
            self.is_seen = True
        return made


def _is_apart(made: Any, args: Sequence[Any]) -> bool:
    """Whether what is called a view is a copy: `reshape` makes one where strides do not fit."""
    if not isinstance(made, Tensor):
        return False
    given = [each for each in args if isinstance(each, Tensor)]
    storage = made.untyped_storage().data_ptr()
    return all(each.untyped_storage().data_ptr() != storage for each in given)
