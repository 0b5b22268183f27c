"""Token ids to states at one end, states to logits at the other; the table may be the same."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.layers.linear import Linear

_UNITS_AT_ONCE = 64


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

    def rows(self, token_ids: Tensor, hidden_size: int, dtype: torch.dtype) -> Tensor:
        """float32 [K, H]: some rows of the weight, read by projecting unit vectors.

        However the weight is packed, a unit vector gives one of its columns, as it multiplies.
        """
        device = token_ids.device
        rows = torch.empty(token_ids.shape[0], hidden_size, dtype=torch.float32, device=device)
        for begin in range(0, hidden_size, _UNITS_AT_ONCE):
            end = min(begin + _UNITS_AT_ONCE, hidden_size)
            units = torch.zeros(end - begin, hidden_size, dtype=dtype, device=device)
            units[:, begin:end].fill_diagonal_(1.0)
            rows[:, begin:end] = self.forward(units).index_select(1, token_ids).t()
        return rows
