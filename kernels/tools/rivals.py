"""What torch itself offers for an op, as one would call it without ours.

Where it has nothing of its own, the reference on the GPU is the rival: several calls of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cases.case import Call
from kernels.dispatch import REFERENCE
from kernels.interface import MaskKind

Rival = tuple[str, Callable[[], Any]]


def rival_of(op: str, call: Call) -> Rival:
    """Its name and the call, prepared: what torch needs in another layout is laid out before."""
    made = _MAKERS[op](call) if op in _MAKERS else None
    if made is not None:
        return made
    return "reference", lambda: REFERENCE[op](*call.args, **call.kwargs)


def _sdpa(call: Call) -> Rival | None:
    """torch's fused attention over keys already gathered; None for what it cannot do."""
    q, k_cache, v_cache, block_tables, context_lens, query_starts = call.args
    given: Mapping[str, Any] = call.kwargs
    mask: MaskKind = given.get("mask", "causal")
    is_plain = not given.get("window") and not given.get("soft_cap") and mask != "bits"
    if not is_plain or k_cache.dtype != q.dtype:
        return None
    query_len = given["query_len"]
    num_sequences = block_tables.shape[0]
    num_keys = int(context_lens.max())
    keys = _gathered(k_cache, block_tables)[:, :, :num_keys].contiguous()
    values = _gathered(v_cache, block_tables)[:, :, :num_keys].contiguous()
    queries = q.view(num_sequences, query_len, q.shape[1], q.shape[2]).transpose(1, 2).contiguous()
    places = torch.arange(num_keys, device=q.device)
    ends = context_lens.view(-1, 1)
    if mask == "causal":
        rows = query_starts.view(-1, 1) + torch.arange(query_len, device=q.device) + 1
        ends = torch.minimum(ends, rows)
    seen = (places < ends.unsqueeze(2)).unsqueeze(1)
    values.masked_fill_((places >= context_lens.view(-1, 1))[:, None, :, None], 0.0)

    def run() -> Tensor:
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, scale=given["scale"], enable_gqa=True
        )

    return "SDPA", run


def _mm(call: Call) -> Rival | None:
    """torch.mm in x's type, with the weight as it was before it was quantized."""
    x, weight = call.args[0], call.args[1]
    if not hasattr(weight, "dequantized"):
        return None
    dense = weight.dequantized().to(x.dtype).t()
    return "torch.mm", lambda: torch.mm(x, dense)


def _gathered(cache: Tensor, block_tables: Tensor) -> Tensor:
    """[blocks, KH, block, D] → [S, KH, T, D]."""
    gathered = cache[block_tables.long()].transpose(1, 2)  # [S, KH, W, block, D]
    return gathered.flatten(2, 3)


_MAKERS: Mapping[str, Callable[[Call], Rival | None]] = {
    "paged_attention": _sdpa,
    "linear_int8": _mm,
    "linear_fp8": _mm,
    "linear_weight_only": _mm,
}
