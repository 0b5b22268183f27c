"""top-k and top-p without a sort: the threshold's key is found four bits at a time.

Each pass compares every logit's key with the 16 ends of the buckets that the threshold may still
be in, and sums the masses up to each of them over all blocks of the row. Sums are integers, so
adding them up atomically gives the same in any order. A row without a filter, or a greedy one,
costs a pass nothing but its start.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import IS_INTERPRETED, current_target, launch
from kernels.ops.sampling_rows import CONFIG, Rows
from kernels.ops.sampling_weights import (
    INT32_MAX,
    ONE,
    ascending_keys,
    best_order,
    row_of,
    temperature_of,
    value_in,
    weights_of,
)  # fmt: skip

DIGIT_BITS = tl.constexpr(4)
DIGITS = tl.constexpr(16)
PASSES_MAX = tl.constexpr(8)
TOP_SHIFT = tl.constexpr(28)  # of the first digit
ROW_MASSES = tl.constexpr(128)  # DIGITS · PASSES_MAX
UNIT = tl.constexpr(1)
KEY_MIN = tl.constexpr(-(2**31))
PART = 8  # tokens a lane of a warp at a time: 16 sums for each must fit into registers
# The lower bits of a key follow from the upper ones where the type has fewer than float32.
PASSES = {torch.float32: 8, torch.float16: 5, torch.bfloat16: 4}


@triton.jit
def bucket_of(masses, row, wanted, num_done) -> Any:
    """int64: the smallest key of the bucket in which the masses reach `wanted`."""
    passes, digits = tl.arange(0, PASSES_MAX), tl.arange(0, DIGITS)
    at = row * ROW_MASSES + passes[:, None] * DIGITS + digits[None, :]
    is_done = passes < num_done
    found = tl.load(masses + at, mask=is_done[:, None] & (digits >= 0)[None, :], other=0)
    digit = tl.minimum(tl.sum((found < wanted).to(tl.int64), axis=1), DIGITS - 1)
    shifts = (-(passes * DIGIT_BITS) + TOP_SHIFT).to(tl.int64)
    return tl.sum(tl.where(is_done, digit << shifts, 0), axis=0) + KEY_MIN


@triton.jit
def ends_of(bucket, num_done) -> Any:
    """int32 [DIGITS]: the largest keys of the buckets that the next digit tells apart."""
    shift = -(num_done * DIGIT_BITS) + TOP_SHIFT
    ends = ((tl.arange(0, DIGITS).to(tl.int64) + 1) << shift) + (bucket - 1)
    return ends.to(tl.int32)


@triton.jit
def last_of(bucket, NUM_PASSES: tl.constexpr) -> Any:
    """The largest key of a bucket that `NUM_PASSES` digits tell apart."""
    return bucket + ((UNIT << (DIGIT_BITS * (PASSES_MAX - NUM_PASSES))) - 1)


@triton.jit
def wanted_count(top_k, row, vocab_size, top_k_max) -> Any:
    """int64; `vocab_size` where all are."""
    count = tl.load(top_k + row).to(tl.int64)
    return tl.where(count == 0, vocab_size, tl.minimum(count, top_k_max))


@triton.jit
def wanted_mass(top_p, masses, row) -> Any:
    """(int64 wanted, int64 total); the first pass has found the total."""
    total = tl.load(masses + row * ROW_MASSES + (DIGITS - 1))
    share = tl.load(top_p + row).to(tl.float64) * total.to(tl.float64)
    # float64 may round the product above the total.
    return tl.maximum(tl.minimum(tl.ceil(share).to(tl.int64), total), 1), total


@triton.jit
def count_threshold(counts, top_k, row, vocab_size, top_k_max, NUM_PASSES: tl.constexpr) -> Any:
    """int32: the largest key that top-k keeps."""
    wanted = wanted_count(top_k, row, vocab_size, top_k_max)
    last = last_of(bucket_of(counts, row, wanted, NUM_PASSES), NUM_PASSES)
    return tl.where(wanted >= vocab_size, INT32_MAX, last).to(tl.int32)


@triton.jit
def mass_threshold(masses, top_p, row, NUM_PASSES: tl.constexpr) -> Any:
    """int32: the largest key that top-p keeps."""
    wanted, total = wanted_mass(top_p, masses, row)
    last = last_of(bucket_of(masses, row, wanted, NUM_PASSES), NUM_PASSES)
    return tl.where(wanted >= total, INT32_MAX, last).to(tl.int32)


@triton.jit
def kept_weights(
    values, row, largest, hotness, counts, top_k, masses, top_p, min_p, vocab_size, top_k_max,
    NUM_PASSES: tl.constexpr,
) -> Any:  # fmt: skip
    """int64: the weights, 0 for what a filter takes out."""
    weights = weights_of(values, largest, hotness)
    keys = ~ascending_keys(values)
    if top_k is not None:
        last = count_threshold(counts, top_k, row, vocab_size, top_k_max, NUM_PASSES)
        weights = tl.where(keys <= last, weights, 0)
    if top_p is not None:
        weights = tl.where(keys <= mass_threshold(masses, top_p, row, NUM_PASSES), weights, 0)
    if min_p is not None:
        floor = tl.ceil(tl.load(min_p + row).to(tl.float64) * ONE).to(tl.int64)
        weights = tl.where(weights >= floor, weights, 0)
    return weights


@triton.jit(do_not_specialize=["num_done"])
def count_pass(
    logits, places, temperature, top_k, counts, num_done, num_places, sequence_stride,
    place_stride, vocab_size, top_k_max, BLOCK: tl.constexpr, PART: tl.constexpr,
) -> None:  # fmt: skip
    """Adds up in `counts[row, num_done, digit]` how many logits lie up to a bucket's end."""
    row, block = tl.program_id(0), tl.program_id(1)
    wanted = wanted_count(top_k, row, vocab_size, top_k_max)
    if (temperature_of(temperature, row) != 0.0) & (wanted < vocab_size):
        ends = ends_of(bucket_of(counts, row, wanted, num_done), num_done)
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        sums = tl.zeros((DIGITS, PART), tl.int32)
        for first in range(0, BLOCK, PART):
            ids = block * BLOCK + first + tl.arange(0, PART)
            is_token = ids < vocab_size
            keys = ~ascending_keys(tl.load(start + ids, mask=is_token, other=0.0).to(tl.float32))
            sums += ((keys[None, :] <= ends[:, None]) & is_token[None, :]).to(tl.int32)
        at = counts + row * ROW_MASSES + num_done * DIGITS + tl.arange(0, DIGITS)
        tl.atomic_add(at, tl.sum(sums, axis=1).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["num_done"])
