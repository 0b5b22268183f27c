"""A linear with float8 weights and float8 rows: one scale an output, one scale a row.

Float8 formats: Micikevicius et al., "FP8 formats for deep learning" (arXiv 2209.05433), and the
OCP's 8-bit floating point specification.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import Fp8Weight

ROWS_AT_ONCE = 4096  # of a weight: bounds its float32 copy


def quantize_fp8(weight: Tensor, dtype: torch.dtype) -> Fp8Weight:
    """A weight [N, K] of any float dtype in `dtype`: scale = absmax / the largest value, a row."""
    qweight = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    scale = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for begin in range(0, weight.shape[0], ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        qweight[part], scale[part] = _rows_in(weight[part].detach().float(), dtype)
    return Fp8Weight(qweight, scale)


def linear_fp8(
    x: Tensor,  # [R, K]
    weight: Fp8Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x.

    With the row's own s = absmax / 448 (240 in e4m3fnuz): result = (Σ float8(x / s) · qweight) · s
    · scale + bias, in float32 and in that order. Halves round to even.
    """
    quantized, row_scale = _rows_in(x.float(), weight.qweight.dtype)
    rows = quantized.float()
    result = torch.empty((x.shape[0], weight.out_features), dtype=torch.float32, device=x.device)
    for begin in range(0, weight.out_features, ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        result[:, part] = rows @ weight.qweight[part].float().t()
    result.mul_(row_scale[:, None]).mul_(weight.scale)
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)


def _rows_in(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """float32 [R, K] as `dtype` and the rows' scales; a row of zeros has scale 0."""
    largest = torch.finfo(dtype).max
    scale = values.abs().amax(dim=1).div_(largest)
    steps = values / torch.where(scale == 0.0, 1.0, scale)[:, None]
    return steps.clamp_(-largest, largest).to(dtype), scale
