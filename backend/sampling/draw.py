"""From adjusted logits to tokens: temperature, top-k, top-p, min-p, and one draw a row.

Probabilities are held as integers: `exp((logit - max) / temperature)` times 2**44, rounded. Integer
sums do not depend on their order, so a row's cumulative sum, and with it its token, is the same
alone and in any batch, on every device; the rounding moves a probability by less than 1e-13 of the
largest one. It is also several times faster on a CPU than a cumulative sum in float64.

Filters mean what they mean in Hugging Face transformers, applied in this order, each to what the
one before it left: temperature, top-k, top-p, min-p. Tokens that tie with the last one kept are
kept too, so that the result does not depend on how a sort breaks ties.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WEIGHT_BITS = 44  # 2**18 tokens of the largest weight still sum below 2**63
VOCAB_SIZE_MAX = 1 << (62 - WEIGHT_BITS)
TOP_K_SMALL = 64  # up to here a partial sort is faster than counting


@dataclass(frozen=True, slots=True)
class RowFilters:
    """Settings of each row; None where no row of the batch uses the filter."""

    temperature: Tensor  # [R] float64; 0 is read as 1
    top_k: Tensor | None = None  # [R] int64; 0: all
    is_top_k_small: bool = False  # every top_k is at most TOP_K_SMALL
    top_p: Tensor | None = None  # [R] float64
    min_p: Tensor | None = None  # [R] float64


def weights_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """float32 [R, V] and float64 [R] → int64 [R, V]; the largest of a row is 2**WEIGHT_BITS."""
    scale = torch.where(temperature == 0.0, 1.0, temperature).unsqueeze(1)
    shifted = logits.double()
    shifted -= logits.amax(1, keepdim=True)
    shifted /= scale
    shifted.exp_()
    shifted *= 2.0**WEIGHT_BITS
    return shifted.round_().to(torch.int64)


def _descending_keys(logits: Tensor) -> Tensor:
    """int32 [R, V] in the opposite order of the logits; equal logits have equal keys."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    return ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))


def _threshold(keys: Tensor, masses: Tensor, target: Tensor) -> Tensor:
    """The smallest key up to which the masses of a row sum to at least its target.

    A radix selection: a histogram of the keys' upper 16 bits, then one of the lower 16 inside the
    bucket found. Keys [R, V] int32, masses [R, V] int64, target [R] int64 → [R, 1] int64.
    """
    num_rows, num_buckets = keys.shape[0], 1 << 16
    base = torch.full((num_rows, 1), -num_buckets // 2, dtype=torch.int64, device=keys.device)
    for shift in (16, 0):
        # Bucket 0 takes all keys below this range, the last bucket all above it.
        index = (keys >> shift).to(torch.int64)
        index -= base - 1
        index.clamp_(0, num_buckets + 1)
        histogram = torch.zeros(
            (num_rows, num_buckets + 2), dtype=torch.int64, device=keys.device
        ).scatter_add_(1, index, masses)
        reached = torch.searchsorted(histogram.cumsum(1), target.unsqueeze(1))
        base = (base + reached - 1) << shift
    return base


def _is_among_best(logits: Tensor, top_k: Tensor) -> Tensor:
    """Top-k for small k, by a partial sort; bool [R, V]."""
    num_best = min(TOP_K_SMALL, logits.shape[1])
    best = logits.topk(num_best, dim=1).values
    last = best.gather(1, (top_k - 1).clamp(0, num_best - 1).unsqueeze(1))
    return logits >= torch.where(top_k.unsqueeze(1) == 0, -torch.inf, last)


def _rank_target(top_k: Tensor, vocab_size: int) -> Tensor:
    return torch.where(top_k == 0, vocab_size, top_k).clamp(max=vocab_size)


def _mass_target(weights: Tensor, top_p: Tensor) -> Tensor:
    total = weights.sum(1)
    # float64 may round the product above the total.
    return torch.minimum((top_p * total).ceil().to(torch.int64), total).clamp(min=1)


def _keep(weights: Tensor, is_kept: Tensor) -> None:
    """Sets all others to 0, in place; a product is faster on a CPU than `torch.where`."""
    weights *= is_kept.to(torch.int64)


def filtered_weights(logits: Tensor, filters: RowFilters) -> Tensor:
    """What each token would be drawn with, as integers: float32 [R, V] → int64 [R, V]."""
    weights = weights_of(logits, filters.temperature)
    top_k, top_p = filters.top_k, filters.top_p
    if top_k is not None and filters.is_top_k_small:
        _keep(weights, _is_among_best(logits, top_k))
    elif top_k is not None:
        keys = _descending_keys(logits)
        target = _rank_target(top_k, logits.shape[1])
        _keep(weights, keys <= _threshold(keys, torch.ones_like(weights), target))
    if top_p is not None:
        keys = _descending_keys(logits)
        _keep(weights, keys <= _threshold(keys, weights, _mass_target(weights, top_p)))
    if filters.min_p is not None:
        floor = (filters.min_p * 2.0**WEIGHT_BITS).ceil().to(torch.int64)
        _keep(weights, weights >= floor.unsqueeze(1))
    return weights


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The token at which the cumulative weight, in vocabulary order, passes u times the total.

    int64 [R, V] and float64 [R] → int64 [R]. A token of weight 0 is never drawn; a row without any
    weight (its logits were not numbers) gives some token of the vocabulary.
    """
    cumulative = weights.cumsum(1)
    total = cumulative[:, -1:]
    target = torch.minimum((uniforms.unsqueeze(1) * total).to(torch.int64), total - 1)
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return tokens.clamp_(max=weights.shape[1] - 1)