def mass_pass(
    logits, places, temperature, best, top_k, counts, top_p, masses, num_done, num_places,
    sequence_stride, place_stride, vocab_size, top_k_max, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, PART: tl.constexpr, NUM_PASSES: tl.constexpr,
) -> None:  # fmt: skip
    """Adds up in `masses[row, num_done, digit]` what weighs, of top-k's, up to a bucket's end."""
    row, block = tl.program_id(0), tl.program_id(1)
    hotness = temperature_of(temperature, row)
    wanted, total = wanted_mass(top_p, masses, row)
    if (hotness != 0.0) & ((num_done == 0) | (wanted < total)):
        ends = ends_of(bucket_of(masses, row, wanted, num_done), num_done)
        largest = value_in(best_order(best, row, tl.num_programs(1), BLOCKS))
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        sums = tl.zeros((DIGITS, PART), tl.int64)
        for first in range(0, BLOCK, PART):
            ids = block * BLOCK + first + tl.arange(0, PART)
            values = tl.load(start + ids, mask=ids < vocab_size, other=float("-inf"))
            values = values.to(tl.float32)
            weights = kept_weights(
                values, row, largest, hotness, counts, top_k, None, None, None, vocab_size,
                top_k_max, NUM_PASSES,
            )  # fmt: skip
            is_up_to = (~ascending_keys(values))[None, :] <= ends[:, None]
            sums += tl.where(is_up_to, weights[None, :], 0)
        at = masses + row * ROW_MASSES + num_done * DIGITS + tl.arange(0, DIGITS)
        tl.atomic_add(at, tl.sum(sums, axis=1), sem="relaxed")


def num_passes(rows: Rows) -> int:
    return PASSES.get(rows.logits.dtype, 8)


def counts_of(rows: Rows, temperature: Tensor, top_k: Tensor, top_k_max: int) -> Tensor:
    """int64 [rows, PASSES_MAX, DIGITS] of what top-k counts."""
    counts = _zeros(rows)
    for num_done in range(num_passes(rows)):
        launch(
            count_pass, rows.grid, CONFIG,
            temperature=temperature, top_k=top_k, counts=counts, num_done=num_done,
            top_k_max=top_k_max, PART=_part(rows), **rows.place(),
        )  # fmt: skip
    return counts


def filtered_masses_of(
    rows: Rows,
    best: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    *,
    top_k: Tensor | None,
    counts: Tensor | None,
    top_k_max: int,
) -> Tensor:
    """int64 [rows, PASSES_MAX, DIGITS] of what top-p sums up, of what top-k left."""
    masses = _zeros(rows)
    for num_done in range(num_passes(rows)):
        launch(
            mass_pass, rows.grid, CONFIG,
            temperature=temperature, best=best, top_k=top_k, counts=counts, top_p=top_p,
            masses=masses, num_done=num_done, top_k_max=top_k_max, PART=_part(rows),
            NUM_PASSES=num_passes(rows), **rows.place(), **rows.blocks,
        )  # fmt: skip
    return masses


def _part(rows: Rows) -> int:
    return rows.block if IS_INTERPRETED else PART * current_target().warp_size


def _zeros(rows: Rows) -> Tensor:
    shape = (rows.num_rows, PASSES_MAX.value, DIGITS.value)
    return torch.zeros(shape, dtype=torch.int64, device=rows.logits.device)
