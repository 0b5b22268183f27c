"""A row's largest logit and its sum of exponentials, every row split over blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import launch
from kernels.ops.sampling_rows import CONFIG, rows_of
from kernels.ops.sampling_weights import ascending_keys, value_of_key


@triton.jit
def block_stats(
    logits, temperature, tops, sums, row_stride, vocab_size, BLOCK: tl.constexpr
) -> None:
    """Both [row, block]. The sum of a block without any finite logit is 0, if not NaN."""
    row, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    start = logits + row.to(tl.int64) * row_stride
    values = tl.load(start + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    if temperature is not None:
        divisor = tl.load(temperature + row).to(tl.float32)
        values = tl.div_rn(values, tl.where(divisor == 0.0, 1.0, divisor))
    top = value_of_key(tl.max(ascending_keys(values), axis=0))
    # Taken from 0 where the largest is infinite, as inf - inf is nothing.
    middle = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    powers = tl.where(tl.abs(values) < float("inf"), tl.exp(values - middle), 0.0)
    at = row * tl.num_programs(1) + block
    tl.store(tops + at, top)
    tl.store(sums + at, tl.sum(powers, axis=0))


@triton.jit
def row_stats_of(tops, sums, max_out, sum_out, num_blocks, BLOCKS: tl.constexpr) -> None:
    """The blocks' sums, each by its own largest, brought together."""
    row = tl.program_id(0)
    blocks = tl.arange(0, BLOCKS)
    is_block = blocks < num_blocks
    at = row * num_blocks + blocks
    each_top = tl.load(tops + at, mask=is_block, other=float("-inf"))
    each_sum = tl.load(sums + at, mask=is_block, other=0.0)
    top = value_of_key(tl.max(ascending_keys(each_top), axis=0))
    is_finite = tl.abs(top) < float("inf")
    has_finite = tl.abs(each_top) < float("inf")
    change = tl.where(has_finite, each_top, 0.0) - tl.where(is_finite, top, 0.0)
    parts = tl.where(has_finite, each_sum * tl.exp(tl.where(has_finite, change, 0.0)), 0.0)
    tl.store(max_out + row, top)
    tl.store(sum_out + row, tl.where(is_finite, tl.sum(parts, axis=0), float("nan")))


def row_stats(
    logits: Tensor,  # [R, V]
    *,
    temperature: Tensor | None = None,  # [R]; None: 1
    max_out: Tensor | None = None,  # [R] float32
    sum_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(max, sum), float32 [R]: max of logit / t, sum of exp(logit / t - max) (Milakov and
    Gimelshein, 2018). A temperature of 0 is read as 1.

    The sum of a row whose largest logit is infinite or NaN is NaN. Raises ValueError for more than
    VOCAB_SIZE_MAX tokens.
    """
    rows = rows_of(logits)
    parts = torch.empty((2, *rows.grid), dtype=torch.float32, device=logits.device)
    launch(
        block_stats, rows.grid, CONFIG,
        logits=rows.logits, temperature=None if temperature is None else temperature.contiguous(),
        tops=parts[0], sums=parts[1], row_stride=rows.sequence_stride, vocab_size=rows.vocab_size,
        BLOCK=rows.block,
    )  # fmt: skip
    results = torch.empty((2, rows.num_rows), dtype=torch.float32, device=logits.device)
    launch(
        row_stats_of, (rows.num_rows,), CONFIG,
        tops=parts[0], sums=parts[1], max_out=results[0], sum_out=results[1],
        num_blocks=rows.num_blocks, **rows.blocks,
    )  # fmt: skip
    largest, total = results[0], results[1]
    return (
        largest if max_out is None else max_out.copy_(largest),
        total if sum_out is None else sum_out.copy_(total),
    )
