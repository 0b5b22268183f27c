"""Drafts of a block one after the other: `kernels.reference.markov_pick` in two launches a place.

One launch takes the best token of the place before and makes int8 digits of its row of the table;
the next multiplies them by the weight, adds the logits, and keeps each tile's best.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.interface import Int8Weight
from kernels.ops.configs import tuned
from kernels.ops.launching import Config, launch
from kernels.ops.matmul_quantize import block_of, quantize_row_int8
from kernels.ops.matmul_scaled import int8_sums, joined
from kernels.ops.matmul_tiles import (
    BLOCK_M_MIN,
    NONKDIM,
    SKINNY_ROWS_MAX,
    check_contiguous,
    end_of,
    rows_of,
)

NUM_DIGITS = 2
CONFIG_ROW = Config(num_warps=4, num_stages=1)


@triton.jit
def _first_best(values, indices, num_tiles, BLOCK: tl.constexpr):
    """The index of the largest value, the first of equals: tiles and places in them ascend."""
    tile = tl.arange(0, BLOCK)
    best = tl.load(values + tile, mask=tile < num_tiles, other=float("-inf"))
    # All -inf is a tie too, that a tile there is not must not win.
    at = tl.minimum(tl.argmax(best, 0), num_tiles - 1)
    return tl.load(indices + at)


@triton.jit
def _pick(
    previous, best_values, best_indices, offsets, tokens, place, tokens_stride, place_stride,
    num_tiles, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token before `place`: given before the first one, else the best that was found there."""
    sequence = tl.program_id(0)
    if best_values is None:
        token = tl.load(previous + sequence)
    else:
        at = sequence * num_tiles
        token = _first_best(best_values + at, best_indices + at, num_tiles, BLOCK).to(tl.int64)
        if offsets is not None:
            token += tl.load(offsets + token)
        tl.store(tokens + sequence * tokens_stride + (place - 1) * place_stride, token)
    return token


