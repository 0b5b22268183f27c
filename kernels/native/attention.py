"""rope_kv_write and paged_attention in C++, on the paged cache as it lies."""

from __future__ import annotations

import struct
from typing import NoReturn

import torch
from torch import Tensor

from kernels.interface import MaskKind
from kernels.native.library import KINDS, Library, contiguous
from kernels.reference.paged_attention import paged_attention as paged_attention_reference
from kernels.reference.rope_kv_write import rope_kv_write as rope_kv_write_reference

BRIEF_ROPE_ROWS_MAX = 64
BRIEF_ATTENTION_ROWS_MAX = 8  # of all sequences; their contexts are known on the device only

_ROPE = struct.Struct("@11Q8qf4i").pack  # lr::Rope
_ATTENTION = struct.Struct("@10Q9q2f3i").pack  # lr::Attention
_MASKS = {"causal": 0, "block": 1, "bits": 2}  # lr::MaskKind
_HEADS_A_KEY_HEAD_MAX = 64
_HEAD_DIM_MAX = 1024

_ATTENTION_ERRORS = {
    1: "no memory for the keys and queries of one thread",
    2: "a context is longer than its block table",
    3: "a block table names a block that the cache does not have",
}


class AttentionKernels:
    """Dtypes and layouts that the kernels do not have go to the reference."""

    def __init__(self, library: Library) -> None:
        self._rope_brief = library.brief("lr_rope_kv_write")
        self._rope_long = library.long("lr_rope_kv_write")
        self._attention_brief = library.brief("lr_paged_attention")
        self._attention_long = library.long("lr_paged_attention")

    def rope_kv_write(
        self,
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
        """As the reference's. Raises IndexError for a position or slot that does not exist."""
        num_blocks, num_kv_heads, block_size, head_dim = k_cache.shape
        if (
            not _have_kernel(qkv, k_cache, v_cache, q_out)
            or head_dim > _HEAD_DIM_MAX
            or cos_sin.dtype is not torch.float32
        ):
            return rope_kv_write_reference(
                *(qkv, positions, cos_sin, kv_slots, k_cache, v_cache),
                num_heads=num_heads,
                rotary_dim=rotary_dim,
                is_interleaved=is_interleaved,
                q_norm=q_norm,
                k_norm=k_norm,
                eps=eps,
                k_scale=k_scale,
                v_scale=v_scale,
                q_out=q_out,
            )
        rows = positions.numel()
        qkv, cos_sin = contiguous(qkv), contiguous(cos_sin)
        num_positions = cos_sin.shape[0]
        if q_out is None:
            q_out = torch.empty((rows, num_heads, head_dim), dtype=qkv.dtype)
        heads = (rows, num_heads, num_kv_heads)
        if q_out.numel() != rows * num_heads * head_dim or cos_sin.shape[1] != rotary_dim:
            raise ValueError(f"{rows} rows of {rotary_dim} rotated do not fit q_out or cos_sin")
        _check_rope(heads, qkv, kv_slots, k_cache, v_cache)
        positions, kv_slots = _as(positions, torch.int64), _as(kv_slots, torch.int64)
        norm_kind = 0
        if q_norm is not None or k_norm is not None:
            q_norm, k_norm, norm_kind = _norms(q_norm, k_norm)
        if k_scale is not None or v_scale is not None:
            k_scale, v_scale = (_head_scales(each, num_kv_heads) for each in (k_scale, v_scale))
        call = _ROPE(
            *(qkv.data_ptr(), positions.data_ptr(), cos_sin.data_ptr(), kv_slots.data_ptr()),
            *(k_cache.data_ptr(), v_cache.data_ptr(), _address(q_norm), _address(k_norm)),
            *(_address(k_scale), _address(v_scale), q_out.data_ptr()),
            *(rows, num_heads, num_kv_heads, head_dim, num_blocks, block_size),
            *(num_positions, rotary_dim, eps, is_interleaved),
            *(KINDS[qkv.dtype], KINDS[k_cache.dtype], norm_kind),
        )
        if (self._rope_brief if rows <= BRIEF_ROPE_ROWS_MAX else self._rope_long)(call):
            raise IndexError(
                f"a position is not below {num_positions} or a slot not below "
                f"{num_blocks * block_size}"
            )
        return q_out

    def paged_attention(
        self,
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
        """As the reference's; sums run in the order of the keys. Raises as `_attend` says."""
        num_blocks, num_kv_heads, block_size, head_dim = k_cache.shape
        num_sequences, table_width = block_tables.shape
        num_rows, num_heads, q_dim = q.shape
        group = num_heads // num_kv_heads
        if (
            not _have_kernel(q, k_cache, v_cache, out)
            or group > _HEADS_A_KEY_HEAD_MAX
            or mask not in _MASKS
            or (mask == "bits" and mask_bits is None)
        ):
            return paged_attention_reference(
                *(q, k_cache, v_cache, block_tables, context_lens, query_starts),
                query_len=query_len,
                scale=scale,
                mask=mask,
                mask_bits=mask_bits,
                window=window,
                soft_cap=soft_cap,
                num_splits=num_splits,
                k_scale=k_scale,
                v_scale=v_scale,
                out=out,
            )
        if (
            (context_lens.numel(), query_starts.numel()) != (num_sequences, num_sequences)
            or num_rows != num_sequences * query_len
            or (mask_bits is not None and mask_bits.numel() != num_rows)
            or (q_dim, group * num_kv_heads) != (head_dim, num_heads)
            or (out is not None and out.numel() != q.numel())
            or v_cache.shape != k_cache.shape
        ):
            _refuse_queries(q, num_sequences, query_len, k_cache)
        q, tables = contiguous(q), _as(block_tables, torch.int32)
        lens, starts = _as(context_lens, torch.int32), _as(query_starts, torch.int32)
        bits = None if mask_bits is None else _as(mask_bits, torch.int64)
        if k_scale is not None or v_scale is not None:
            k_scale, v_scale = (_head_scales(each, num_kv_heads) for each in (k_scale, v_scale))
        if out is None:
            out = torch.empty_like(q)
        call = _ATTENTION(
            *(q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), tables.data_ptr()),
            *(lens.data_ptr(), starts.data_ptr(), _address(bits), _address(k_scale)),
            *(_address(v_scale), out.data_ptr(), num_sequences, query_len, group, num_kv_heads),
            *(head_dim, table_width, num_blocks, block_size, window, scale, soft_cap),
            *(_MASKS[mask], KINDS[q.dtype], KINDS[k_cache.dtype]),
        )
        self._attend(call, num_rows)
        return out

    def _attend(self, call: bytes, num_rows: int) -> None:
        """Raises IndexError for a context or a block that does not exist, or MemoryError."""
        is_brief = num_rows <= BRIEF_ATTENTION_ROWS_MAX
        wrong = (self._attention_brief if is_brief else self._attention_long)(call)
        if wrong:
            raise (MemoryError if wrong == 1 else IndexError)(_ATTENTION_ERRORS[wrong])


def _have_kernel(x: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor | None) -> bool:
    """Whether these dtypes and layouts are compiled."""
    return (
        x.dtype in KINDS
        and k_cache.dtype in KINDS
        and k_cache.is_contiguous()
        and v_cache.is_contiguous()
        and v_cache.dtype is k_cache.dtype
        and (out is None or (out.dtype is x.dtype and out.is_contiguous()))
    )


def _check_rope(
    heads: tuple[int, int, int], qkv: Tensor, kv_slots: Tensor, k_cache: Tensor, v_cache: Tensor
) -> None:
    """`heads`: rows, query heads, key heads. Raises ValueError for sizes that do not fit."""
    rows, num_heads, num_kv_heads = heads
    if (
        qkv.numel() != rows * (num_heads + 2 * num_kv_heads) * k_cache.shape[3]
        or kv_slots.numel() != rows
        or k_cache.shape != v_cache.shape
    ):
        raise ValueError(
            f"qkv {list(qkv.shape)}, {rows} positions, {kv_slots.numel()} slots and a cache "
            f"{list(k_cache.shape)} do not fit"
        )


def _refuse_queries(q: Tensor, num_sequences: int, query_len: int, k_cache: Tensor) -> NoReturn:
    raise ValueError(
        f"queries {list(q.shape)}, {num_sequences} sequences of {query_len} and a cache "
        f"{list(k_cache.shape)} do not fit"
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype is dtype and tensor.is_contiguous():
        return tensor
    return tensor.to(dtype).contiguous()


def _norms(
    q_norm: Tensor | None, k_norm: Tensor | None
) -> tuple[Tensor | None, Tensor | None, int]:
    """Both weights in one piece and of one dtype, and what C calls it."""
    kinds = {KINDS.get(each.dtype) for each in (q_norm, k_norm) if each is not None}
    if len(kinds) == 1 and None not in kinds:
        q_norm, k_norm = (None if each is None else contiguous(each) for each in (q_norm, k_norm))
        return q_norm, k_norm, kinds.pop() or 0
    q_norm, k_norm = (
        None if each is None else _as(each, torch.float32) for each in (q_norm, k_norm)
    )
    return q_norm, k_norm, 0


def _head_scales(scale: Tensor | None, num_kv_heads: int) -> Tensor | None:
    """One float32 a key head."""
    if scale is None:
        return None
    return scale.float().reshape(-1).expand(num_kv_heads).contiguous()
