"""A product through the experts that each row was sent to (Shazeer et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor


def moe_matmul(
    x: Tensor,  # [R, K]
    weight: Tensor,  # [E, N, K]
    expert_ids: Tensor,  # [R, T] int64: the experts chosen
    expert_weights: Tensor,  # [R, T]
    *,
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in x's dtype: Σ over t of expert_weights · (x · weight[expert]ᵀ), summed in float32.

    With T = 1 and weights of 1 it is the plain product of each row with its own expert, which a
    gated expert needs: rows are repeated T times for gate and up, and summed after down.
    """
    num_rows, num_chosen = expert_ids.shape
    num_experts = weight.shape[0]
    result = torch.zeros(num_rows, weight.shape[1], dtype=torch.float32, device=x.device)
    factors = expert_weights.float()
    if num_rows * num_chosen <= num_experts:
        # Few rows: only the chosen experts are read.
        for chosen in range(num_chosen):
            each = weight.index_select(0, expert_ids[:, chosen])
            product = torch.bmm(each, x.unsqueeze(2)).squeeze(2)
            result += product.float() * factors[:, chosen, None]
    else:
        # Which rows an expert has is known to the device only: all rows go through all experts.
        for expert in range(num_experts):
            is_chosen = expert_ids == expert
            factor = (factors * is_chosen).sum(dim=1, keepdim=True)
            product = torch.mm(x, weight[expert].t()).float()
            result += torch.where(is_chosen.any(dim=1, keepdim=True), product * factor, 0.0)
    return result.to(x.dtype) if out is None else out.copy_(result)