@triton.jit
def _pick_and_quantize(
    previous, best_values, best_indices, offsets, tokens, table, digits, scales,
    place, tokens_stride, place_stride, table_stride, num_tiles, num_in,
    NUM_DIGITS: tl.constexpr, BLOCK_TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = _pick(
        previous, best_values, best_indices, offsets, tokens, place, tokens_stride, place_stride,
        num_tiles, BLOCK_TILES,
    )  # fmt: skip
    row = tl.program_id(0)
    quantize_row_int8(table + token * table_stride, digits, scales, row, num_in, NUM_DIGITS, BLOCK)


@triton.jit
def _pick_last(
    best_values, best_indices, offsets, tokens, place, tokens_stride, place_stride, num_tiles,
    BLOCK_TILES: tl.constexpr,
):  # fmt: skip
    _pick(
        None, best_values, best_indices, offsets, tokens, place, tokens_stride, place_stride,
        num_tiles, BLOCK_TILES,
    )  # fmt: skip


@triton.jit
def _score(
    digits, scales, weight, weight_scale, logits, best_values, best_indices,
    num_rows, num_out, num_in, logits_stride, num_tiles, NUM_DIGITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    n, m = tl.program_id(0), tl.program_id(1)
    row = tl.minimum(m * BLOCK_M + tl.arange(0, BLOCK_M), num_rows - 1)
    column = tl.minimum(tl.arange(0, BLOCK_N), num_out - 1 - n * BLOCK_N)
    weight += (n * BLOCK_N).to(tl.int64) * num_in
    high, low = int8_sums(
        digits + row[:, None] * (num_in * NUM_DIGITS), weight + column[None, :] * num_in,
        0, num_in, num_in, NUM_DIGITS, BLOCK_M, BLOCK_N, BLOCK_K, IS_EVEN,
    )  # fmt: skip
    column = n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < num_out
    value = joined(high, low, NUM_DIGITS)
    value = end_of(value, scales, weight_scale, None, row, column, row < num_rows, is_column)
    at = row.to(tl.int64)[:, None] * logits_stride + column[None, :]
    value += tl.load(logits + at, mask=is_column[None, :], other=0.0)
    value = tl.where(is_column[None, :], value, float("-inf"))
    best = tl.max(value, 1)
    # The first of the largest; the tile's first column if all are -inf. Not a number is equal to
    # none: the place must be one of the tile's all the same.
    place = tl.where(value == best[:, None], tl.arange(0, BLOCK_N)[None, :], BLOCK_N - 1)
    place = tl.minimum(tl.min(place, 1), num_out - 1 - n * BLOCK_N)
    row = m * BLOCK_M + tl.arange(0, BLOCK_M)
    at_tile = row * num_tiles + n
    tl.store(best_values + at_tile, best, mask=row < num_rows)
    tl.store(best_indices + at_tile, n * BLOCK_N + place, mask=row < num_rows)


def markov_pick(
    logits: Tensor,  # float32 [S, N, Vd]
    previous: Tensor,  # [S] int64: the token before the first place
    table: Tensor,  # [V, K]: what a token says of the one behind it
    weight: Int8Weight,  # [Vd, K]
    *,
    offsets: Tensor | None = None,  # [Vd] int64: draft number i is token i + offsets[i]
    out: Tensor | None = None,
) -> Tensor:
    """int64 [S, N]: at each place the first best of logits + weight · table[token before].

    DSpark's Markov head (arXiv 2607.05147), greedy; the token before a place is the one that was
    picked for the place before it.
    """
    num_sequences, num_places, num_out = logits.shape
    tokens = previous.new_empty((num_sequences, num_places)) if out is None else out
    if num_places == 0:
        return tokens
    num_in = weight.in_features
    logits = logits if logits.stride(-1) == 1 or num_out == 1 else logits.contiguous()
    table = rows_of(table, num_in)
    check_contiguous(weight.qweight)
    if weight.out_features != num_out or previous.shape != (num_sequences,):
        raise ValueError(
            f"logits {list(logits.shape)}, previous {list(previous.shape)} and a weight of "
            f"{weight.out_features} outputs do not fit each other"
        )
    sizes, config = _plan(num_sequences, num_out, num_in)
    num_tiles = triton.cdiv(num_out, sizes["BLOCK_N"])
    device = logits.device
    digits = torch.empty((num_sequences, NUM_DIGITS, num_in), dtype=torch.int8, device=device)
    scales = torch.empty(num_sequences, dtype=torch.float32, device=device)
    best: dict[str, Any] = {
        "best_values": torch.empty((num_sequences, num_tiles), device=device),
        "best_indices": torch.empty((num_sequences, num_tiles), dtype=torch.int32, device=device),
    }
    picking = {
        "offsets": offsets, "tokens": tokens, "tokens_stride": tokens.stride(0),
        "place_stride": tokens.stride(1), "num_tiles": num_tiles,
        "BLOCK_TILES": triton.next_power_of_2(num_tiles),
    }  # fmt: skip
    for place in range(num_places):
        found = best if place else {"best_values": None, "best_indices": None}
        launch(
            _pick_and_quantize, (num_sequences,), CONFIG_ROW, previous=previous.contiguous(),
            table=table, digits=digits, scales=scales, place=place, table_stride=table.stride(0),
            num_in=num_in, NUM_DIGITS=NUM_DIGITS, BLOCK=block_of(num_in), **picking, **found,
        )  # fmt: skip
        launch(
            _score, (num_tiles, triton.cdiv(num_sequences, sizes["BLOCK_M"])), config,
            digits=digits, scales=scales, weight=weight.qweight, weight_scale=weight.scale,
            logits=logits[:, place], logits_stride=logits.stride(0), num_rows=num_sequences,
            num_out=num_out, num_in=num_in, num_tiles=num_tiles, NUM_DIGITS=NUM_DIGITS,
            IS_EVEN=num_in % sizes["BLOCK_K"] == 0, **best, **sizes,
        )  # fmt: skip
    launch(_pick_last, (num_sequences,), CONFIG_ROW, place=num_places, **picking, **best)
    return tokens


def _plan(num_rows: int, num_out: int, num_in: int) -> tuple[dict[str, int], Config]:
    rows = int(triton.next_power_of_2(max(num_rows, 1)))
    widest = 256 if rows <= BLOCK_M_MIN else 128
    block_k = min(widest, max(32, int(triton.next_power_of_2(num_in))))
    tile = tuned(
        "markov_pick", f"{num_out}x{num_in} {rows} rows",
        {"block_m": min(max(rows, BLOCK_M_MIN), SKINNY_ROWS_MAX), "block_n": 128,
         "block_k": block_k, "num_warps": 4 if rows <= BLOCK_M_MIN else 8, "num_stages": 2,
         "waves_per_eu": 0},
    )  # fmt: skip
    sizes = {"BLOCK_M": tile["block_m"], "BLOCK_N": tile["block_n"], "BLOCK_K": tile["block_k"]}
    config = Config(tile["num_warps"], tile["num_stages"], tile["waves_per_eu"], nonkdim=NONKDIM)
    return sizes, config
