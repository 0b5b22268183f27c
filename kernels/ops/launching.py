"""How Triton kernels are started: on a GPU, under the interpreter, or only written down.

An op calls `launch` and nothing else. Under `recording` nothing runs: each call is kept with what
the compiler has to know, from tensors that need no memory (device "meta"). So what is compiled
ahead of time is what would be launched, and no second table can differ from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.targets import BY_ARCH, GIB, Target, find

# Triton looks at this when a kernel is decorated, so it cannot change afterwards.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INTERPRETED_TARGET = "gfx942"  # whose choices are tried where there is no GPU
BUFFER_BYTES_MAX = 2 * GIB - 1  # what a buffer instruction's 32-bit offset reaches

_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "u1",
    torch.float8_e4m3fnuz: "fp8e4b8", torch.float8_e4m3fn: "fp8e4nv",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Config:
    """How a kernel is compiled. `waves_per_eu` and `nonkdim` (the side of the matrix unit's tile)
    are AMD's; 0 leaves them to the compiler. A `waves_per_eu` above 2 spills: see docs/kernels.md.
    """

    num_warps: int = 4
    num_stages: int = 2
    waves_per_eu: int = 0
    nonkdim: int = 0

    def options(self, target: Target) -> dict[str, int]:
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if target.is_hip and self.waves_per_eu:
            options["waves_per_eu"] = self.waves_per_eu
        if target.is_hip and self.nonkdim:
            options["matrix_instr_nonkdim"] = self.nonkdim
        return options


@dataclass(frozen=True, slots=True)
class Launch:
    """What the compiler needs of one launch; `attrs` as triton's ASTSource takes them."""

    kernel: Any
    grid: tuple[int, ...]
    signature: Mapping[str, str]
    constexprs: Mapping[tuple[int, ...], Any]
    attrs: Mapping[tuple[int, ...], list[list[Any]]]
    options: Mapping[str, int]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


@dataclass(slots=True)
class _Recording:
    target: Target
    launches: list[Launch]


_recording: ContextVar[_Recording | None] = ContextVar("kernels_recording", default=None)


@contextmanager
def recording(arch: str) -> Iterator[list[Launch]]:
    """Ops called inside launch nothing; the list gets what they would have launched on `arch`."""
    launches: list[Launch] = []
    token = _recording.set(_Recording(find(arch), launches))
    try:
        yield launches
    finally:
        _recording.reset(token)


def current_target() -> Target:
    """The GPU that an op chooses its tiles for."""
    if (recorded := _recording.get()) is not None:
        return recorded.target
    return BY_ARCH[INTERPRETED_TARGET] if IS_INTERPRETED else _device_target()


class UnsupportedOnTargetError(ValueError):
    """The chip's units do not take what an op was called with."""


def fp8_dtype() -> torch.dtype:
    """The float8 that the current chip's matrix units take; e4m3fn under the interpreter, which
    knows no other. Raises UnsupportedOnTargetError if the chip takes none.
    """
    if IS_INTERPRETED:
        return torch.float8_e4m3fn
    target = current_target()
    if target.fp8_dtype is None:
        raise UnsupportedOnTargetError(
            f"the matrix units of {target.arch} ({target.chip}) take no float8; use int8 weights "
            "there: linear_int8 or linear_weight_only"
        )
    return target.fp8_dtype


def launch(kernel: Any, grid: tuple[int, ...], config: Config, **arguments: Any) -> None:
    """Starts `kernel` with its arguments by name: tensors, numbers, None, and compile-time values.

    An empty grid starts nothing.
    """
    recorded = _recording.get()
    if recorded is not None:
        recorded.launches.append(_written_down(kernel, grid, config, arguments, recorded.target))
    elif all(grid):
        with _device_of(arguments.values()):
            options = {} if IS_INTERPRETED else config.options(current_target())
            kernel[grid](**arguments, **options)


def _device_of(values: Iterable[Any]) -> AbstractContextManager[object]:
    """Triton starts kernels on the current GPU, wherever the tensors are: makes it theirs."""
    for value in values:
        if isinstance(value, Tensor) and value.is_cuda:
            is_current = value.device.index == torch.cuda.current_device()
            return nullcontext() if is_current else torch.cuda.device(value.device)
    return nullcontext()


def _device_target() -> Target:
    return _target_of(torch.cuda.current_device())


def arch_of(device: torch.device | str | int) -> str:
    """A GPU's own name: `gfx942`, `sm_90`; it need not be in the table."""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return str(properties.gcnArchName).split(":")[0]
    return f"sm_{properties.major}{properties.minor}"


@cache
def _target_of(device: int) -> Target:
    """A GPU that is not in the table borrows the nearest one's choices."""
    if not torch.version.hip:
        return BY_ARCH["sm_90"]
    warp_size = torch.cuda.get_device_properties(device).warp_size
    return BY_ARCH.get(arch_of(device), BY_ARCH["gfx942" if warp_size == 64 else "gfx1201"])


def _written_down(
    kernel: Any, grid: tuple[int, ...], config: Config, arguments: Mapping[str, Any], target: Target
) -> Launch:
    """The types and promises that triton's own launcher would derive from the same arguments."""
    signature: dict[str, str] = {}
    constexprs: dict[tuple[int, ...], Any] = {}
    attrs: dict[tuple[int, ...], list[list[Any]]] = {}
    for parameter in kernel.params:
        name, index = parameter.name, parameter.num
        value = arguments.get(name, parameter.default)
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            signature[name], constexprs[(index,)] = "constexpr", value
            continue
        signature[name] = _type_of(value)
        # Of a number that a kernel is not made for triton promises nothing.
        is_open = parameter.do_not_specialize and not isinstance(value, Tensor)
        if not is_open and (promises := _promises(value, target)):
            attrs[(index,)] = promises
    return Launch(kernel, grid, signature, constexprs, attrs, config.options(target))


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"


def _promises(value: Any, target: Target) -> list[list[Any]]:
    if isinstance(value, Tensor):
        promises: list[list[Any]] = [["tt.divisibility", 16]]
        # A view's own size says nothing: the storage behind it counts.
        num_bytes = value.untyped_storage().nbytes() or value.numel() * value.itemsize
        if target.is_hip and num_bytes <= BUFFER_BYTES_MAX:
            promises.append(["tt.pointer_range", 32])
        return promises
    is_divisible = type(value) is int and value % 16 == 0
    return [["tt.divisibility", 16]] if is_divisible else []
