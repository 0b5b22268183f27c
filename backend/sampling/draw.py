"""From adjusted logits to tokens: the filters that a batch needs, on top of the op `sample`.

How probabilities are held as integers, what the filters mean and in which order they apply:
`kernels.reference.sample`. Here is what only the host can know: which filters no row of the batch
uses, and that every top-k is small enough for a partial sort. The result is the same to the token.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.reference.sample import (
    VOCAB_SIZE_MAX,
    WEIGHT_BITS,
    draw,
    is_in_min_p,
    is_in_top_k,
    is_in_top_p,
    keep,
    weights_of,
)

__all__ = (
    *("TOP_K_SMALL", "VOCAB_SIZE_MAX", "WEIGHT_BITS"),
    *("RowFilters", "draw", "filtered_weights", "weights_of"),
)

TOP_K_SMALL = 64  # up to here a partial sort is faster than counting


@dataclass(frozen=True, slots=True)
class RowFilters:
    """Settings of each row; None where no row of the batch uses the filter."""

    temperature: Tensor  # [R] float64; 0 is read as 1
    top_k: Tensor | None = None  # [R] int64; 0: all
    is_top_k_small: bool = False  # every top_k is at most TOP_K_SMALL
    top_p: Tensor | None = None  # [R] float64
    min_p: Tensor | None = None  # [R] float64


def _is_among_best(logits: Tensor, top_k: Tensor) -> Tensor:
    """Top-k for small k, by a partial sort; bool [R, V]."""
    num_best = min(TOP_K_SMALL, logits.shape[1])
    best = logits.topk(num_best, dim=1).values
    last = best.gather(1, (top_k - 1).clamp(0, num_best - 1).unsqueeze(1))
    return logits >= torch.where(top_k.unsqueeze(1) == 0, -torch.inf, last)


def filtered_weights(logits: Tensor, filters: RowFilters) -> Tensor:
    """What each token would be drawn with, as integers: float32 [R, V] → int64 [R, V]."""
    weights = weights_of(logits, filters.temperature)
    if filters.top_k is not None:
        is_kept = _is_among_best if filters.is_top_k_small else is_in_top_k
        keep(weights, is_kept(logits, filters.top_k))
    if filters.top_p is not None:
        keep(weights, is_in_top_p(logits, weights, filters.top_p))
    if filters.min_p is not None:
        keep(weights, is_in_min_p(weights, filters.min_p))
    return weights
