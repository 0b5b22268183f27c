"""Attention of a group's queries over keys and values that lie in blocks (Kwon et al., 2023).

The blocks are gathered once, in the order [S, KH, T, D], and the query heads that share a key head
become rows of one float32 product. Measured at QH 9, KH 3, D 64, 256 keys, one thread: bfloat16
products are no faster than float32 ones after a conversion (few rows), and they round the scores;
torch's fused attention is slower with several sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import MaskKind

MASKED = -1e30  # finite, so that a row that sees nothing stays finite
SCORES_MAX = 1 << 23  # held at once: 32 MiB; long prompts are taken in parts


def paged_attention(
    q: Tensor,  # [S Q, QH, D]
    k_cache: Tensor,  # [blocks, KH, block, D], contiguous; rows of a multiple of 8 bytes
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
    then soft_cap · tanh(score / soft_cap) if `soft_cap` > 0; the softmax is in float32. Keys and
    values are what the cache holds times `k_scale` and `v_scale`. `num_splits` is a hint for
    devices that divide the keys. What lies in slots at or behind `context_lens`, NaN included, does
    not reach the result; a row that sees no key gives zeros.
    """
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    num_sequences = block_tables.shape[0]
    num_keys = block_tables.shape[1] * block_size
    places = torch.arange(num_keys, device=q.device)
    ends = context_lens[:, None]
    turned_keys, values = _gathered(k_cache, v_cache, block_tables, places - ends)
    flat = (num_sequences * num_kv_heads, num_keys, head_dim)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    group = q.shape[1] // num_kv_heads
    grouped = (num_sequences, query_len, num_kv_heads, group, head_dim)
    queries, results = q.view(grouped), out.view(grouped)
    factor = scale if k_scale is None else k_scale.reshape(-1, 1, 1, 1) * scale
    rows_at_once = max(1, SCORES_MAX // max(1, num_sequences * q.shape[1] * num_keys))
    for begin in range(0, query_len, rows_at_once):
        part = slice(begin, min(begin + rows_at_once, query_len))
        num_rows = group * (part.stop - begin)
        steps = torch.arange(part.start, part.stop, device=q.device)
        hidden = _hidden(
            places, ends, query_starts[:, None], steps,
            mask=mask, mask_bits=mask_bits, window=window,
        )  # fmt: skip
        folded = queries[:, part].permute(0, 2, 3, 1, 4).float() * factor
        scores = torch.bmm(folded.reshape(flat[0], num_rows, head_dim), turned_keys)
        scores = _masked(scores.view(*folded.shape[:-1], num_keys), hidden, soft_cap)
        weights = torch.softmax(scores, dim=-1).view(flat[0], num_rows, num_keys)
        result = torch.bmm(weights, values).view(folded.shape)
        if v_scale is not None:
            result *= v_scale.reshape(-1, 1, 1, 1)
        # Where all scores are MASKED, softmax weighs all keys alike: the mean of what nobody sees.
        result.masked_fill_(hidden.all(dim=-1)[:, None, None, :, None], 0.0)
        results[:, part].copy_(result.permute(0, 3, 1, 2, 4))
    return out


def _gathered(
    k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, behind: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys [S KH, D, T] and values [S KH, T, D], float32; `behind` [S, T] is negative where a key
    exists.
    """
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    num_sequences, num_keys = behind.shape
    heads = torch.arange(num_kv_heads, dtype=block_tables.dtype, device=behind.device)
    rows = (block_tables[:, None] * num_kv_heads + heads[:, None]).view(-1)
    keys = k_cache.view(-1, block_size, head_dim).index_select(0, rows)
    values = v_cache.view(-1, block_size, head_dim).index_select(0, rows)
    # Stale values may be NaN, and 0 · NaN is NaN: all bits of a value that does not exist go to 0.
    # As words of 8 bytes that takes a tenth of the time of masked_fill.
    words = values.view(torch.int64)
    words = words.view(num_sequences, num_kv_heads, num_keys, words.shape[-1])
    words &= (behind >> 63)[:, None, :, None]
    flat = (num_sequences * num_kv_heads, num_keys, head_dim)
    return keys.view(flat).float().transpose(1, 2), values.view(flat).float()


def _masked(scores: Tensor, hidden: Tensor, soft_cap: float) -> Tensor:
    """`scores` [S, KH, G, Q, T], in place; `hidden` [S, Q, T]."""
    if soft_cap > 0.0:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    return scores.masked_fill_(hidden[:, None, None], MASKED)


def _hidden(
    places: Tensor,  # [T]
    ends: Tensor,  # [S, 1]
    starts: Tensor,  # [S, 1]
    steps: Tensor,  # [Q]: which rows of a sequence
    *,
    mask: MaskKind,
    mask_bits: Tensor | None,
    window: int,
) -> Tensor:
    """[S, Q, T], or what broadcasts to it: which keys a row does not see."""
    if mask == "bits":
        if mask_bits is None:
            raise ValueError('mask "bits" needs mask_bits [S, Q]')
        return _hidden_by_bits(places, ends, starts, steps, mask_bits, window)
    positions = starts + steps
    if mask == "causal":
        hidden = places >= torch.minimum(positions + 1, ends)[:, :, None]
    elif mask == "block":
        hidden = (places >= ends)[:, None]
    else:
        raise ValueError(f"mask {mask!r} is unknown; use causal, block or bits")
    if window > 0:
        hidden = hidden | (places <= positions[:, :, None] - window)
    return hidden


def _hidden_by_bits(
    places: Tensor, ends: Tensor, starts: Tensor, steps: Tensor, mask_bits: Tensor, window: int
) -> Tensor:
    query_len = mask_bits.shape[1]
    bits = (mask_bits[:, :, None] >> torch.arange(query_len, device=places.device)) & 1
    depths = bits.sum(dim=-1) - 1  # [S, Q all]
    index = places - starts  # [S, T]: which of this step's keys, negative before them
    is_own = (index >= 0) & (index < query_len)
    nearest = index.clamp(0, query_len - 1)
    own = bits.index_select(1, steps)
    chosen = own.gather(2, nearest[:, None].expand(-1, steps.shape[0], -1)).bool()
    hidden = (index >= 0)[:, None] & ~(chosen & is_own[:, None])
    if window > 0:
        places_in_tree = torch.where(is_own, depths.gather(1, nearest), index)
        row_depths = depths.index_select(1, steps)[:, :, None]
        hidden = hidden | (places_in_tree[:, None] <= row_depths - window)
    return hidden | (places >= ends)[:, None]
