"""A step as tensors: one buffer holds what the host must say, the device computes all else.

Rows of a step: S decoding sequences with 1 + N rows each (their last token and N drafts), padded
with slot 0; then the pieces of prompts, each padded on its own. Rows that only pad lie at block 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.engine.scheduler import Step
from backend.engine.shapes import PIECES_MAX, Shapes
from backend.engine.state import SlotState
from backend.models.interface import AttentionGroup, FeatureTap, ForwardInput, KvCache
from backend.sampling.sampler import BatchTraits, Sampler


@dataclass(frozen=True, slots=True)
class Batch:
    """The shape of a step: all that the host needs to know to launch it."""

    num_sequences: int  # decoding, with padding
    num_drafts: int
    decode_width: int  # blocks of a table
    chunk_rows: tuple[int, ...]
    chunk_widths: tuple[int, ...]
    num_prompts: int  # that draw their first token
    num_copies: int
    decode_traits: BatchTraits
    prompt_traits: BatchTraits

    @classmethod
    def of(cls, step: Step, shapes: Shapes, block_size: int) -> Batch:
        def width(num_tokens: int) -> int:
            return shapes.width(min(-(-num_tokens // block_size), shapes.table_widths[-1]))

        lengths = [each.num_tokens + step.num_drafts for each in step.decodes]
        return cls(
            num_sequences=shapes.batch(len(step.decodes)) if step.decodes else 0,
            num_drafts=step.num_drafts,
            decode_width=width(max(lengths, default=1)),
            chunk_rows=tuple(chunk.num_rows for chunk in step.chunks),
            chunk_widths=tuple(width(chunk.end) for chunk in step.chunks),
            num_prompts=len(step.last_chunks),
            num_copies=len(step.copies),
            decode_traits=Sampler.traits([each.request.params for each in step.decodes]),
            prompt_traits=Sampler.traits(
                [chunk.sequence.request.params for chunk in step.last_chunks]
            ),
        )


class HostBuffer:
    """Named lists of integers that the host writes and one copy takes to the device."""

    def __init__(self, sizes: Mapping[str, int], device: torch.device) -> None:
        total = sum(sizes.values())
        host = torch.zeros(total, dtype=torch.int64)
        self._host = host.pin_memory() if device.type == "cuda" else host
        self.tensor = self._host.to(device)  # on a CPU both are one
        self._numbers = self._host.numpy()
        self._starts: dict[str, int] = {}
        self._sizes = dict(sizes)
        start = 0
        for name, size in sizes.items():
            self._starts[name] = start
            start += size

    def write(self, name: str, values: Iterable[int], size: int | None = None) -> None:
        """`size`: padded with 0 up to it."""
        given = list(values)
        assert max(len(given), size or 0) <= self._sizes[name]
        start = self._starts[name]
        self._numbers[start : start + len(given)] = given
        if size is not None:
            self._numbers[start + len(given) : start + size] = 0

    def upload(self) -> None:
        if self.tensor is not self._host:
            self.tensor.copy_(self._host, non_blocking=True)

    def take(self, name: str, size: int, start: int = 0) -> Tensor:
        """A view of the device's copy."""
        begin = self._starts[name] + start
        return self.tensor[begin : begin + size]


class StepBuffers:
    """The persistent tensors of a step, for the largest step that there may be."""

    def __init__(
        self, *, rows_max: int, sequences_max: int, prefills_max: int, device: torch.device
    ) -> None:
        per_chunk = ("chunk_slots", "chunk_starts", "chunk_sizes")
        per_prompt = ("prompt_slots", "prompt_rows", "prompt_lengths")
        per_copy = ("copy_sources", "copy_targets")
        sizes = {"token_ids": rows_max, "slots": sequences_max}
        sizes |= dict.fromkeys(per_chunk, PIECES_MAX * prefills_max)
        sizes |= dict.fromkeys((*per_prompt, *per_copy), prefills_max)
        self.host = HostBuffer(sizes, device)
        self.token_ids = torch.zeros(rows_max, dtype=torch.int64, device=device)
        self.positions = torch.zeros_like(self.token_ids)
        self.kv_slots = torch.zeros_like(self.token_ids)

    def persistent(self) -> Mapping[str, Tensor]:
        """The tensors that a captured graph would read and write."""
        return {
            "host": self.host.tensor,
            "token_ids": self.token_ids,
            "positions": self.positions,
            "kv_slots": self.kv_slots,
        }

    def fill(self, step: Step, batch: Batch) -> None:
        """Everything that only the host knows. Prompt rows are counted from the first chunk's."""
        write = self.host.write
        write("slots", [each.slot for each in step.decodes], batch.num_sequences)
        write("chunk_slots", [chunk.sequence.slot for chunk in step.chunks])
        write("chunk_starts", [chunk.start for chunk in step.chunks])
        write("chunk_sizes", [chunk.num_tokens for chunk in step.chunks])
        token_ids: list[int] = []
        ends: list[int] = []
        for chunk in step.chunks:
            row_start = len(token_ids)
            token_ids += chunk.sequence.token_ids[chunk.start : chunk.end]
            token_ids += [0] * (chunk.num_rows - chunk.num_tokens)
            if chunk.is_last:
                ends.append(row_start + chunk.num_tokens - 1)
        write("token_ids", token_ids)
        write("prompt_rows", ends)
        write("prompt_slots", [chunk.sequence.slot for chunk in step.last_chunks])
        write("prompt_lengths", [chunk.end + 1 for chunk in step.last_chunks])
        write("copy_sources", [copy.source for copy in step.copies])
        write("copy_targets", [copy.target for copy in step.copies])
        self.host.upload()


