"""Keys and values of a draft's own layers, in blocks, and where a call's rows lie among them.

Memory: as many tokens as the target's own cache holds, and two blocks a sequence; so what a draft
adds is the target's cache times the share of its layers. Nothing here waits for the device: blocks
are handed out by what the host knows, places are computed from the device's lengths.

A slot that was not written in this round is never read: rows are read up to `context_lens`, and
what lies behind does not reach a result (`paged_attention`).

Shapes: S sequences, Q rows each, W blocks of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import EngineConfig, ModelConfig
from backend.models.interface import CausalModel
from backend.speculate.draft_blocks import DraftBlocks
from backend.speculate.protocol import ProposeInput

_SPARE_BLOCKS = 2  # a sequence: one that drafts begin, one that is copied from another sequence


@dataclass(frozen=True, slots=True)
class Places:
    """Rows [S Q] of one pass: what `rope_kv_write` and `paged_attention` want to know."""

    positions: Tensor  # [S Q] int64
    kv_slots: Tensor  # [S Q] int64
    block_tables: Tensor  # [S, W] int32
    context_lens: Tensor  # [S] int32
    query_starts: Tensor  # [S] int32
    query_len: int

    def last_only(self, rows: Tensor) -> Places:
        """Of the same pass one row a sequence, `rows` [S] of the [S Q]: the last that is real."""
        return Places(
            positions=self.positions.index_select(0, rows),
            kv_slots=self.kv_slots.index_select(0, rows),
            block_tables=self.block_tables,
            context_lens=self.context_lens,
            query_starts=self.context_lens - 1,
            query_len=1,
        )


@dataclass(frozen=True, slots=True)
class View:
    """The part of the cache that the sequences of one call may reach."""

    block_tables: Tensor  # [S, W] int32
    gaps: Tensor  # [S] int64
    is_lost: Tensor  # [S] int64: 1, no drafts
    block_size: int
    num_positions: int

    def places(self, first: Tensor, query_len: int, num_real: Tensor | None = None) -> Places:
        """Rows at positions `first` [S] and behind. Of each sequence `num_real` [S] exist; the
        others write to block 0, and nobody reads what they compute."""
        offsets = torch.arange(query_len, device=first.device)
        reach = self.block_tables.shape[1] * self.block_size
        begins = first - self.gaps
        indices = (begins.unsqueeze(1) + offsets).clamp(0, reach - 1)
        blocks = self.block_tables.gather(1, indices // self.block_size).to(torch.int64)
        kv_slots = blocks * self.block_size + indices % self.block_size
        ends = begins + query_len
        if num_real is not None:
            kv_slots = torch.where(offsets < num_real.unsqueeze(1), kv_slots, 0)
            ends = begins + num_real
        positions = (first.unsqueeze(1) + offsets).clamp(0, self.num_positions - 1)
        return Places(
            positions=positions.flatten(),
            kv_slots=kv_slots.flatten(),
            block_tables=self.block_tables,
            context_lens=ends.clamp(1, reach).to(torch.int32),
            query_starts=begins.clamp(0, reach).to(torch.int32),
            query_len=query_len,
        )


class _Mirror:
    """Integers that the host writes row by row; a copy takes them to the device."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        host = torch.zeros(shape, dtype=dtype)
        self._host = host.pin_memory() if device.type == "cuda" else host
        self.tensor = self._host.to(device)  # on a CPU both are one
        self.rows = self._host.numpy()

    def upload(self) -> None:
        if self.tensor is not self._host:
            self.tensor.copy_(self._host, non_blocking=True)


