"""Token ids to states at one end, states to logits at the other; the table may be the same."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.layers.linear import Linear


class Embedding:
    """`table` [V, H]."""

    def __init__(self, table: Tensor) -> None:
        self._table = table

    def forward(self, token_ids: Tensor, out: Tensor) -> None:
        """out [R, H] ← rows of the table; an id outside of it is an error of the caller."""
        torch.index_select(self._table, 0, token_ids, out=out)


class Head:
    """Logits in float32. The result is new memory: callers may keep it and change it in place."""

    def __init__(self, projection: Linear, vocab_size: int) -> None:
        self._projection = projection
        self._vocab_size = vocab_size

    def forward(self, hidden: Tensor) -> Tensor:
        """[S, H] → float32 [S, V]."""
        out = torch.empty(
            hidden.shape[0], self._vocab_size, dtype=torch.float32, device=hidden.device
        )
        return self._projection.forward(hidden, out)
