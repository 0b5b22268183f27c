"""The gate of a feed-forward layer in Triton: act(gate) · up, rounded once."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.interface import Activation
from kernels.ops.configs import tuned
from kernels.ops.launching import Config, launch
from kernels.ops.rows_layout import as_rows, delivered_rows, target_rows


@triton.jit
def sigmoid(x) -> Any:
    """Without an exponential above 1."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def gate_rows(
    gate_up, out, width, in_stride, out_stride, IS_GELU: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """(1 + tanh(z)) / 2 is sigmoid(2 z): both activations are gate · sigmoid."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_value = columns < width
    start = gate_up + row * in_stride
    gate = tl.load(start + columns, mask=is_value, other=0.0).to(tl.float32)
    up = tl.load(start + width + columns, mask=is_value, other=0.0).to(tl.float32)
    bent = gate
    if IS_GELU:
        bent = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 √(2 / π)
    result = gate * sigmoid(bent) * up
    tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=is_value)


def gated_mul(
    gate_up: Tensor,  # [R, 2 I]: the gate's half first
    *,
    activation: Activation = "silu",
    out: Tensor | None = None,
) -> Tensor:
    """[R, I] in the dtype of `gate_up` (SwiGLU, GeGLU: Shazeer, 2020); any leading shape will do.

    Raises ValueError for another activation than silu or gelu_tanh.
    """
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation {activation!r} is unknown; use silu or gelu_tanh")
    rows = as_rows(gate_up)
    width = gate_up.shape[-1] // 2
    shape = (*gate_up.shape[:-1], width)
    gated = target_rows(out, rows[:, :width])
    values = tuned("gated_mul", f"I={width}", {"block": 1024, "num_warps": 4})
    launch(
        gate_rows, (rows.shape[0], triton.cdiv(width, values["block"])),
        Config(num_warps=values["num_warps"], num_stages=1),
        gate_up=rows, out=gated, width=width, in_stride=rows.stride(0),
        out_stride=gated.stride(0), IS_GELU=activation == "gelu_tanh", BLOCK=values["block"],
    )  # fmt: skip
    return delivered_rows(gated, out, shape)
