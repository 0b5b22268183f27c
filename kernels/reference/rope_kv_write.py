"""Rotary positions on queries and keys, and keys and values into their slots of the cache."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_kv_write(
    qkv: Tensor,  # [R, (QH + 2 KH) D]: all query heads, then key heads, then value heads
    positions: Tensor,  # [R] int64
    cos_sin: Tensor,  # [positions, rotary_dim] float32: the cosines' half, then the sines'
    kv_slots: Tensor,  # [R] int64: block · block_size + offset
    k_cache: Tensor,  # [blocks, KH, block, D], contiguous
    v_cache: Tensor,
    *,
    num_heads: int,
    rotary_dim: int,
    is_interleaved: bool = False,
    q_norm: Tensor | None = None,  # [D]
    k_norm: Tensor | None = None,  # [D]
    eps: float = 1e-6,
    k_scale: Tensor | None = None,  # [] or [KH] float32
    v_scale: Tensor | None = None,
    q_out: Tensor | None = None,
) -> Tensor:
    """Queries [R, QH, D], normed (if `q_norm`) and rotated, in the dtype of `qkv`.

    The first `rotary_dim` entries of a head are rotated, in float32 (Su et al., 2021): entry i is
    paired with i + rotary_dim / 2, or neighbours are paired if `is_interleaved`. Any factor that a
    context extension puts on the angles belongs into `cos_sin`. The cache holds key / k_scale and
    value / v_scale. Rows of one slot overwrite each other in any order; only padding may do so.
    """
    num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    num_rotated = num_heads + num_kv_heads
    heads = qkv.view(-1, num_rotated + num_kv_heads, head_dim)
    # Norms are written into it, and float32 would be the caller's own memory.
    has_norm = q_norm is not None or k_norm is not None
    turned = heads[:, :num_rotated].to(torch.float32, copy=has_norm)
    if q_norm is not None:
        normed = torch.rms_norm(turned[:, :num_heads], (head_dim,), q_norm.float(), eps)
        turned[:, :num_heads] = normed
    if k_norm is not None:
        normed = torch.rms_norm(turned[:, num_heads:], (head_dim,), k_norm.float(), eps)
        turned[:, num_heads:] = normed
    turned = _rotated(turned, cos_sin.index_select(0, positions), rotary_dim, is_interleaved)
    _write(turned[:, num_heads:], kv_slots, k_cache, k_scale)
    _write(heads[:, num_rotated:], kv_slots, v_cache, v_scale)
    queries = turned[:, :num_heads]
    return queries.to(qkv.dtype) if q_out is None else q_out.copy_(queries)


def _rotated(heads: Tensor, cos_sin: Tensor, rotary_dim: int, is_interleaved: bool) -> Tensor:
    if rotary_dim == 0:
        return heads
    if not is_interleaved and rotary_dim == heads.shape[-1]:
        # One pass for the cosines and one for each half's sines: the usual case, kept short.
        cos, sin = cos_sin[:, None].chunk(2, dim=-1)
        low, high = heads.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    part, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
    if is_interleaved:
        even, odd = part[..., 0::2], part[..., 1::2]
        pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
        return torch.cat((pairs.flatten(-2), rest), dim=-1)
    low, high = part.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1)


def _write(heads: Tensor, kv_slots: Tensor, cache: Tensor, scale: Tensor | None) -> None:
    """`heads` [R, KH, D] into [blocks, KH, block, D]."""
    block_size = cache.shape[2]
    if scale is not None:
        heads = heads / scale.reshape(-1, 1)
    blocks = torch.div(kv_slots, block_size, rounding_mode="floor")
    cache.transpose(1, 2).index_put_(
        (blocks, kv_slots - blocks * block_size), heads.to(cache.dtype)
    )
