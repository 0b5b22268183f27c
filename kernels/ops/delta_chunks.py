"""The gated delta rule for many rows: chunks of rows at once, by matrix products.

Within a chunk the rule is a triangular system (the WY or UT form: Yang et al., 2024, "Parallelizing
Linear Transformers with the Delta Rule", and "Gated Delta Networks"). With g_t the sum of the gates
up to row t, S the state before the chunk, and A_tj = beta_t · exp(g_t - g_j) · (k_t · k_j), j < t:

    (I + A) u = beta · (v - exp(g) · K S)
    o_t = scale · (exp(g_t) · Sᵀ q_t + Σ_{j ≤ t} exp(g_t - g_j) · (q_t · k_j) · u_j)
    S ← exp(g_C) · S + Σ_j exp(g_C - g_j) · k_j ⊗ u_j

`chunk_parts` solves for all chunks at once what does not need S; `chunk_scan` goes from chunk to
chunk. All of it is float32: a state lives for thousands of rows.

A difference of gates is the sum of those between two rows, never the difference of two sums, which
would lose what is small beside them. No exponential is above 1.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from kernels.ops.blocks import neighbours_together

GATE_MIN = tl.constexpr(-128.0)  # exp of it is 0 in float32; sums of infinities would be NaN


@triton.jit
def gates_of(gate, rows, is_row, num_heads) -> Any:
    """float32 [CHUNK]; 0 behind the last row, which leaves the state alone."""
    gates = tl.load(gate + rows * num_heads, mask=is_row, other=0.0).to(tl.float32)
    return tl.maximum(gates, GATE_MIN)


@triton.jit
def kept_between(gates, CHUNK: tl.constexpr) -> Any:
    """[CHUNK, CHUNK]: what row i still keeps of row j ≤ i, the exp of the gates after j up to i."""
    place = tl.arange(0, CHUNK)
    after = tl.where(place[:, None] > place[None, :], gates[:, None], 0.0)
    return tl.exp(tl.cumsum(after, axis=0))


@triton.jit
def inverse_of(lower, CHUNK: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr) -> Any:
    """(I + lower)⁻¹ of a strictly lower triangular [CHUNK, CHUNK]; CHUNK is 2 ** LEVELS.

    From the inverses T of the diagonal's blocks to those of blocks twice as large: the new corner
    is -T · corner · T. Powers of `lower`, of which a series would be made, can grow beyond all
    bounds where the inverse does not: rows with the same key are such a case.
    """
    place = tl.arange(0, CHUNK)
    row, column = place[:, None], place[None, :]
    inverse = tl.where(row == column, 1.0, 0.0)
    inverse -= tl.where(row // 2 == column // 2, lower, 0.0)
    for level in range(1, LEVELS):
        is_one = (row >> (level + 1)) == (column >> (level + 1))
        is_corner = is_one & ((row >> level) != (column >> level))
        corner = tl.where(is_corner, lower, 0.0)
        corner = tl.dot(inverse, corner, input_precision=PRECISION)
        inverse -= tl.dot(corner, inverse, input_precision=PRECISION)
    return inverse


# Prompts of other lengths must not make new kernels.
@triton.jit(do_not_specialize=["num_rows"])
def chunk_parts(
    q, k, v, gate, beta, from_state, from_rows, scores, scale, num_rows, num_heads,
    q_sequence_stride, q_row_stride, q_head_stride, k_sequence_stride, k_row_stride,
    k_head_stride, v_sequence_stride, v_row_stride, v_head_stride, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, CHUNK: tl.constexpr,
    LEVELS: tl.constexpr, PART: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """Of one chunk of one head, u = `from_rows` - `from_state` · S: both, and the scores of q."""
    head, chunk = tl.program_id(0), tl.program_id(1)
    sequence = (head // num_heads).to(tl.int64)
    own = head % num_heads
    place, columns = tl.arange(0, CHUNK), tl.arange(0, PART)
    rows = chunk * CHUNK + place
    is_row = rows < num_rows
    q += sequence * q_sequence_stride + own * q_head_stride
    k += sequence * k_sequence_stride + own * k_head_stride
    v += sequence * v_sequence_stride + own * v_head_stride
    small = sequence * num_rows * num_heads + own
    gates = gates_of(gate + small, rows, is_row, num_heads)
    strengths = tl.load(beta + small + rows * num_heads, mask=is_row, other=0.0).to(tl.float32)

    pairs = tl.zeros((CHUNK, CHUNK), tl.float32)
    found = tl.zeros((CHUNK, CHUNK), tl.float32)
    for first in range(0, BLOCK_D, PART):
        is_used = is_row[:, None] & (first + columns < D)[None, :]
        keys = tl.load(k + rows[:, None] * k_row_stride + (first + columns)[None, :],
                       mask=is_used, other=0.0).to(tl.float32)  # fmt: skip
        queries = tl.load(q + rows[:, None] * q_row_stride + (first + columns)[None, :],
                          mask=is_used, other=0.0).to(tl.float32)  # fmt: skip
        turned = tl.trans(keys)
        pairs = tl.dot(keys, turned, pairs, input_precision=PRECISION)
        found = tl.dot(queries, turned, found, input_precision=PRECISION)
    kept = kept_between(gates, CHUNK)
    found = tl.where(place[:, None] >= place[None, :], found * kept * scale, 0.0)
    chunk_at = (head * tl.num_programs(1) + chunk).to(tl.int64)
    at = chunk_at * CHUNK * CHUNK + place[:, None] * CHUNK + place[None, :]
    tl.store(scores + at, found)
    pairs = tl.where(place[:, None] > place[None, :], pairs * kept * strengths[:, None], 0.0)
    inverse = inverse_of(pairs, CHUNK, LEVELS, PRECISION)

    faded = strengths * tl.exp(tl.cumsum(gates, axis=0))
    for first in range(0, BLOCK_D, PART):
        is_used = is_row[:, None] & (first + columns < D)[None, :]
        keys = tl.load(k + rows[:, None] * k_row_stride + (first + columns)[None, :],
                       mask=is_used, other=0.0).to(tl.float32)  # fmt: skip
        part = tl.dot(inverse, keys * faded[:, None], input_precision=PRECISION)
        to = (chunk_at * CHUNK + place[:, None]) * BLOCK_D + (first + columns)[None, :]
        tl.store(from_state + to, part)
    for first in range(0, BLOCK_V, PART):
        is_used = is_row[:, None] & (first + columns < DV)[None, :]
        values = tl.load(v + rows[:, None] * v_row_stride + (first + columns)[None, :],
                         mask=is_used, other=0.0).to(tl.float32)  # fmt: skip
        part = tl.dot(inverse, values * strengths[:, None], input_precision=PRECISION)
        to = (chunk_at * CHUNK + place[:, None]) * BLOCK_V + (first + columns)[None, :]
        tl.store(from_rows + to, part)


@triton.jit(do_not_specialize=["num_rows", "num_chunks"])
def chunk_scan(
    q, k, gate, from_state, from_rows, scores, state, out, state_out, scale, num_rows, num_heads,
    num_chunks, q_sequence_stride, q_row_stride, q_head_stride, k_sequence_stride, k_row_stride,
    k_head_stride, out_sequence_stride, out_row_stride, out_head_stride, state_stride,
    state_out_stride, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr, NUM_XCDS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """`WIDTH` columns of one head's state, through all chunks of its sequence."""
    # Programs of one head read the same keys and queries.
    work = neighbours_together(tl.program_id(0), tl.num_programs(0), NUM_XCDS)
    head, column_block = work // (BLOCK_V // WIDTH), work % (BLOCK_V // WIDTH)
    sequence = (head // num_heads).to(tl.int64)
    own = head % num_heads
    place, wide = tl.arange(0, CHUNK), tl.arange(0, BLOCK_D)
    columns = column_block * WIDTH + tl.arange(0, WIDTH)
    is_column = columns < DV
    q += sequence * q_sequence_stride + own * q_head_stride
    k += sequence * k_sequence_stride + own * k_head_stride
    out += sequence * out_sequence_stride + own * out_head_stride
    gate += sequence * num_rows * num_heads + own
    inner = own * D * DV + wide[:, None] * DV + columns[None, :]
    is_state = (wide < D)[:, None] & is_column[None, :]
    current = tl.load(state + sequence * state_stride + inner, mask=is_state, other=0.0)
    current = current.to(tl.float32)
    for chunk in range(num_chunks):
        rows = chunk * CHUNK + place
        is_row = rows < num_rows
        gates = gates_of(gate, rows, is_row, num_heads)
        chunk_at = (head * num_chunks + chunk).to(tl.int64)
        at = chunk_at * CHUNK + place[:, None]
        weights = tl.load(from_state + at * BLOCK_D + wide[None, :])
        change = tl.load(from_rows + at * BLOCK_V + columns[None, :])
        change -= tl.dot(weights, current, input_precision=PRECISION)

        is_used = is_row[:, None] & (wide < D)[None, :]
        queries = tl.load(q + rows[:, None] * q_row_stride + wide[None, :], mask=is_used, other=0.0)
        faded = scale * tl.exp(tl.cumsum(gates, axis=0))
        queries = queries.to(tl.float32) * faded[:, None]
        result = tl.dot(queries, current, input_precision=PRECISION)
        inside = tl.load(scores + at * CHUNK + place[None, :])
        result = tl.dot(inside, change, result, input_precision=PRECISION)
        target = out + rows[:, None] * out_row_stride + columns[None, :]
        is_result = is_row[:, None] & is_column[None, :]
        tl.store(target, result.to(out.dtype.element_ty), mask=is_result)

        later = tl.where(place[:, None] > place[None, :], gates[:, None], 0.0)
        is_used = (wide < D)[:, None] & is_row[None, :]
        keys = tl.load(k + wide[:, None] + rows[None, :] * k_row_stride, mask=is_used, other=0.0)
        keys = keys.to(tl.float32) * tl.exp(tl.sum(later, axis=0))[None, :]
        current *= tl.exp(tl.sum(gates, axis=0))
        current = tl.dot(keys, change, current, input_precision=PRECISION)
    tl.store(state_out + sequence * state_out_stride + inner, current, mask=is_state)
