"""What this very chip reaches in this very run: copying memory, and a large product by torch.

Kernels are held against these and not against a data sheet, which no program reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.tools.timing import Clock, Timer, interleaved

COPY_BYTES = 1 << 30  # four times the largest cache
MATMUL_SIDE = 8192
BUDGET_S = 4.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`bytes_s` counts what is read and what is written."""

    bytes_s: float
    flops_s: float

    def time_s(self, num_bytes: float, num_flops: float) -> float:
        """No less than that at these ceilings."""
        return max(num_bytes / self.bytes_s, num_flops / self.flops_s)


def measured(
    timer: Timer,
    clock: Clock,
    *,
    device: str,
    copy_bytes: int = COPY_BYTES,
    side: int = MATMUL_SIDE,
    budget_s: float = BUDGET_S,
) -> Ceilings:
    source = torch.zeros(copy_bytes, dtype=torch.int8, device=device)
    copied = torch.empty_like(source)
    x = torch.randn(side, side, device=device).to(torch.bfloat16)
    product = torch.empty_like(x)
    runs: dict[str, Callable[[], object]] = {
        "copy": lambda: copied.copy_(source),
        "matmul": lambda: torch.mm(x, x.t(), out=product),
    }
    times = interleaved(runs, timer, budget_s=budget_s, clock=clock)
    return Ceilings(
        bytes_s=2.0 * copy_bytes / times["copy"].median_s,
        flops_s=2.0 * side**3 / times["matmul"].median_s,
    )


def better(first: Ceilings, second: Ceilings) -> Ceilings:
    """Of the ends of a run: what the chip could reach at some time in it."""
    return Ceilings(max(first.bytes_s, second.bytes_s), max(first.flops_s, second.flops_s))
