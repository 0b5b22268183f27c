"""Rotary positions, norms of heads, and keys and values into the cache: one launch for all.

A program takes some heads of one row, all of one kind. A head is read as the first and the second
entry of each pair that is turned (Su et al., 2021) and the rest, so both ways of pairing are the
same arithmetic at other addresses.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.blocks import head_stride, power_of_two
from kernels.ops.launching import Config, launch
from kernels.ops.rows_layout import as_rows

ENTRIES_A_PROGRAM = 1024


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    kv_slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    num_heads: int,
    rotary_dim: int,
    is_interleaved: bool = False,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_out: Tensor | None = None,
) -> Tensor:
    """Queries [R, QH, D], as the reference's; rows of a negative slot write no key and no value.

    What does not fit into a cache of fp8 becomes its largest number. Raises ValueError for a cache
    that is not contiguous, or tables that do not fit.
    """
    num_kv_heads, page, head_dim = k_cache.shape[1:]
    num_rows = positions.shape[0]
    qkv = as_rows(qkv.view(num_rows, (num_heads + 2 * num_kv_heads) * head_dim))
    if cos_sin.shape[1] != rotary_dim or not cos_sin.is_contiguous():
        raise ValueError(
            f"cos_sin {list(cos_sin.shape)} is no contiguous table of {rotary_dim} a position"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("the cache's keys and values must be contiguous, each for itself")
    shape = (num_rows, num_heads, head_dim)
    if q_out is None:
        q_out = torch.empty(shape, dtype=qkv.dtype, device=qkv.device)
    if q_out.shape != shape or q_out.stride(2) != 1 or kv_slots.shape != positions.shape:
        raise ValueError(
            f"q_out {list(q_out.shape)} with strides {q_out.stride()} and kv_slots "
            f"{list(kv_slots.shape)} must be {list(shape)}, a head's entries side by side, and "
            f"{list(positions.shape)}"
        )
    block_d = power_of_two(head_dim)
    most = power_of_two(max(num_heads, num_kv_heads))
    block_h = min(most, max(1, ENTRIES_A_PROGRAM // block_d))
    num_groups = -(-num_heads // block_h) + 2 * -(-num_kv_heads // block_h)
    launch(
        rotate_and_write,
        (num_rows, num_groups),
        Config(num_warps=2, num_stages=1),
        qkv=qkv, positions=positions.contiguous(), cos_sin=cos_sin,
        kv_slots=kv_slots.contiguous(), k_cache=k_cache,
        v_cache=v_cache, q_out=q_out, q_norm=q_norm, k_norm=k_norm, k_scale=k_scale,
        v_scale=v_scale, eps=float(eps), qkv_row_stride=qkv.stride(0),
        q_row_stride=q_out.stride(0), q_head_stride=q_out.stride(1),
        k_scale_stride=head_stride(k_scale), v_scale_stride=head_stride(v_scale),
        NUM_HEADS=num_heads, KV_HEADS=num_kv_heads, HEAD=head_dim, HALF=rotary_dim // 2, PAGE=page,
        BLOCK_H=block_h, BLOCK_HALF=power_of_two(rotary_dim // 2),
        BLOCK_REST=power_of_two(head_dim - rotary_dim), BLOCK_D=block_d,
        IS_INTERLEAVED=is_interleaved, CACHE_MAX=cache_max(k_cache.dtype),
    )  # fmt: skip
    return q_out


def cache_max(dtype: torch.dtype) -> float:
    """The largest number of a type of 8 bits; 0 for types that need no bound."""
    return float(torch.finfo(dtype).max) if dtype.itemsize == 1 else 0.0


@triton.jit
def rotate_and_write(
    qkv, positions, cos_sin, kv_slots, k_cache, v_cache, q_out, q_norm, k_norm, k_scale, v_scale,
    eps, qkv_row_stride, q_row_stride, q_head_stride, k_scale_stride, v_scale_stride,
    NUM_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD: tl.constexpr, HALF: tl.constexpr,
    PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr,
    BLOCK_D: tl.constexpr, IS_INTERLEAVED: tl.constexpr, CACHE_MAX: tl.constexpr,
) -> None:  # fmt: skip
    """Programs (row, group of heads): the queries' groups, the keys', the values'."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_q_groups = tl.cdiv(NUM_HEADS, BLOCK_H)
    num_kv_groups = tl.cdiv(KV_HEADS, BLOCK_H)
    in_group = tl.arange(0, BLOCK_H)
    source = qkv + row * qkv_row_stride
    turns = cos_sin + tl.load(positions + row) * (2 * HALF)
    slot = tl.load(kv_slots + row)
    block = slot // PAGE * (KV_HEADS * PAGE * HEAD)
    within = (slot % PAGE).to(tl.int32)
    if group < num_q_groups:
        heads = group * BLOCK_H + in_group
        first, second, rest = _turned(
            source, heads, heads < NUM_HEADS, turns, q_norm, eps,
            HEAD, HALF, BLOCK_HALF, BLOCK_REST, IS_INTERLEAVED,
        )  # fmt: skip
        target = q_out + row * q_row_stride
        _store(
            target, heads * q_head_stride, heads < NUM_HEADS, first, second, rest,
            HEAD, HALF, BLOCK_HALF, BLOCK_REST, IS_INTERLEAVED, 0.0,
        )  # fmt: skip
    elif group < num_q_groups + num_kv_groups:
        heads = (group - num_q_groups) * BLOCK_H + in_group
        is_head = heads < KV_HEADS
        first, second, rest = _turned(
            source + NUM_HEADS * HEAD, heads, is_head, turns, k_norm, eps,
            HEAD, HALF, BLOCK_HALF, BLOCK_REST, IS_INTERLEAVED,
        )  # fmt: skip
        divisor = _scale_of(k_scale, heads * k_scale_stride, is_head)[:, None]
        _store(
            k_cache + block, (heads * PAGE + within) * HEAD, is_head & (slot >= 0),
            first / divisor, second / divisor, rest / divisor,
            HEAD, HALF, BLOCK_HALF, BLOCK_REST, IS_INTERLEAVED, CACHE_MAX,
        )  # fmt: skip
    else:
        heads = (group - num_q_groups - num_kv_groups) * BLOCK_H + in_group
        is_head = heads < KV_HEADS
        columns = tl.arange(0, BLOCK_D)
        is_there = is_head[:, None] & (columns < HEAD)[None, :]
        at = ((NUM_HEADS + KV_HEADS + heads) * HEAD)[:, None] + columns[None, :]
        values = tl.load(source + at, mask=is_there, other=0.0).to(tl.float32)
        values /= _scale_of(v_scale, heads * v_scale_stride, is_head)[:, None]
        at = ((heads * PAGE + within) * HEAD)[:, None] + columns[None, :]
        target = v_cache + block
        values = as_stored(values, target.dtype.element_ty, CACHE_MAX)
        tl.store(target + at, values, mask=is_there & (slot >= 0))


