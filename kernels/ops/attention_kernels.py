"""Kernels of paged attention: one part of one sequence's keys a program, and the parts' sum.

Rows are a key head's query tokens times the query heads that share it, so keys and values are read
once for all of them (Ainslie et al., 2023). Softmax runs online (Milakov & Gimelshein, 2018) in
powers of two; parts are put together as in Flash-Decoding (Dao et al., 2023).

A row's largest score starts at -1e30 and hidden scores are -inf, so nothing is ever inf - inf: a
row that sees nothing keeps a sum of 0 and gives zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.ops.blocks import neighbours_together

CAUSAL = tl.constexpr(0)
BLOCK = tl.constexpr(1)
BITS = tl.constexpr(2)
LOWEST = tl.constexpr(-1e30)
LOG2_E = tl.constexpr(1.4426950408889634)


# Sizes that change from step to step must not make a new kernel each time.
@triton.jit(do_not_specialize=["window", "query_len", "table_width", "num_sequences",
                               "num_splits", "num_row_tiles"])  # fmt: skip
def attention_part(
    q, k_cache, v_cache, out, parts, stats, block_tables, context_lens, query_starts, mask_bits,
    k_scale, v_scale, scale, soft_cap, window, query_len, table_width, num_sequences, num_splits,
    num_row_tiles, q_row_stride, q_head_stride, out_row_stride, out_head_stride, k_scale_stride,
    v_scale_stride, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr,
    BLOCK_D: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
    MASK: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, IS_SPLIT: tl.constexpr,
    IS_WIDE: tl.constexpr, NUM_XCDS: tl.constexpr, UP: tl.constexpr,
) -> None:  # fmt: skip
    """`out` of one split; else `parts` (sums not yet divided) and `stats` (maximum, sum)."""
    place = neighbours_together(tl.program_id(0), tl.num_programs(0), NUM_XCDS)
    # Row tiles of one split of one key head are neighbours. The last rows see most, and begin.
    row_tile = num_row_tiles - 1 - place % num_row_tiles
    split = place // num_row_tiles % num_splits
    sequence = place // (num_row_tiles * num_splits) % num_sequences
    kv_head = place // (num_row_tiles * num_splits * num_sequences)
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    first_step, last_step = row_tile * BLOCK_M // GROUP, (row_tile * BLOCK_M + BLOCK_M - 1) // GROUP
    steps, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    is_row = rows < query_len * GROUP
    start = tl.load(query_starts + sequence)
    end = tl.minimum(tl.load(context_lens + sequence), table_width * PAGE)
    begin, stop = _reach(start, end, first_step, last_step, query_len, window, MASK, HAS_WINDOW)
    first, last = _tiles_of(split, num_splits, begin, stop, TILE)
    table, own_bits = block_tables + sequence * table_width, mask_bits
    row_bits, places = steps, start + steps
    if MASK == BITS:
        own_bits += sequence * query_len
        row_bits = tl.load(own_bits + steps, mask=is_row, other=0)
        places = start + _num_set(row_bits) - 1
    columns = tl.arange(0, BLOCK_D)
    is_used = is_row[:, None] & (columns < HEAD)[None, :]
    # From the tile's first row on 32 bits hold every place, however many rows there are.
    first_row = (sequence * query_len + first_step).to(tl.int64)
    q += first_row * q_row_stride
    q_at = (steps - first_step) * q_row_stride + heads * q_head_stride
    queries = tl.load(q + (q_at[:, None] + columns[None, :]), mask=is_used, other=0.0)
    if UP:
        queries = queries.to(tl.float32)
    factor = scale * _head_scale(k_scale, kv_head * k_scale_stride)
    top, total = tl.full((BLOCK_M,), LOWEST, tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for tile in range(first, last):
        keys = tile * TILE + tl.arange(0, TILE)
        is_key = (keys >= begin) & (keys < stop)
        k_rows, v_rows, k_at = _rows_of(
            k_cache, v_cache, table, tile, keys, is_key, kv_head,
            KV_HEADS, PAGE, TILE, HEAD, IS_WIDE,
        )  # fmt: skip
        is_seen = is_key[None, :] & _sees(
            keys, start, places, row_bits, own_bits, window, query_len, MASK, HAS_WINDOW
        )
        top, total, sums = _attend(
            queries, k_rows, v_rows, k_at, is_key, is_seen, factor, soft_cap, top, total, sums,
            HEAD, BLOCK_D, HAS_CAP,
        )  # fmt: skip

    sums *= _head_scale(v_scale, kv_head * v_scale_stride)
    if IS_SPLIT:
        at = ((sequence * query_len + steps) * (KV_HEADS * GROUP) + heads) * num_splits + split
        tl.store(stats + at * 2, top, mask=is_row)
        tl.store(stats + at * 2 + 1, total, mask=is_row)
        # What a split without keys leaves in `parts` is not read.
        is_used &= (total > 0.0)[:, None]
        tl.store(parts + (at[:, None] * HEAD + columns[None, :]), sums, mask=is_used)
    else:
        result = (sums / tl.where(total > 0.0, total, 1.0)[:, None]).to(out.dtype.element_ty)
        out += first_row * out_row_stride
        at = (steps - first_step) * out_row_stride + heads * out_head_stride
        tl.store(out + (at[:, None] + columns[None, :]), result, mask=is_used)


@triton.jit
def attention_sum(
    parts, stats, out, num_splits, out_row_stride, out_head_stride, NUM_HEADS: tl.constexpr,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr, AT_ONCE: tl.constexpr,
) -> None:  # fmt: skip
    """One head of one row a program: the sums of its splits, brought to one maximum.

    `SPLITS` is `num_splits` or more; of their sums `AT_ONCE` are taken at a time.
    """
    program = tl.program_id(0)
    tops, totals = _stats_of(stats, program * num_splits, num_splits, 0, SPLITS)
    top = tl.max(tops, 0)
    total = tl.sum(tl.exp2(tops - top) * totals, 0)
    columns = tl.arange(0, BLOCK_D)
    sums = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, num_splits, AT_ONCE):
        own_tops, own_totals = _stats_of(stats, program * num_splits, num_splits, first, AT_ONCE)
        at = (program * num_splits + first + tl.arange(0, AT_ONCE)) * HEAD
        is_there = (own_totals > 0.0)[:, None] & (columns < HEAD)[None, :]
        part = tl.load(parts + (at[:, None] + columns[None, :]), mask=is_there, other=0.0)
        sums += tl.sum(part * tl.exp2(own_tops - top)[:, None], 0)
    sums /= tl.where(total > 0.0, total, 1.0)
    out += (program // NUM_HEADS).to(tl.int64) * out_row_stride
    at = program % NUM_HEADS * out_head_stride + columns
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=columns < HEAD)


@triton.jit
def _stats_of(stats, row, num_splits, first, SPLITS: tl.constexpr):
    """(maxima, sums of weights) of `SPLITS` splits; those behind the last are as empty ones."""
    splits = first + tl.arange(0, SPLITS)
    is_split = splits < num_splits
    tops = tl.load(stats + (row + splits) * 2, mask=is_split, other=LOWEST)
    totals = tl.load(stats + ((row + splits) * 2 + 1), mask=is_split, other=0.0)
    return tops, totals


@triton.jit
def _reach(
    start, end, first_step, last_step, query_len, window, MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """(first key, key behind the last) that any of the rows `first_step` to `last_step` sees."""
    begin, stop = start * 0, end
    if MASK == CAUSAL:
        stop = tl.minimum(end, start + tl.minimum(last_step, query_len - 1) + 1)
    elif MASK == BITS:
        stop = tl.minimum(end, start + query_len)
    if HAS_WINDOW:
        # In a tree a row may stand at the root, whatever its number.
        place = start if MASK == BITS else start + first_step
        begin = tl.maximum(place - window + 1, 0)
    return begin, stop


@triton.jit
def _tiles_of(split, num_splits, begin, stop, TILE: tl.constexpr):
    """(first, behind the last) of a split. Late splits may have none."""
    first = begin // TILE
    num_tiles = tl.maximum(tl.cdiv(stop, TILE) - first, 0)
    each = tl.cdiv(num_tiles, num_splits)
    split_first = first + tl.minimum(split * each, num_tiles)
    return split_first, first + tl.minimum((split + 1) * each, num_tiles)


@triton.jit
def _rows_of(
    k_cache, v_cache, table, tile, keys, is_key, kv_head, KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr, TILE: tl.constexpr, HEAD: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    """(keys' base, values' base, where each row of the tile begins behind it)."""
    within = keys % PAGE * HEAD
    if TILE <= PAGE:
        page = tl.load(table + tile * TILE // PAGE)
    else:
        page = tl.load(table + keys // PAGE, mask=is_key, other=0)
    if IS_WIDE:
        page = page.to(tl.int64)
    base = (page * KV_HEADS + kv_head) * (PAGE * HEAD)
    if TILE <= PAGE:
        k_rows, v_rows, at = k_cache + base, v_cache + base, within
    else:
        k_rows, v_rows, at = k_cache, v_cache, base + within
    return k_rows, v_rows, at


@triton.jit
def _sees(
    keys, start, places, row_bits, own_bits, window, query_len, MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """[rows, keys]: what the mask and the window let a row see of keys that there are."""
    key_places = keys
    if MASK == BITS:
        index = keys - start
        # Words of 32 bits: shifts of 64 take two instructions and twice the registers.
        low, high = row_bits.to(tl.int32), (row_bits >> 32).to(tl.int32)
        word = tl.where((index < 32)[None, :], low[:, None], high[:, None])
        is_seen = (index < 0)[None, :] | (((word >> (index & 31)[None, :]) & 1) != 0)
        if HAS_WINDOW:
            is_own = (index >= 0) & (index < query_len)
            bits = tl.load(own_bits + index, mask=is_own, other=0)
            key_places = tl.where(is_own, start + _num_set(bits) - 1, keys)
    elif MASK == CAUSAL:
        is_seen = keys[None, :] <= places[:, None]
    else:
        is_seen = (keys >= 0)[None, :]
    if HAS_WINDOW:
        is_seen &= key_places[None, :] > places[:, None] - window
    return is_seen


@triton.jit
def _attend(
    queries, k_rows, v_rows, at, is_key, is_seen, factor, soft_cap, top, total, sums,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """One tile of keys more in (largest score, sum of weights, sum of weighted values)."""
    columns = tl.arange(0, BLOCK_D)
    is_loaded = (columns < HEAD)[:, None] & is_key[None, :]
    k = tl.load(k_rows + (columns[:, None] + at[None, :]), mask=is_loaded, other=0.0)
    scores = tl.dot(queries, k.to(queries.dtype), input_precision="ieee") * factor
    if HAS_CAP:
        scores = soft_cap * _tanh(scores / soft_cap)
    scores = tl.where(is_seen, scores * LOG2_E, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(weights, 1)
    # A slot that no row sees may hold NaN, and 0 · NaN is NaN: it is 0 instead.
    is_loaded = is_key[:, None] & (columns < HEAD)[None, :]
    v = tl.load(v_rows + (at[:, None] + columns[None, :]), mask=is_loaded, other=0.0)
    v = v.to(queries.dtype)
    sums = tl.dot(weights.to(v.dtype), v, sums * fade[:, None], input_precision="ieee")
    return new_top, total, sums


@triton.jit
def _head_scale(scales, at):
    scale = 1.0
    if scales is not None:
        scale = tl.load(scales + at)
    return scale


@triton.jit
def _tanh(x):
    small = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    return tl.where(x < 0.0, -1.0, 1.0) * (1.0 - small) / (1.0 + small)


@triton.jit
def _num_set(bits):
    """Bits set, of words whose highest is not (Warren, Hacker's Delight, 5-1)."""
    bits -= (bits >> 1) & 0x5555555555555555
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    bits += bits >> 8
    bits += bits >> 16
    bits += bits >> 32
    return (bits & 127).to(tl.int32)
