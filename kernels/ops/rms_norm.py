"""Root-mean-square norm in Triton, with the residual added before it: a row is read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.configs import tuned
from kernels.ops.launching import Config, launch
from kernels.ops.rows_layout import as_rows, delivered_rows, target_rows

WIDTH_MAX = 65536  # a row is held in registers
TILE = 2048  # values a program takes of narrow rows together


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows(
    x, weight, residual, out, sum_out, eps, num_rows, width, x_stride, residual_stride,
    out_stride, sum_stride, IS_ZERO_CENTRED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The mean is of the sum as it is stored. Each row is read whole before it is written."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    places, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)
    is_value = (places < num_rows - first) & (columns < width)[None, :]
    own = x + first * x_stride
    total = tl.load(own + (places * x_stride + columns[None, :]), mask=is_value, other=0.0)
    total = total.to(tl.float32)
    if residual is not None:
        own = residual + first * residual_stride
        added = tl.load(
            own + (places * residual_stride + columns[None, :]), mask=is_value, other=0.0
        )
        total += added.to(tl.float32)
    if sum_out is not None:
        stored = total.to(sum_out.dtype.element_ty)
        own = sum_out + first * sum_stride
        tl.store(own + (places * sum_stride + columns[None, :]), stored, mask=is_value)
        total = stored.to(tl.float32)
    mean = tl.sum(total * total, axis=1) / width
    factor = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    if IS_ZERO_CENTRED:
        factor += 1.0
    normed = total * (1.0 / tl.sqrt(mean + eps))[:, None] * factor[None, :]
    own = out + first * out_stride
    normed = normed.to(out.dtype.element_ty)
    tl.store(own + (places * out_stride + columns[None, :]), normed, mask=is_value)


def rms_norm(
    x: Tensor,  # [R, H]
    weight: Tensor,  # [H]
    *,
    eps: float,
    residual: Tensor | None = None,  # [R, H]
    is_zero_centred: bool = False,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Both [R, H]: normed = sum / rms(sum) · weight, and sum = x + residual in x's dtype (Zhang and
    Sennrich, 2019); float32 inside.

    `residual_out` may be `residual` or `x`, `out` may be any of them where no sum is kept. Any
    leading shape will do. Raises ValueError for rows wider than WIDTH_MAX.
    """
    width = x.shape[-1]
    if width > WIDTH_MAX:
        raise ValueError(f"rms_norm holds rows of at most {WIDTH_MAX} values, not {width}")
    rows = as_rows(x)
    sums = None
    if residual is not None or residual_out is not None:
        sums = target_rows(residual_out, _sum_like(x, residual))
    normed = target_rows(out, x if sums is None else sums)
    added = None if residual is None else as_rows(residual)
    block = triton.next_power_of_2(width)
    default = {"rows": max(1, TILE // block), "num_warps": 4 if block <= 4096 else 8}
    if block > 16384:
        default["num_warps"] = 16
    values = tuned("rms_norm", f"H={width}", default)
    launch(
        norm_rows, (triton.cdiv(rows.shape[0], values["rows"]),),
        Config(num_warps=values["num_warps"], num_stages=1),
        x=rows, weight=weight.contiguous(), residual=added, out=normed, sum_out=sums, eps=eps,
        num_rows=rows.shape[0], width=width, x_stride=rows.stride(0),
        residual_stride=0 if added is None else added.stride(0), out_stride=normed.stride(0),
        sum_stride=0 if sums is None else sums.stride(0), IS_ZERO_CENTRED=is_zero_centred,
        ROWS=values["rows"], BLOCK=block,
    )  # fmt: skip
    total = x if sums is None else delivered_rows(sums, residual_out, x.shape)
    return delivered_rows(normed, out, x.shape), total


def _sum_like(x: Tensor, residual: Tensor | None) -> Tensor:
    """A tensor of the shape and type of the sum."""
    if residual is None or residual.dtype is x.dtype:
        return x
    dtype = torch.promote_types(x.dtype, residual.dtype)
    return torch.empty(x.shape, dtype=dtype, device=x.device)
