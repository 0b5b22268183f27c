"""What the device remembers of every sequence from one step to the next: one row a slot.

A decode step is computed from these rows and the list of slots alone, so nothing that a step needs
waits for a value to reach the host, and a captured graph can be replayed with other slots. Row 0
belongs to nobody: rows that pad a batch read it, write to block 0 of the cache, and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_INITIAL_LENGTH = 1  # a padding row stands at position 0


class SlotState:
    """Shapes: `num_slots` rows with row 0; W blocks of the whole context."""

    def __init__(self, num_slots: int, table_width: int, device: torch.device) -> None:
        def full(value: int) -> Tensor:
            return torch.full((num_slots,), value, dtype=torch.int64, device=device)

        self.last_tokens = full(0)  # committed, not yet in the cache
        self.lengths = full(_INITIAL_LENGTH)  # committed tokens, the last one among them
        self.num_fresh = full(1)  # tokens committed by the last step
        self._padding_token, self._padding_length = self.last_tokens[0], self.lengths[0]
        shape = (num_slots, table_width)
        host = torch.zeros(shape, dtype=torch.int32)
        self._tables_host = host.pin_memory() if device.type == "cuda" else host
        # On a CPU both are one.
        self.block_tables = self._tables_host.to(device)
        self._table_rows = self._tables_host.numpy()
        self._num_written = [0] * num_slots
        self._is_stale = False

    def persistent(self) -> Mapping[str, Tensor]:
        """The tensors that a captured graph would read and write."""
        return {
            "last_tokens": self.last_tokens,
            "lengths": self.lengths,
            "num_fresh": self.num_fresh,
            "block_tables": self.block_tables,
        }

    def bind(self, slot: int) -> None:
        """A sequence takes the slot; its table is written from the start."""
        self._table_rows[slot] = 0
        self._num_written[slot] = 0

    def write_table(self, slot: int, blocks: Sequence[int]) -> None:
        """Adds the blocks that came since the last time; those before them never change."""
        start = self._num_written[slot]
        if start < len(blocks):
            self._table_rows[slot, start : len(blocks)] = blocks[start:]
            self._num_written[slot] = len(blocks)
            self._is_stale = True

    def upload(self) -> None:
        """Before the first launch of a step. The host waits for each step's tokens before it writes
        again, so the copy need not be waited for."""
        if self._is_stale and self.block_tables is not self._tables_host:
            self.block_tables.copy_(self._tables_host, non_blocking=True)
        self._is_stale = False

    def commit_decodes(self, slots: Tensor, tokens: Tensor, num_tokens: Tensor) -> None:
        """Slots [S], of tokens [S, N + 1] the first `num_tokens` [S]."""
        if tokens.shape[1] > 1:
            tokens = tokens.gather(1, (num_tokens - 1).unsqueeze(1))
        self.last_tokens.index_copy_(0, slots, tokens.squeeze(1))
        self.lengths.index_add_(0, slots, num_tokens)
        self.num_fresh.index_copy_(0, slots, num_tokens)
        # What padding wrote is taken back.
        self._padding_token.zero_()
        self._padding_length.fill_(_INITIAL_LENGTH)

    def commit_prompts(self, slots: Tensor, tokens: Tensor, lengths: Tensor) -> None:
        """The first token of each answer: slots, tokens and lengths with it, [P] each."""
        self.last_tokens.index_copy_(0, slots, tokens)
        self.lengths.index_copy_(0, slots, lengths)
