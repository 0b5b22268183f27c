"""One token a row in Triton: filters, then the inverse of the cumulative distribution.

Token for token what `kernels.reference.sample` gives, with every row split over blocks of the
vocabulary: its largest logit, the thresholds of top-k and top-p, what is left of each block, and
the draw in the block that holds the token.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.launching import launch
from kernels.ops.sampling_filters import counts_of, filtered_masses_of, kept_weights, num_passes
from kernels.ops.sampling_rows import (
    CONFIG,
    best_of,
    delivered,
    first_largest,
    rows_of,
    tokens_for,
)  # fmt: skip
from kernels.ops.sampling_weights import (
    best_order,
    block_at,
    place_in,
    row_of,
    target_of,
    temperature_of,
    token_at,
    value_in,
)  # fmt: skip


@triton.jit
def kept_mass(
    logits, places, temperature, best, top_k, counts, top_p, masses, min_p, sums, num_places,
    sequence_stride, place_stride, vocab_size, top_k_max, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, NUM_PASSES: tl.constexpr,
) -> None:  # fmt: skip
    """`sums[row, block]`: what the filters leave of a block."""
    row, block = tl.program_id(0), tl.program_id(1)
    hotness = temperature_of(temperature, row)
    if hotness != 0.0:
        num_blocks = tl.num_programs(1)
        largest = value_in(best_order(best, row, num_blocks, BLOCKS))
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(start + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        weights = kept_weights(
            values, row, largest, hotness, counts, top_k, masses, top_p, min_p, vocab_size,
            top_k_max, NUM_PASSES,
        )  # fmt: skip
        tl.store(sums + row * num_blocks + block, tl.sum(weights, axis=0))


@triton.jit
def draw(
    logits, places, temperature, best, top_k, counts, top_p, masses, min_p, sums, uniforms,
    tokens, num_places, sequence_stride, place_stride, vocab_size, top_k_max, num_blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, NUM_PASSES: tl.constexpr,
) -> None:  # fmt: skip
    """`tokens[row]`, by one program that reads a single block of its row."""
    row = tl.program_id(0)
    hotness = temperature_of(temperature, row)
    order = best_order(best, row, num_blocks, BLOCKS)
    token = place_in(order)
    if hotness != 0.0:
        blocks = tl.arange(0, BLOCKS)
        kept = tl.load(sums + row * num_blocks + blocks, mask=blocks < num_blocks, other=0)
        target = target_of(tl.load(uniforms + row), tl.sum(kept, axis=0))
        block, before = block_at(kept, target, num_blocks, BLOCKS)
        start = row_of(logits, places, row, num_places, sequence_stride, place_stride)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(start + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        weights = kept_weights(
            values, row, value_in(order), hotness, counts, top_k, masses, top_p, min_p,
            vocab_size, top_k_max, NUM_PASSES,
        )  # fmt: skip
        token = token_at(weights, ids, before, target, vocab_size)
    tl.store(tokens + row, token.to(tl.int64))


def sample(
    logits: Tensor,  # [R, V]
    uniforms: Tensor,  # [R] float32 or float64, at least 0 and below 1
    *,
    temperature: Tensor | None = None,  # [R]; 0: the row is greedy; None: all are
    top_k: Tensor | None = None,  # [R] int64; 0: all
    top_p: Tensor | None = None,  # [R]
    min_p: Tensor | None = None,  # [R]
    top_k_max: int | None = None,  # no top_k is larger
    out: Tensor | None = None,
) -> Tensor:
    """int64 [R], as the reference's. Raises ValueError for more than VOCAB_SIZE_MAX tokens.

    A greedy row with a NaN gives its first NaN, as torch's argmax does.
    """
    rows = rows_of(logits)
    best = best_of(rows)
    tokens = tokens_for(out, rows.num_rows, logits.device)
    if temperature is None:
        return delivered(first_largest(rows, best, tokens), out)
    temperature = temperature.contiguous()
    top_k, top_p, min_p = (
        None if each is None else each.contiguous() for each in (top_k, top_p, min_p)
    )
    count_max = rows.vocab_size if top_k_max is None else min(top_k_max, rows.vocab_size)
    counts = masses = None
    if top_k is not None:
        counts = counts_of(rows, temperature, top_k, count_max)
    if top_p is not None:
        masses = filtered_masses_of(
            rows, best, temperature, top_p, top_k=top_k, counts=counts, top_k_max=count_max
        )
    sums = rows.parts()
    given = {
        "temperature": temperature, "best": best, "top_k": top_k, "counts": counts,
        "top_p": top_p, "masses": masses, "min_p": min_p, "sums": sums, "top_k_max": count_max,
        "NUM_PASSES": num_passes(rows), **rows.place(), **rows.blocks,
    }  # fmt: skip
    launch(kept_mass, rows.grid, CONFIG, **given)
    launch(
        draw, (rows.num_rows,), CONFIG,
        uniforms=uniforms.contiguous(), tokens=tokens, num_blocks=rows.num_blocks, **given,
    )  # fmt: skip
    return delivered(tokens, out)
