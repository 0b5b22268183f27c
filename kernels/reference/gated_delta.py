"""The gated delta rule: linear attention whose state forgets and corrects itself."""

from __future__ import annotations

import torch
from torch import Tensor


def gated_delta(
    q: Tensor,  # [S, Q, heads, D]
    k: Tensor,
    v: Tensor,  # [S, Q, heads, Dv]
    gate: Tensor,  # [S, Q, heads]: logarithm of what the state keeps, at most 0
    beta: Tensor,  # [S, Q, heads]: how strongly the state corrects itself
    state: Tensor,  # [S, heads, D, Dv] float32
    *,
    scale: float,
    state_out: Tensor | None = None,  # [S, heads, D, Dv], or [S, Q, heads, D, Dv] for every row's
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(results [S, Q, heads, Dv] in v's dtype, state after the last row or after every row).

    Row after row, in float32 (Yang et al., 2024, "Gated Delta Networks", equation 10):

        state ← exp(gate) · state;  state ← state + k ⊗ beta · (v - stateᵀ k);  o = scale · stateᵀ q

    A row with gate 0 and beta 0 leaves the state alone: that is how padding is given. `state_out`
    may be `state`; with a row dimension it lets a rejected draft be undone.
    """
    queries, keys, values = q.float() * scale, k.float(), v.float()
    kept, strength = gate.float().exp(), beta.float()
    results = torch.empty_like(v) if out is None else out
    current = state.float()
    for row in range(q.shape[1]):
        key = keys[:, row].unsqueeze(3)  # [S, heads, D, 1]
        current = current * kept[:, row, :, None, None]
        recalled = (current * key).sum(dim=2)
        change = (values[:, row] - recalled) * strength[:, row].unsqueeze(2)
        current = current + key * change.unsqueeze(2)
        results[:, row] = (current * queries[:, row].unsqueeze(3)).sum(dim=2)
        if state_out is not None and state_out.dim() == 5:
            state_out[:, row] = current
    if state_out is None:
        return results, current
    return results, state_out if state_out.dim() == 5 else state_out.copy_(current)
