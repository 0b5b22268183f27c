"""The GPUs that kernels are compiled for, and what each can do at best.

Peaks are the makers' dense figures without sparsity (AMD CDNA 3 and CDNA 4 white papers and data
sheets, RDNA 4 and H100 data sheets). They bound; they do not promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture. `peaks` is operations a second by the kind of the products' operands."""

    arch: str
    backend: str  # "hip" or "cuda", as Triton calls it
    chip: str
    warp_size: int
    num_cus: int  # compute units, or streaming multiprocessors
    num_xcds: int  # dies with an L2 cache of their own, which get programs in turn
    simds_a_cu: int
    lds_bytes: int  # a compute unit
    vgprs_a_lane: int  # 32-bit registers that the waves of one SIMD share
    waves_a_simd_max: int
    bytes_s: float
    peaks: Mapping[str, float] = field(default_factory=dict)
    fp8_dtype: torch.dtype | None = None  # what its matrix units take
    is_compile_only: bool = False  # no budgets are kept for it

    @property
    def is_hip(self) -> bool:
        return self.backend == "hip"

    @property
    def gpu_arch(self) -> str | int:
        """As triton's GPUTarget wants it."""
        return self.arch if self.is_hip else int(self.arch.removeprefix("sm_"))


TARGETS: tuple[Target, ...] = (
    Target(
        "gfx942", "hip", "MI300X", 64, 304, 8, 4, 64 * 1024, 512, 8, 5.3e12,
        {"bf16": 1307.4e12, "fp16": 1307.4e12, "fp8": 2614.9e12, "int8": 2614.9e12,
         "fp32": 163.4e12},
        torch.float8_e4m3fnuz,
    ),
    Target(
        "gfx950", "hip", "MI355X", 64, 256, 8, 4, 160 * 1024, 512, 8, 8.0e12,
        {"bf16": 2516.6e12, "fp16": 2516.6e12, "fp8": 5033.2e12, "int8": 5033.2e12,
         "fp32": 157.3e12},
        torch.float8_e4m3fn,
    ),
    Target(
        "gfx90a", "hip", "MI250X (one die)", 64, 110, 1, 4, 64 * 1024, 512, 8, 1.6e12,
        {"bf16": 191.5e12, "fp16": 191.5e12, "int8": 191.5e12, "fp32": 47.9e12},
        None, is_compile_only=True,
    ),
    Target(
        "gfx1201", "hip", "RX 9070 XT", 32, 64, 1, 2, 64 * 1024, 1536, 16, 0.64e12,
        {"bf16": 195e12, "fp16": 195e12, "fp8": 389e12, "int8": 389e12, "fp32": 48.7e12},
        torch.float8_e4m3fn, is_compile_only=True,
    ),
    Target(
        "sm_90", "cuda", "H100 SXM", 32, 132, 1, 4, 227 * 1024, 512, 16, 3.35e12,
        {"bf16": 989e12, "fp16": 989e12, "fp8": 1979e12, "int8": 1979e12, "fp32": 67e12},
        torch.float8_e4m3fn, is_compile_only=True,
    ),
)  # fmt: skip

BY_ARCH = {target.arch: target for target in TARGETS}


def find(arch: str) -> Target:
    """The target of that name. Raises ValueError that lists the names there are."""
    if arch not in BY_ARCH:
        raise ValueError(f"there is no target {arch!r}; use one of {', '.join(BY_ARCH)}")
    return BY_ARCH[arch]
