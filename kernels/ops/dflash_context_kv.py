"""DFlash's context in one launch: every layer's keys and values from one state a row.

A program makes one head of one layer for some rows: the product, the norm, the turn and the write.
The head's outputs are summed as the first and the second of each pair and the rest, so that what is
turned together lies in one register and nothing is shuffled.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.blocks import neighbours_together, power_of_two
from kernels.ops.configs import tuned
from kernels.ops.launching import IS_INTERPRETED, Config, current_target, launch
from kernels.ops.rope_kv_write import as_stored, cache_max, places, weights_at

BLOCK_MIN = 16  # sides of a matrix unit's tile


def dflash_context_kv(
    states: Tensor,
    weight: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    kv_slots: Tensor,
    *,
    k_caches: Tensor,
    v_caches: Tensor,
    rotary_dim: int,
    is_interleaved: bool = False,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """`k_caches` and `v_caches`, as the reference's; rows of a negative slot write nothing.

    Raises ValueError for tensors that do not fit or are not contiguous.
    """
    num_layers, _, num_kv_heads, page, head_dim = k_caches.shape
    num_rows, hidden = states.shape
    _check(states, weight, cos_sin, k_caches, v_caches, rotary_dim)
    block_m = min(128, max(BLOCK_MIN, power_of_two(num_rows)))
    default = {
        "block_m": block_m if head_dim <= 128 else min(block_m, 64),
        "block_k": 64,
        "num_warps": 8 if block_m >= 128 or head_dim > 128 else 4,
        "num_stages": 2,
        "waves_per_eu": 0,
    }
    chosen = tuned("dflash_context_kv", f"head {head_dim} rows {block_m}", default)
    num_row_tiles = -(-num_rows // chosen["block_m"])
    launch(
        project_and_write,
        (num_row_tiles * num_layers * 2 * num_kv_heads,),
        Config(
            num_warps=chosen["num_warps"],
            num_stages=chosen["num_stages"],
            waves_per_eu=chosen["waves_per_eu"],
            nonkdim=16,
        ),
        states=states, weight=weight, positions=positions.contiguous(), cos_sin=cos_sin,
        kv_slots=kv_slots.contiguous(), k_caches=k_caches, v_caches=v_caches,
        k_norm=None if k_norm is None else k_norm.contiguous(), eps=float(eps), num_rows=num_rows,
        num_row_tiles=num_row_tiles, layer_stride=k_caches.stride(0), HIDDEN=hidden,
        KV_HEADS=num_kv_heads, HEAD=head_dim, HALF=rotary_dim // 2, PAGE=page,
        BLOCK_M=chosen["block_m"], BLOCK_K=chosen["block_k"],
        BLOCK_HALF=max(BLOCK_MIN, power_of_two(rotary_dim // 2)),
        BLOCK_REST=max(BLOCK_MIN, power_of_two(head_dim - rotary_dim)),
        IS_INTERLEAVED=is_interleaved, CACHE_MAX=cache_max(k_caches.dtype),
        NUM_XCDS=current_target().num_xcds, UP=IS_INTERPRETED,
    )  # fmt: skip
    return k_caches, v_caches


@triton.jit(do_not_specialize=["num_rows", "num_row_tiles"])
def project_and_write(
    states, weight, positions, cos_sin, kv_slots, k_caches, v_caches, k_norm, eps, num_rows,
    num_row_tiles, layer_stride, HIDDEN: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr,
    HALF: tl.constexpr, PAGE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
    CACHE_MAX: tl.constexpr, NUM_XCDS: tl.constexpr, UP: tl.constexpr,
) -> None:  # fmt: skip
    """Row tiles of one head are neighbours: they read the same weights."""
    place = neighbours_together(tl.program_id(0), tl.num_programs(0), NUM_XCDS)
    head = place // num_row_tiles  # of all layers' keys and values
    layer, kind, kv_head = head // (2 * KV_HEADS), head // KV_HEADS % 2, head % KV_HEADS
    rows = place % num_row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = rows < num_rows
    pairs, others = tl.arange(0, BLOCK_HALF), tl.arange(0, BLOCK_REST)
    is_pair, is_rest = pairs < HALF, others < HEAD - 2 * HALF
    at_first, at_second, at_rest = places(pairs, others, HALF, IS_INTERLEAVED)
    first = tl.zeros((BLOCK_M, BLOCK_HALF), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_HALF), tl.float32)
    rest = tl.zeros((BLOCK_M, BLOCK_REST), tl.float32)
    own_weight = weight + head.to(tl.int64) * (HEAD * HIDDEN)
    for begin in range(0, HIDDEN, BLOCK_K):
        inputs = begin + tl.arange(0, BLOCK_K)
        is_input = inputs < HIDDEN
        at = rows.to(tl.int64)[:, None] * HIDDEN + inputs[None, :]
        x = tl.load(states + at, mask=is_row[:, None] & is_input[None, :], other=0.0)
        if UP:
            x = x.to(tl.float32)
        first = _more(first, x, own_weight, at_first, is_pair, inputs, is_input, HIDDEN)
        second = _more(second, x, own_weight, at_second, is_pair, inputs, is_input, HIDDEN)
        if HEAD > 2 * HALF:
            rest = _more(rest, x, own_weight, at_rest, is_rest, inputs, is_input, HIDDEN)

    slots = tl.load(kv_slots + rows, mask=is_row, other=-1)
    at = layer.to(tl.int64) * layer_stride + slots // PAGE * (KV_HEADS * PAGE * HEAD)
    at = (at + (kv_head * PAGE + slots % PAGE) * HEAD)[:, None]
    if kind == 0:
        if k_norm is not None:
            squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
            factor = (1.0 / tl.sqrt(squares / HEAD + eps))[:, None]
            own_norm = k_norm + layer * HEAD
            first *= factor * weights_at(own_norm, at_first, is_pair)
            second *= factor * weights_at(own_norm, at_second, is_pair)
            rest *= factor * weights_at(own_norm, at_rest, is_rest)
        turns = cos_sin + tl.load(positions + rows, mask=is_row, other=0)[:, None] * (2 * HALF)
        is_turn = is_row[:, None] & is_pair[None, :]
        cos = tl.load(turns + pairs[None, :], mask=is_turn, other=0.0)
        sin = tl.load(turns + (HALF + pairs)[None, :], mask=is_turn, other=0.0)
        _put(k_caches, at, at_first, slots, is_pair, first * cos - second * sin, CACHE_MAX)
        _put(k_caches, at, at_second, slots, is_pair, second * cos + first * sin, CACHE_MAX)
        _put(k_caches, at, at_rest, slots, is_rest, rest, CACHE_MAX)
    else:
        _put(v_caches, at, at_first, slots, is_pair, first, CACHE_MAX)
        _put(v_caches, at, at_second, slots, is_pair, second, CACHE_MAX)
        _put(v_caches, at, at_rest, slots, is_rest, rest, CACHE_MAX)


@triton.jit
def _more(sums, x, weight, outputs, is_output, inputs, is_input, HIDDEN: tl.constexpr):
    """`sums` and the product of `x` with the weights of some outputs."""
    at = inputs[:, None] + outputs[None, :] * HIDDEN
    part = tl.load(weight + at, mask=is_input[:, None] & is_output[None, :], other=0.0)
    return tl.dot(x, part.to(x.dtype), sums, input_precision="ieee")


@triton.jit
def _put(caches, at, columns, slots, is_column, x, CACHE_MAX: tl.constexpr) -> None:
    x = as_stored(x, caches.dtype.element_ty, CACHE_MAX)
    is_there = (slots >= 0)[:, None] & is_column[None, :]
    tl.store(caches + (at + columns[None, :]), x, mask=is_there)


def _check(
    states: Tensor,
    weight: Tensor,
    cos_sin: Tensor,
    k_caches: Tensor,
    v_caches: Tensor,
    rotary_dim: int,
) -> None:
    num_layers, _, num_kv_heads, _, head_dim = k_caches.shape
    want = (num_layers * 2 * num_kv_heads * head_dim, states.shape[1])
    if tuple(weight.shape) != want or cos_sin.shape[1] != rotary_dim:
        raise ValueError(
            f"weight {list(weight.shape)} and cos_sin {list(cos_sin.shape)} do not fit states "
            f"{list(states.shape)} and caches {list(k_caches.shape)}: the weight must be "
            f"{list(want)}, cos_sin {rotary_dim} wide"
        )
    named = {"states": states, "weight": weight, "cos_sin": cos_sin}
    layers = {"k_caches": k_caches[0], "v_caches": v_caches[0]}
    for name, tensor in (named | layers).items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous; its strides are {tensor.stride()}")
    if v_caches.shape != k_caches.shape or v_caches.stride(0) != k_caches.stride(0):
        raise ValueError("k_caches and v_caches must be of one layout")
