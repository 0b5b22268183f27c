"""The frozen target: what it makes of a text, as the engine that serves it computes it.

Shapes: L positions of a text, F features, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.models.interface import AttentionGroup, CausalModel, FeatureTap, ForwardInput
from backend.train.corpus import States

BLOCK_SIZE = 32


class Teacher:
    """Reads texts one at a time, `rows_max` positions a forward."""

    def __init__(
        self,
        model: CausalModel,
        taps: Sequence[FeatureTap],
        *,
        context_len: int,
        rows_max: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._taps = tuple(taps)
        self._rows_max = rows_max
        self.device = device
        num_blocks = -(-context_len // BLOCK_SIZE)
        with torch.inference_mode():
            self._cache = model.make_cache(num_blocks + 1, BLOCK_SIZE)
            probe = model.embed(torch.zeros(1, dtype=torch.int64, device=device))
        self.dtype = probe.dtype
        size = model.config.hidden_size
        self._buffers = {
            tap: torch.zeros(rows_max, size, dtype=self.dtype, device=device) for tap in self._taps
        }
        # Block 0 is where padding writes.
        self._table = torch.arange(1, num_blocks + 1, dtype=torch.int32, device=device)

    @property
    def columns(self) -> int:
        """Numbers a position: all features and the last state."""
        return (len(self._taps) + 1) * self._model.config.hidden_size

    def read(self, token_ids: Sequence[int]) -> States:
        """Of one text, all positions."""
        ids = torch.tensor(token_ids, dtype=torch.int64, device=self.device)
        length, size = len(token_ids), self._model.config.hidden_size
        features = torch.empty(length, len(self._taps) * size, dtype=self.dtype)
        last = torch.empty(length, size, dtype=self.dtype)
        if self.device.type != "cpu":
            features, last = features.to(self.device), last.to(self.device)
        with torch.inference_mode():
            for begin in range(0, length, self._rows_max):
                end = min(length, begin + self._rows_max)
                last[begin:end] = self._forward(ids[begin:end], begin)
                torch.cat(
                    [self._buffers[tap][: end - begin] for tap in self._taps],
                    1,
                    out=features[begin:end],
                )
        return States(features, last)

    def _forward(self, token_ids: Tensor, begin: int) -> Tensor:
        rows = token_ids.shape[0]
        positions = torch.arange(begin, begin + rows, device=self.device)
        width = -(-(begin + rows) // BLOCK_SIZE)
        group = AttentionGroup(
            row_start=0,
            num_sequences=1,
            query_len=rows,
            block_tables=self._table[:width].unsqueeze(0),
            context_lens=torch.tensor([begin + rows], dtype=torch.int32, device=self.device),
            query_starts=torch.tensor([begin], dtype=torch.int32, device=self.device),
        )
        given = ForwardInput(
            token_ids, positions, positions + BLOCK_SIZE, (group,), dict(self._buffers)
        )
        return self._model.forward(given, self._cache)