@triton.jit
def _turned(
    source, heads, is_head, turns, norm, eps, HEAD: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Heads, normed and turned: (first of each pair, second of each, the rest), float32."""
    pairs, others = tl.arange(0, BLOCK_HALF), tl.arange(0, BLOCK_REST)
    at_first, at_second, at_rest = places(pairs, others, HALF, IS_INTERLEAVED)
    is_pair, is_rest = pairs < HALF, others < HEAD - 2 * HALF
    begins = (heads * HEAD)[:, None]
    has_pair = is_head[:, None] & is_pair[None, :]
    has_rest = is_head[:, None] & is_rest[None, :]
    first = tl.load(source + (begins + at_first[None, :]), mask=has_pair, other=0.0)
    second = tl.load(source + (begins + at_second[None, :]), mask=has_pair, other=0.0)
    rest = tl.load(source + (begins + at_rest[None, :]), mask=has_rest, other=0.0)
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    if norm is not None:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
        factor = (1.0 / tl.sqrt(squares / HEAD + eps))[:, None]
        first *= factor * weights_at(norm, at_first, is_pair)
        second *= factor * weights_at(norm, at_second, is_pair)
        rest *= factor * weights_at(norm, at_rest, is_rest)
    cos = tl.load(turns + pairs, mask=is_pair, other=0.0)[None, :]
    sin = tl.load(turns + HALF + pairs, mask=is_pair, other=0.0)[None, :]
    return first * cos - second * sin, second * cos + first * sin, rest


@triton.jit
def weights_at(norm, at, is_there):
    return tl.load(norm + at, mask=is_there, other=0.0).to(tl.float32)[None, :]


@triton.jit
def places(pairs, others, HALF: tl.constexpr, IS_INTERLEAVED: tl.constexpr):
    """Where in a head lie (the first of each pair, the second of each, the rest)."""
    if IS_INTERLEAVED:
        first, second = pairs * 2, pairs * 2 + 1
    else:
        first, second = pairs, pairs + HALF
    return first, second, others + 2 * HALF


@triton.jit
def _store(
    target, begins, is_head, first, second, rest, HEAD: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
    CACHE_MAX: tl.constexpr,
) -> None:  # fmt: skip
    kind = target.dtype.element_ty
    pairs, others = tl.arange(0, BLOCK_HALF), tl.arange(0, BLOCK_REST)
    at_first, at_second, at_rest = places(pairs, others, HALF, IS_INTERLEAVED)
    has_pair = is_head[:, None] & (pairs < HALF)[None, :]
    has_rest = is_head[:, None] & (others < HEAD - 2 * HALF)[None, :]
    first, second = as_stored(first, kind, CACHE_MAX), as_stored(second, kind, CACHE_MAX)
    tl.store(target + (begins[:, None] + at_first[None, :]), first, mask=has_pair)
    tl.store(target + (begins[:, None] + at_second[None, :]), second, mask=has_pair)
    rest = as_stored(rest, kind, CACHE_MAX)
    tl.store(target + (begins[:, None] + at_rest[None, :]), rest, mask=has_rest)


@triton.jit
def as_stored(x, kind: tl.constexpr, MOST: tl.constexpr):
    """In the type `kind`; if `MOST` is not 0, what is larger becomes that, not NaN."""
    if MOST > 0.0:
        x = tl.minimum(tl.maximum(x, -MOST), MOST)
    return x.to(kind)


@triton.jit
def _scale_of(scales, at, is_head):
    scale = tl.full(is_head.shape, 1.0, tl.float32)
    if scales is not None:
        scale = tl.load(scales + at, mask=is_head, other=1.0)
    return scale
