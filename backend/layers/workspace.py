"""The activations of a step, in buffers that live as long as the model: a step allocates nothing.

Shapes: R rows, H hidden, QH query heads, KH key heads, D head size, I intermediate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import ModelConfig

# Row counts come from a declared set; this bounds the views kept if a caller declares none.
VIEWS_MAX = 4096


@dataclass(frozen=True, slots=True)
class Activations:
    """Views of R rows. `residual` is the sum so far; `delta` is what the last block adds to it."""

    residual: Tensor  # [R, H]
    delta: Tensor  # [R, H]
    normed: Tensor  # [R, H]
    qkv: Tensor  # [R, (QH + 2 KH) D]
    queries: Tensor  # [R, QH, D]
    attended: Tensor  # [R, QH, D]
    attended_rows: Tensor  # [R, QH D]: the same memory
    gate_up: Tensor  # [R, 2 I]
    gated: Tensor  # [R, I]


class Workspace:
    """Buffers for up to `rows_max` rows; asked for more, it grows once and drops the old ones."""

    def __init__(
        self, config: ModelConfig, rows_max: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self._allocate(rows_max)

    def take(self, rows: int) -> Activations:
        """The same views for the same number of rows, valid until the next forward."""
        found = self._views.get(rows)
        if found is None:
            found = self._slice(rows)
        return found

    def _allocate(self, rows_max: int) -> None:
        config = self._config
        query_size = config.num_heads * config.head_dim
        qkv_size = query_size + 2 * config.num_kv_heads * config.head_dim
        widths = {
            "residual": config.hidden_size,
            "delta": config.hidden_size,
            "normed": config.hidden_size,
            "qkv": qkv_size,
            "queries": query_size,
            "attended_rows": query_size,
            "gate_up": 2 * config.intermediate_size,
            "gated": config.intermediate_size,
        }
        self._rows_max = rows_max
        self._buffers = {
            name: torch.zeros(rows_max, width, dtype=self._dtype, device=self._device)
            for name, width in widths.items()
        }
        self._views: dict[int, Activations] = {}

    def _slice(self, rows: int) -> Activations:
        if rows > self._rows_max:
            self._allocate(max(rows, 2 * self._rows_max))
        if len(self._views) >= VIEWS_MAX:
            self._views.clear()
        config = self._config
        part = {name: buffer[:rows] for name, buffer in self._buffers.items()}
        heads = (rows, config.num_heads, config.head_dim)
        found = Activations(
            residual=part["residual"],
            delta=part["delta"],
            normed=part["normed"],
            qkv=part["qkv"],
            queries=part["queries"].view(heads),
            attended=part["attended_rows"].view(heads),
            attended_rows=part["attended_rows"],
            gate_up=part["gate_up"],
            gated=part["gated"],
        )
        self._views[rows] = found
        return found
