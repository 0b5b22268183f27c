"""Attention of a group's queries over keys and values that lie in blocks (Kwon et al., 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import MaskKind

MASKED = -1e30  # finite, so that a row that sees nothing stays finite


def paged_attention(
    q: Tensor,  # [S Q, QH, D]
    k_cache: Tensor,  # [blocks, KH, block, D], contiguous
    v_cache: Tensor,
    block_tables: Tensor,  # [S, W] int32; unused entries 0
    context_lens: Tensor,  # [S] int32
    query_starts: Tensor,  # [S] int32
    *,
    query_len: int,
    scale: float,
    mask: MaskKind = "causal",
    mask_bits: Tensor | None = None,  # [S, Q] int64
    window: int = 0,
    soft_cap: float = 0.0,
    num_splits: int = 0,
    k_scale: Tensor | None = None,  # [] or [KH] float32
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """[S Q, QH, D] in q's dtype. Row j of a sequence sees, of the keys below `context_lens`:

    - "causal": those up to its own position, `query_starts + j`;
    - "block": all of them;
    - "bits": those below `query_starts`, and of this step's own key i if bit i of `mask_bits` is
      set (Q ≤ 63; a row's own bit among them). Its position is `query_starts` + bits set - 1: the
      place in the tree.

    `window` > 0 hides keys `window` or more positions before the row. Scores are `scale` · q·k,
    then soft_cap · tanh(score / soft_cap) if `soft_cap` > 0; the softmax is in float32.
    `num_splits` is a hint for devices that divide the keys. What lies in slots at or behind
    `context_lens`, NaN included, does not reach the result; a context of length 0 gives zeros.
    """
    num_sequences, num_blocks = block_tables.shape
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    group = q.shape[1] // num_kv_heads
    num_keys = num_blocks * block_size
    flat = (num_sequences * num_kv_heads, num_keys, head_dim)
    heads = torch.arange(num_kv_heads, device=q.device)
    rows = (block_tables.long()[:, None] * num_kv_heads + heads[:, None]).view(-1)
    keys = k_cache.view(-1, block_size, head_dim).index_select(0, rows).view(flat)
    values = v_cache.view(-1, block_size, head_dim).index_select(0, rows).view(flat)

    places = torch.arange(num_keys, device=q.device)
    exists = places < context_lens[:, None]  # [S, T]
    queries = _folded(q, num_sequences, query_len, num_kv_heads).float() * scale
    scores = torch.bmm(queries, keys.float().transpose(1, 2))
    scores = scores.view(num_sequences, num_kv_heads, group, query_len, num_keys)
    if k_scale is not None:
        scores = scores * k_scale.reshape(-1, 1, 1, 1)
    if soft_cap > 0.0:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    seen = exists[:, None] & _visible(
        places, query_starts, query_len, mask=mask, mask_bits=mask_bits, window=window
    )
    scores = scores.masked_fill(~seen[:, None, None], MASKED)
    weights = torch.softmax(scores, dim=-1).view(flat[0], group * query_len, num_keys)
    absent = ~exists[:, None, :, None]
    values = values.view(num_sequences, num_kv_heads, num_keys, head_dim)
    values = values.float().masked_fill(absent, 0.0)
    if v_scale is not None:
        values = values * v_scale.reshape(-1, 1, 1)
    result = torch.bmm(weights, values.view(flat))
    result = result.view(num_sequences, num_kv_heads, group, query_len, head_dim)
    result = result.permute(0, 3, 1, 2, 4)
    if out is None:
        return result.reshape(q.shape).to(q.dtype)
    out.view(result.shape).copy_(result)
    return out


def _folded(q: Tensor, num_sequences: int, query_len: int, num_kv_heads: int) -> Tensor:
    """[S Q, QH, D] → [S KH, G Q, D]: the query heads of a key head become rows of one product."""
    head_dim = q.shape[-1]
    q = q.view(num_sequences, query_len, num_kv_heads, -1, head_dim)
    return q.permute(0, 2, 3, 1, 4).reshape(num_sequences * num_kv_heads, -1, head_dim)


def _visible(
    places: Tensor,
    query_starts: Tensor,
    query_len: int,
    *,
    mask: MaskKind,
    mask_bits: Tensor | None,
    window: int,
) -> Tensor:
    """[S, Q, T] or what broadcasts to it: which keys a row may see if they exist."""
    steps = torch.arange(query_len, device=places.device)
    starts = query_starts.long()[:, None]
    if mask == "bits":
        if mask_bits is None:
            raise ValueError('mask "bits" needs mask_bits [S, Q]')
        own = (mask_bits[:, :, None] >> steps) & 1  # [S, Q, Q]
        depths = own.sum(dim=-1) - 1
        behind = places - starts  # [S, T]: index within this step's keys
        is_own = (behind >= 0) & (behind < query_len)
        index = behind.clamp(0, query_len - 1)
        chosen = own.gather(2, index[:, None].expand(-1, query_len, -1)).bool()
        seen = (behind < 0)[:, None] | (chosen & is_own[:, None])
        if window > 0:
            depth_of_key = torch.where(is_own, depths.gather(1, index), behind)
            seen = seen & (depth_of_key[:, None] > depths[:, :, None] - window)
        return seen
    positions = (starts + steps)[:, :, None]
    if mask == "causal":
        seen = places <= positions
    elif mask == "block":
        seen = places[None, None] >= 0
    else:
        raise ValueError(f"mask {mask!r} is unknown; use causal, block or bits")
    return seen & (places > positions - window) if window > 0 else seen
