"""A linear with int8 weights and int8 activations whose rows do not depend on each other."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import Int8Weight

QMAX = 127.0


def quantize_int8(weight: Tensor) -> Int8Weight:
    """A weight [N, K] of any float dtype: symmetric, scale = absmax / 127 an output row."""
    values = weight.detach().float()
    scale = values.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / QMAX
    qweight = torch.round(values / scale[:, None]).clamp_(-QMAX, QMAX).to(torch.int8)
    return Int8Weight(qweight=qweight, scale=scale)


def pack_int8(weight: Tensor) -> Int8Weight:
    """`quantize_int8`, laid out for `linear_int8` here."""
    return quantize_int8(weight)


def linear_int8(
    x: Tensor,  # [R, K]
    weight: Int8Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x.

    Each row of x is divided by its own absmax / 127 and rounded; products are summed in int32, so
    a row's result is the same alone or among others, to the bit. result = sum · row scale · scale.
    """
    values = x.float()
    row_scale = values.abs().amax(dim=1, keepdim=True) / QMAX
    quantized = torch.round(values / row_scale.clamp_min(torch.finfo(torch.float32).tiny))
    result = torch._int_mm(quantized.to(torch.int8), weight.qweight.t()) * row_scale
    result *= weight.scale
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)
