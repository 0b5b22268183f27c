"""Keys and values of all layers of a DFlash draft, from one state a context row."""

from __future__ import annotations

from torch import Tensor

from kernels.reference.linear_dense import linear_dense
from kernels.reference.rope_kv_write import rope_kv_write


def dflash_context_kv(
    states: Tensor,  # [R, K]
    weight: Tensor,  # [L 2 KH D, K]: layer by layer its key heads, then its value heads
    positions: Tensor,  # [R] int64
    cos_sin: Tensor,  # [positions, rotary_dim] float32: the cosines' half, then the sines'
    kv_slots: Tensor,  # [R] int64: block · block_size + offset, the same in every layer
    *,
    k_caches: Tensor,  # [L, blocks, KH, block, D], each layer contiguous
    v_caches: Tensor,
    rotary_dim: int,
    is_interleaved: bool = False,
    k_norm: Tensor | None = None,  # [L, D]
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """`k_caches` and `v_caches` [L, blocks, KH, block, D], written at `kv_slots`.

    The target's fused and normed states are projected by each layer's key and value weights; keys
    are normed head by head (if `k_norm`) and rotated as `rope_kv_write` does (DFlash, arXiv
    2602.06036). Rows of one slot overwrite each other in any order; only padding may do so.
    """
    num_layers = k_caches.shape[0]
    heads = linear_dense(states, weight).view(states.shape[0], num_layers, -1)
    for layer in range(num_layers):
        rope_kv_write(
            heads[:, layer].contiguous(),
            positions,
            cos_sin,
            kv_slots,
            k_caches[layer],
            v_caches[layer],
            num_heads=0,
            rotary_dim=rotary_dim,
            is_interleaved=is_interleaved,
            k_norm=None if k_norm is None else k_norm[layer],
            eps=eps,
        )
    return k_caches, v_caches
