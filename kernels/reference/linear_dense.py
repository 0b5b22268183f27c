"""A linear whose weight is held in the type of the model."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_dense(
    x: Tensor,  # [R, K]
    weight: Tensor,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x.

    Torch sums in an order of its own choice, which may change with the number of rows.
    """
    if bias is None and (out is None or out.dtype == x.dtype) and weight.dtype == x.dtype:
        return torch.mm(x, weight.t()) if out is None else torch.mm(x, weight.t(), out=out)
    result = torch.mm(x.to(weight.dtype), weight.t()).float()
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)