class DraftCache:
    """`keys`, `values`: a layer each, [num_blocks, KH, block, D]; block 0 is for padding. They are
    parts of `all_keys` and `all_values` [layers, num_blocks, KH, block, D].
    """

    def __init__(
        self, model: CausalModel, config: EngineConfig, shape: ModelConfig, *, lookahead: int
    ) -> None:
        device, dtype = torch.device(config.device), getattr(torch, config.dtype.value)
        context_len = config.context_len_max or model.config.context_len_max
        num_drafts = config.num_drafts_max
        self.block_size = config.block_size
        # Drafts may run over the context's end; the engine drops them there.
        self.num_positions = context_len + num_drafts + 1
        self._num_more = num_drafts + 1
        width = -(-self.num_positions // self.block_size)
        num_blocks = _num_blocks(model, config, width)
        blocks = (num_blocks, shape.num_kv_heads, self.block_size, shape.head_dim)
        self.all_keys, self.all_values = (
            torch.zeros((shape.num_layers, *blocks), dtype=dtype, device=device) for _ in range(2)
        )
        self.keys, self.values = self.all_keys.unbind(), self.all_values.unbind()
        self._blocks = DraftBlocks(num_blocks, self.block_size, lookahead)
        num_slots = config.sequences_max + 1
        self._tables = _Mirror((num_slots, width), torch.int32, device)
        self._gaps = _Mirror((num_slots,), torch.int64, device)
        self._is_lost = _Mirror((num_slots,), torch.int64, device)
        self._is_lost.rows[0] = 1  # padding drafts for nobody

    @property
    def num_bytes(self) -> int:
        """Of keys and values, whoever uses them."""
        return sum(each.nbytes for each in (*self.keys, *self.values))

    @property
    def blocks(self) -> DraftBlocks:
        return self._blocks

    def enter(self, given: ProposeInput) -> View:
        """Blocks for every row of the call and its drafts. Raises ValueError if the engine does not
        say which slots it means."""
        if len(given.slot_ids) != len(given.histories):
            raise ValueError("a draft with a cache needs slot_ids beside histories")
        width = 1
        for slot, tenant, tokens in zip(
            given.slot_ids, given.tenants, given.histories, strict=True
        ):
            width = max(width, self._enter(slot, tenant, tokens, given.start))
        for each in (self._tables, self._gaps, self._is_lost):
            each.upload()
        # Few different widths, as the engine's own tables have.
        width = min(1 << (width - 1).bit_length(), self._tables.tensor.shape[1])
        return View(
            block_tables=self._tables.tensor[:, :width].index_select(0, given.slots),
            gaps=self._gaps.tensor.index_select(0, given.slots),
            is_lost=self._is_lost.tensor.index_select(0, given.slots),
            block_size=self.block_size,
            num_positions=self.num_positions,
        )

    def lose_all(self) -> None:
        """A call failed. Nobody knows whose rows are complete, so who runs now gets no drafts."""
        for slot in self._blocks.lose_all():
            self._write(slot)

    def release(self, slot: int) -> None:
        self._blocks.end(slot)

    def _enter(self, slot: int, tenant: bytes, tokens: Sequence[int], start: int | None) -> int:
        """Blocks that the sequence has now."""
        lane = self._blocks.lane(slot)
        if lane is None:
            # A decoding sequence without a lane has rows that were never shown here.
            lane, copy = self._blocks.begin(slot, tenant, tokens, start or 0)
            if copy is not None:
                for each in (*self.keys, *self.values):
                    each[copy.target].copy_(each[copy.source])
            if start is None:
                self._blocks.lose(lane)
        self._blocks.reach(lane, len(tokens) + self._num_more)
        # The newest token is not in the target's cache yet.
        self._blocks.note(lane, tokens, len(tokens) - 1)
        self._write(slot)
        return max(1, len(lane.blocks))

    def _write(self, slot: int) -> None:
        lane = self._blocks.lane(slot)
        if lane is None:
            return
        num_blocks = len(lane.blocks)
        self._tables.rows[slot, :num_blocks] = lane.blocks
        self._tables.rows[slot, num_blocks:] = 0
        self._gaps.rows[slot] = lane.gap
        self._is_lost.rows[slot] = lane.is_lost


def _num_blocks(model: CausalModel, config: EngineConfig, width: int) -> int:
    target_block_bytes = model.kv_bytes_per_token() * config.block_size
    most = config.sequences_max * (width + _SPARE_BLOCKS)
    wanted = config.kv_cache_bytes // target_block_bytes + config.sequences_max * _SPARE_BLOCKS
    return 1 + min(most, wanted)