@dataclass(frozen=True, slots=True)
class InputMaker:
    """Launches what turns slots and state into the input of a forward; reads no value."""

    buffers: StepBuffers
    state: SlotState
    block_size: int
    context_len_max: int

    def make(
        self,
        batch: Batch,
        draft_ids: Tensor | None,
        features: Mapping[FeatureTap, Tensor] | None,
    ) -> ForwardInput:
        """`draft_ids` [S, N] int64; None: N is 0, whatever the batch has room for."""
        groups: list[AttentionGroup] = []
        row = 0
        if batch.num_sequences:
            groups.append(self._decodes(batch, draft_ids))
            row = groups[0].num_rows
        staged = 0
        for index, num_rows in enumerate(batch.chunk_rows):
            groups.append(self._chunk(batch, index, row, staged))
            row += num_rows
            staged += num_rows
        return ForwardInput(
            token_ids=self.buffers.token_ids[:row],
            positions=self.buffers.positions[:row],
            kv_slots=self.buffers.kv_slots[:row],
            groups=groups,
            features=features,
        )

    def _decodes(self, batch: Batch, draft_ids: Tensor | None) -> AttentionGroup:
        num_sequences = batch.num_sequences
        query_len = 1 if draft_ids is None else 1 + draft_ids.shape[1]
        shape = (num_sequences, query_len)
        slots = self.buffers.host.take("slots", num_sequences)
        starts = self.state.lengths.index_select(0, slots) - 1
        tables = self.state.block_tables[:, : batch.decode_width].index_select(0, slots)
        places = starts.unsqueeze(1) + torch.arange(query_len, device=slots.device)
        rows = slice(0, num_sequences * query_len)
        token_ids = self.buffers.token_ids[rows].view(shape)
        token_ids[:, 0].copy_(self.state.last_tokens.index_select(0, slots))
        if draft_ids is not None:
            token_ids[:, 1:].copy_(draft_ids)
        # Only drafts can reach behind the context; a padding row's table holds block 0 alone.
        is_real = None if query_len == 1 else places < self.context_len_max
        self._place(rows, places, tables, is_real)
        return AttentionGroup(
            row_start=0,
            num_sequences=num_sequences,
            query_len=query_len,
            block_tables=tables,
            context_lens=(starts + query_len).clamp(max=self.context_len_max).to(torch.int32),
            query_starts=starts.to(torch.int32),
        )

    def _chunk(self, batch: Batch, index: int, row: int, staged: int) -> AttentionGroup:
        num_rows = batch.chunk_rows[index]
        take = self.buffers.host.take
        slot, start, size = (
            take(name, 1, index) for name in ("chunk_slots", "chunk_starts", "chunk_sizes")
        )
        tables = self.state.block_tables[:, : batch.chunk_widths[index]].index_select(0, slot)
        offsets = torch.arange(num_rows, device=slot.device)
        rows = slice(row, row + num_rows)
        self.buffers.token_ids[rows].copy_(take("token_ids", num_rows, staged))
        self._place(rows, (start + offsets).unsqueeze(0), tables, (offsets < size).unsqueeze(0))
        return AttentionGroup(
            row_start=row,
            num_sequences=1,
            query_len=num_rows,
            block_tables=tables,
            context_lens=(start + size).to(torch.int32),
            query_starts=start.to(torch.int32),
        )

    def _place(self, rows: slice, places: Tensor, tables: Tensor, is_real: Tensor | None) -> None:
        """Positions and cache slots of rows [S, Q]; what is not real lies in block 0."""
        if is_real is not None:
            num_keys = min(tables.shape[1] * self.block_size, self.context_len_max)
            places = places.clamp(max=num_keys - 1)
        blocks = tables.gather(1, places // self.block_size).to(torch.int64)
        kv_slots = blocks * self.block_size + places % self.block_size
        if is_real is not None:
            kv_slots = torch.where(is_real, kv_slots, 0)
        self.buffers.positions[rows].view(places.shape).copy_(places)
        self.buffers.kv_slots[rows].view(places.shape).copy_(kv_slots)


def copy_blocks(cache: KvCache, sources: Tensor, targets: Tensor) -> None:
    """Copy on write, in every layer."""
    for blocks in (*cache.keys, *cache.values):
        blocks.index_copy_(0, targets, blocks.index_select(0, sources))
