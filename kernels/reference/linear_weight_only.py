"""A linear whose weight alone is quantized: int8, an output's scale, or int4, a group's scale.

At few rows a linear takes the time that its weight takes to be read: a half or a quarter of bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import INT4_BLOCK, INT4_ZERO, Int4Weight, Int8Weight

QMAX = 7.0
GROUP_SIZES = (32, 64, 128)
ROWS_AT_ONCE = 4096  # of a weight: bounds its float32 copy


def quantize_int4(weight: Tensor, group_size: int) -> Int4Weight:
    """A weight [N, K] of any float dtype: symmetric, scale = absmax / 7 of a group of inputs.

    Raises ValueError for a group size that is not in GROUP_SIZES.
    """
    if group_size not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise ValueError(f"int4 weights have groups of {sizes} inputs, not of {group_size}")
    num_out, num_in = weight.shape
    num_blocks = -(-num_in // INT4_BLOCK)
    packed_shape = (num_out, num_blocks * INT4_BLOCK // 2)
    packed = torch.empty(packed_shape, dtype=torch.uint8, device=weight.device)
    scale_shape = (num_blocks * INT4_BLOCK // group_size, num_out)
    scale = torch.empty(scale_shape, dtype=torch.bfloat16, device=weight.device)
    for begin in range(0, num_out, ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        values = weight[part].detach().float()
        values = torch.nn.functional.pad(values, (0, num_blocks * INT4_BLOCK - num_in))
        groups = values.reshape(len(values), -1, group_size)
        tiny = torch.finfo(torch.bfloat16).tiny
        part_scale = (groups.abs().amax(dim=2) / QMAX).clamp_min(tiny).to(torch.bfloat16)
        steps = torch.round(groups / part_scale.float()[:, :, None]).clamp_(-QMAX, QMAX)
        nibbles = (steps + INT4_ZERO).to(torch.uint8).reshape(len(values), num_blocks, 2, -1)
        packed[part] = (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).flatten(1)
        scale[:, part] = part_scale.t()
    return Int4Weight(packed, scale, num_in, group_size)


def linear_weight_only(
    x: Tensor,  # [R, K]
    weight: Int8Weight | Int4Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x: x · dequantized weight ᵀ + bias, in float32."""
    result = x.float() @ weight.dequantized().t()
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)
