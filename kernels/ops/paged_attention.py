"""Paged attention in Triton: prefill, decode and verify by one kernel, its keys in splits.

Keys are split at any query length and under any mask, so that a few sequences with long contexts
fill the chip when drafts are verified too, not only when single tokens are decoded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import MaskKind
from kernels.ops.attention_kernels import attention_part, attention_sum
from kernels.ops.attention_plan import HEAD_DIM_MAX, Plan, Sizes, plan
from kernels.ops.blocks import head_stride, power_of_two
from kernels.ops.launching import (
    BUFFER_BYTES_MAX,
    IS_INTERPRETED,
    Config,
    current_target,
    launch,
)

MASKS = {"causal": 0, "block": 1, "bits": 2}
PAGES = (8, 16, 32, 64, 128)
SPLITS_AT_ONCE = 16
BITS_QUERY_LEN_MAX = 63


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    *,
    query_len: int,
    scale: float,
    mask: MaskKind = "causal",
    mask_bits: Tensor | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    num_splits: int = 0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """[S Q, QH, D], as the reference's; a row that sees no key gives zeros.

    `num_splits` 0 chooses by the shapes; a number is bounded by the keys that there can be and by
    the memory that the splits' sums may take. Raises ValueError for a mask that cannot be, or
    shapes that have no kernel.
    """
    _check_mask(mask, mask_bits, query_len, block_tables.shape[0])
    _check_shapes(q, k_cache, v_cache, out)
    _check_sequences(q.shape[0], query_len, block_tables, context_lens, query_starts)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    # A row's heads need not be neighbours, the entries of a head must.
    q = q if q.stride(2) == 1 else q.contiguous()
    num_kv_heads, page, head_dim = k_cache.shape[1:]
    num_keys = block_tables.shape[1] * page
    sizes = Sizes(
        num_sequences=block_tables.shape[0], query_len=query_len, num_heads=q.shape[1],
        num_kv_heads=num_kv_heads, head_dim=head_dim, itemsize=q.itemsize,
        num_keys_max=min(num_keys, window + query_len) if window > 0 else num_keys,
        has_tree_window=mask == "bits" and window > 0,
    )  # fmt: skip
    cut = plan(sizes, num_splits)
    num_parts = q.shape[0] * q.shape[1] * cut.num_splits if cut.num_splits > 1 else 0
    parts = torch.empty((num_parts, head_dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((num_parts, 2), dtype=torch.float32, device=q.device)
    launch(
        attention_part,
        (sizes.num_sequences * num_kv_heads * cut.num_row_tiles * cut.num_splits,),
        cut.config,
        q=q, k_cache=k_cache, v_cache=v_cache, out=out, parts=parts, stats=stats,
        block_tables=block_tables.contiguous(), context_lens=context_lens.contiguous(),
        query_starts=query_starts.contiguous(),
        mask_bits=None if mask_bits is None else mask_bits.contiguous(),
        k_scale=k_scale, v_scale=v_scale, scale=float(scale), soft_cap=float(soft_cap),
        window=window, query_len=query_len,
        table_width=block_tables.shape[1], num_sequences=sizes.num_sequences,
        num_splits=cut.num_splits, num_row_tiles=cut.num_row_tiles,
        q_row_stride=q.stride(0), q_head_stride=q.stride(1),
        out_row_stride=out.stride(0), out_head_stride=out.stride(1),
        k_scale_stride=head_stride(k_scale), v_scale_stride=head_stride(v_scale),
        KV_HEADS=num_kv_heads, GROUP=sizes.group, HEAD=head_dim, BLOCK_D=cut.block_d, PAGE=page,
        TILE=cut.tile, BLOCK_M=cut.block_m, MASK=MASKS[mask], HAS_WINDOW=window > 0,
        HAS_CAP=soft_cap > 0.0, IS_SPLIT=cut.num_splits > 1,
        IS_WIDE=k_cache.numel() * k_cache.itemsize > BUFFER_BYTES_MAX,
        NUM_XCDS=current_target().num_xcds, UP=IS_INTERPRETED,
    )  # fmt: skip
    if num_parts:
        _sum_splits(parts, stats, out, cut)
    return out


def _sum_splits(parts: Tensor, stats: Tensor, out: Tensor, cut: Plan) -> None:
    num_rows, num_heads, head_dim = out.shape
    num_splits = power_of_two(cut.num_splits)
    launch(
        attention_sum,
        (num_rows * num_heads,),
        Config(num_warps=1 if head_dim <= 128 else 4, num_stages=1),
        parts=parts, stats=stats, out=out, num_splits=cut.num_splits, out_row_stride=out.stride(0),
        out_head_stride=out.stride(1), NUM_HEADS=num_heads, HEAD=head_dim, BLOCK_D=cut.block_d,
        SPLITS=num_splits, AT_ONCE=min(SPLITS_AT_ONCE, num_splits),
    )  # fmt: skip


def _check_mask(mask: str, mask_bits: Tensor | None, query_len: int, num_sequences: int) -> None:
    if mask not in MASKS:
        raise ValueError(f"mask {mask!r} is unknown; use {', '.join(MASKS)}")
    if mask == "bits" and mask_bits is None:
        raise ValueError('mask "bits" needs mask_bits [S, Q]')
    if mask == "bits" and query_len > BITS_QUERY_LEN_MAX:
        raise ValueError(
            f"a tree of {query_len} rows does not fit into words of {BITS_QUERY_LEN_MAX} bits"
        )
    if mask == "bits" and mask_bits is not None and mask_bits.shape != (num_sequences, query_len):
        raise ValueError(
            f"mask_bits are {list(mask_bits.shape)}, and the rows {[num_sequences, query_len]}"
        )


def _check_shapes(q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor | None) -> None:
    num_kv_heads, page, head_dim = k_cache.shape[1:]
    if page not in PAGES or head_dim > HEAD_DIM_MAX:
        raise ValueError(
            f"blocks of {page} keys and heads of {head_dim} have no kernel; blocks may hold "
            f"{', '.join(map(str, PAGES))} keys, heads up to {HEAD_DIM_MAX} entries"
        )
    if q.shape[1] % num_kv_heads or q.shape[2] != head_dim or v_cache.shape != k_cache.shape:
        raise ValueError(
            f"queries {list(q.shape)}, keys {list(k_cache.shape)} and values "
            f"{list(v_cache.shape)} do not fit each other"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("the cache's keys and values must be contiguous, each for itself")
    if out is not None and out.shape != q.shape:
        raise ValueError(f"out is {list(out.shape)}, the queries are {list(q.shape)}")
    if out is not None and out.stride(2) != 1:
        raise ValueError(f"out has the strides {out.stride()}; a head's entries must be neighbours")


def _check_sequences(
    num_rows: int,
    query_len: int,
    block_tables: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
) -> None:
    num_sequences = block_tables.shape[0]
    if num_rows != num_sequences * query_len or any(
        each.shape != (num_sequences,) for each in (context_lens, query_starts)
    ):
        raise ValueError(
            f"{num_rows} queries, {query_len} a sequence, block_tables {list(block_tables.shape)}, "
            f"context_lens {list(context_lens.shape)} and query_starts "
            f"{list(query_starts.shape)} do not fit each other"
        )
