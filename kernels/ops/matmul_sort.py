"""Rows put in order of the experts that they go to, on the device: the host waits for nothing.

A counting sort of pairs (row, choice). Each expert's pairs fill blocks of their own, the last one
in part, so that a block has one weight. How many blocks there are at the most follows from the
shapes; those behind the last one have no pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import Config, launch

CHUNK = 64  # pairs that one program puts into their places
PAIRS_COUNTED_TWICE_MAX = 512  # up to here each program counts all, which spares a launch
CHUNKS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class SortedPairs:
    """Block b has pairs `pairs[b · block_size : … + num_pairs[b]]`, all of `experts[b]`. Pair
    number p is choice p % T of row p // T.
    """

    pairs: Tensor  # [blocks · block_size] int32
    experts: Tensor  # [blocks] int32
    num_pairs: Tensor  # [blocks] int32
    block_size: int

    @property
    def num_blocks(self) -> int:
        return int(self.experts.shape[0])


@triton.jit
def _ids_of(expert_ids, begin, num_pairs, num_experts, CHUNK: tl.constexpr):
    """Of a chunk's pairs; out of the range go to the nearest expert there is, -1 past the end."""
    pair = begin + tl.arange(0, CHUNK)
    ids = tl.load(expert_ids + pair, mask=pair < num_pairs, other=0).to(tl.int32)
    return tl.where(pair < num_pairs, tl.minimum(tl.maximum(ids, 0), num_experts - 1), -1)


@triton.jit
def _histogram(ids, EXPERTS: tl.constexpr):
    experts = tl.arange(0, EXPERTS)
    return tl.sum((ids[:, None] == experts[None, :]).to(tl.int32), 0)


@triton.jit
def _count_pairs(
    expert_ids, counts, num_pairs, num_experts, EXPERTS: tl.constexpr, CHUNK: tl.constexpr
):
    chunk = tl.program_id(0)
    ids = _ids_of(expert_ids, chunk * CHUNK, num_pairs, num_experts, CHUNK)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), _histogram(ids, EXPERTS))


@triton.jit
def _counts_of(
    expert_ids, counts, chunk, num_chunks, num_pairs, num_experts,
    EXPERTS: tl.constexpr, CHUNK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Each expert's pairs in all chunks, and in those before `chunk`."""
    total = tl.zeros([EXPERTS], tl.int32)
    before = tl.zeros([EXPERTS], tl.int32)
    if counts is None:
        for each in range(0, num_chunks):
            ids = _ids_of(expert_ids, each * CHUNK, num_pairs, num_experts, CHUNK)
            found = _histogram(ids, EXPERTS)
            total += found
            before += tl.where(each < chunk, found, 0)
    else:
        experts = tl.arange(0, EXPERTS)
        for first in range(0, num_chunks, AT_ONCE):
            each = first + tl.arange(0, AT_ONCE)
            at = counts + each[:, None] * EXPERTS + experts[None, :]
            found = tl.load(at, mask=(each < num_chunks)[:, None], other=0)
            total += tl.sum(found, 0)
            before += tl.sum(tl.where((each < chunk)[:, None], found, 0), 0)
    return total, before


@triton.jit
def _place_pairs(
    expert_ids, counts, pairs, block_experts, block_pairs,
    num_pairs, num_experts, num_chunks, num_blocks,
    EXPERTS: tl.constexpr, CHUNK: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    total, before = _counts_of(
        expert_ids, counts, chunk, num_chunks, num_pairs, num_experts, EXPERTS, CHUNK, AT_ONCE
    )
    filled = (total + BLOCK - 1) // BLOCK * BLOCK
    end = tl.cumsum(filled, 0)
    start = end - filled

    # Of the chunk's pairs: where the expert's first one of this chunk goes, and how many are
    # before it here. A second load has them along the other side.
    experts = tl.arange(0, EXPERTS)
    ids = _ids_of(expert_ids, chunk * CHUNK, num_pairs, num_experts, CHUNK)
    is_expert = ids[:, None] == experts[None, :]
    first = tl.sum(tl.where(is_expert, (start + before)[None, :], 0), 1)
    place = tl.arange(0, CHUNK)
    is_before = (ids[:, None] == ids[None, :]) & (place[None, :] < place[:, None])
    at = first + tl.sum(is_before.to(tl.int32), 1)
    tl.store(pairs + at, chunk * CHUNK + place, mask=ids >= 0)

    # The programs share the blocks' descriptions among them.
    for begin in range(chunk * CHUNK, num_blocks, num_chunks * CHUNK):
        block = begin + tl.arange(0, CHUNK)
        is_past = end[None, :] <= (block * BLOCK)[:, None]
        expert = tl.sum(is_past.to(tl.int32), 1)
        is_own = experts[None, :] == expert[:, None]
        left = tl.sum(tl.where(is_own, (start + total)[None, :], 0), 1) - block * BLOCK
        num_own = tl.minimum(tl.maximum(left, 0), BLOCK)
        tl.store(block_experts + block, expert, mask=block < num_blocks)
        tl.store(block_pairs + block, num_own, mask=block < num_blocks)


def num_blocks_max(num_pairs: int, num_experts: int, block_size: int) -> int:
    """Full blocks, and one in part for each expert that can have pairs; never more than pairs."""
    return min(num_pairs, num_pairs // block_size + min(num_experts, num_pairs))


def sort_pairs(expert_ids: Tensor, num_experts: int, block_size: int) -> SortedPairs:
    """`expert_ids` [R, T], each from 0 to below `num_experts`; those outside go to the nearest."""
    ids, num_pairs = expert_ids.contiguous(), expert_ids.numel()
    num_blocks = num_blocks_max(num_pairs, num_experts, block_size)
    num_chunks = triton.cdiv(num_pairs, CHUNK)
    experts_padded = triton.next_power_of_2(num_experts)
    pairs, experts, counts_of_blocks = (
        torch.empty(size, dtype=torch.int32, device=ids.device)
        for size in (num_blocks * block_size, num_blocks, num_blocks)
    )
    shared = {
        "expert_ids": ids, "num_pairs": num_pairs, "num_experts": num_experts,
        "EXPERTS": experts_padded, "CHUNK": CHUNK,
    }  # fmt: skip
    counts = None
    if num_pairs > PAIRS_COUNTED_TWICE_MAX:
        counts = torch.empty((num_chunks, experts_padded), dtype=torch.int32, device=ids.device)
        launch(_count_pairs, (num_chunks,), Config(num_stages=1), counts=counts, **shared)
    launch(
        _place_pairs, (num_chunks,), Config(num_warps=8, num_stages=1), counts=counts, pairs=pairs,
        block_experts=experts, block_pairs=counts_of_blocks, num_chunks=num_chunks,
        num_blocks=num_blocks, AT_ONCE=CHUNKS_AT_ONCE, BLOCK=block_size, **shared,
    )  # fmt: skip
    return SortedPairs(pairs, experts, counts_of_blocks, block_size)
