"""Root-mean-square norm, with the residual added before it (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Both [R, H]: normed = sum / rms(sum) · weight, and sum = x + residual in x's dtype.

    Without `residual` the sum is x itself. The mean is taken in float32 of the sum as it is stored.
    `is_zero_centred`: the weight is held as its distance from 1 (Gemma). `residual_out` may be
    `residual` or `x`. Any leading shape will do: the norm is over the last dimension.
    """
    if residual is not None:
        x = torch.add(x, residual, out=residual_out)
    elif residual_out is not None:
        x = residual_out.copy_(x)
    if is_zero_centred or weight.dtype != x.dtype:
        factor = weight.float() + 1.0 if is_zero_centred else weight.float()
        normed = torch.rms_norm(x.float(), (x.shape[-1],), factor, eps).to(x.dtype)
    else:
        # Float32 inside whatever the dtype, and a third fewer calls than writing it out.
        normed = torch.rms_norm(x, (x.shape[-1],), weight, eps)
    return (normed if out is None else out.copy_(normed)), x
