"""The gate of a feed-forward layer: act(gate) · up (SwiGLU, GeGLU: Shazeer, 2020)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.interface import Activation


def gated_mul(
    gate_up: Tensor,  # [R, 2 I]: the gate's half first
    *,
    activation: Activation = "silu",
    out: Tensor | None = None,
) -> Tensor:
    """[R, I] in the dtype of `gate_up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        activated = functional.silu(gate)
    elif activation == "gelu_tanh":
        activated = functional.gelu(gate, approximate="tanh")
    else:
        raise ValueError(f"activation {activation!r} is unknown; use silu or gelu_tanh")
    return torch.mul(activated, up, out=activated if out is None else out)
