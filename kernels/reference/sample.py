"""One token a row: filters, then the inverse of the cumulative distribution at one uniform number.

Probabilities are held as integers: exp((logit - max) / t) · 2**44, rounded. Integer sums do not
depend on their order, so a row's token is the same alone and in any batch, on every device. The
rounding moves a probability by less than 1e-13 of the row's largest.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WEIGHT_BITS = 44  # 2**18 tokens of the largest weight still sum below 2**63
VOCAB_SIZE_MAX = 1 << (62 - WEIGHT_BITS)
COLDEST = 1e-300
_BLOCKS = (256, 128, 512, 64, 1024)


def sample(
    logits: Tensor,  # [R, V]
    uniforms: Tensor,  # [R] float32 or float64, at least 0 and below 1
    *,
    temperature: Tensor | None = None,  # [R]; 0: the row is greedy; None: all are
    top_k: Tensor | None = None,  # [R] int64; 0: all
    top_p: Tensor | None = None,  # [R]
    min_p: Tensor | None = None,  # [R]
    top_k_max: int | None = None,  # no top_k is larger; a small one saves time
    out: Tensor | None = None,
) -> Tensor:
    """int64 [R]: the token at which the cumulative weight, in vocabulary order, passes uniform ·
    total. A greedy row gives its first largest logit.

    Filters apply in the order of the arguments, each to what the one before it left: the `top_k`
    likeliest; the fewest likeliest that hold `top_p` of the mass; those of at least `min_p` times
    the likeliest. What ties with the last one kept is kept. At most VOCAB_SIZE_MAX tokens.
    """
    if temperature is None:
        tokens = first_largest(logits)
    else:
        is_greedy = temperature == 0.0
        # So cold that only the largest logit keeps a weight: the draw at 0 is then its first.
        weights = filtered_weights(
            logits,
            torch.where(is_greedy, COLDEST, temperature.double()),
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            top_k_max=top_k_max,
        )
        tokens = draw(weights, torch.where(is_greedy, 0.0, uniforms))
    return tokens if out is None else out.copy_(tokens)


def first_largest(logits: Tensor) -> Tensor:
    """[R, V] → int64 [R]: argmax, the first one where several tie.

    Looks for the block that holds it first: on a CPU torch takes maxima with vector instructions,
    but not their places.
    """
    block = _block_of(logits.shape[1])
    if block == 0:
        return logits.argmax(dim=1)
    blocks = logits.view(logits.shape[0], -1, block)
    best = blocks.amax(dim=2).argmax(dim=1, keepdim=True)
    inside = blocks.take_along_dim(best.unsqueeze(2), dim=1).squeeze(1)
    return (best * block).squeeze(1) + inside.argmax(dim=1)


@cache
def _block_of(vocab_size: int) -> int:
    """A divisor near the square root; 0 if there is none that saves anything."""
    return next((size for size in _BLOCKS if vocab_size % size == 0 and vocab_size > size), 0)


def filtered_weights(
    logits: Tensor,
    temperature: Tensor,
    *,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    top_k_max: int | None = None,
) -> Tensor:
    """int64 [R, V]: what `sample` draws with; 0 for what a filter took out."""
    weights = weights_of(logits, temperature)
    if top_k is not None and top_k_max is not None:
        keep(weights, is_among_best(logits, top_k, top_k_max))
    elif top_k is not None:
        keep(weights, is_in_top_k(logits, top_k))
    if top_p is not None:
        keep(weights, is_in_top_p(logits, weights, top_p))
    if min_p is not None:
        keep(weights, is_in_min_p(weights, min_p))
    return weights


def weights_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """int64 [R, V], 2**WEIGHT_BITS for the largest of a row. A temperature of 0 is read as 1."""
    divisor = torch.where(temperature == 0.0, 1.0, temperature).double().unsqueeze(1)
    shifted = logits.double()
    shifted -= logits.amax(dim=1, keepdim=True)
    shifted /= divisor
    shifted.exp_()
    shifted *= 2.0**WEIGHT_BITS
    return shifted.round_().to(torch.int64)


def keep(weights: Tensor, is_kept: Tensor) -> None:
    """Sets all others to 0, in place; a product is faster on a CPU than `torch.where`."""
    weights *= is_kept.to(torch.int64)


def is_among_best(logits: Tensor, top_k: Tensor, top_k_max: int) -> Tensor:
    """The same as `is_in_top_k` by a partial sort of the best `top_k_max`."""
    num_best = min(top_k_max, logits.shape[1])
    best = logits.topk(num_best, dim=1).values
    last = best.gather(1, (top_k - 1).clamp(0, num_best - 1).unsqueeze(1))
    return logits >= torch.where(top_k.unsqueeze(1) == 0, -torch.inf, last)


def is_in_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """bool [R, V]."""
    vocab_size = logits.shape[1]
    keys = _descending_keys(logits)
    target = torch.where(top_k == 0, vocab_size, top_k).clamp(max=vocab_size)
    return keys <= _threshold(keys, torch.ones_like(keys, dtype=torch.int64), target)


def is_in_top_p(logits: Tensor, weights: Tensor, top_p: Tensor) -> Tensor:
    """bool [R, V]; of the tokens that still have a weight."""
    total = weights.sum(dim=1)
    # float64 may round the product above the total.
    target = torch.minimum((top_p.double() * total).ceil().to(torch.int64), total).clamp(min=1)
    keys = _descending_keys(logits)
    return keys <= _threshold(keys, weights, target)


def is_in_min_p(weights: Tensor, min_p: Tensor) -> Tensor:
    """bool [R, V]."""
    floor = (min_p.double() * 2.0**WEIGHT_BITS).ceil().to(torch.int64)
    return weights >= floor.unsqueeze(1)


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """int64 [R, V] and [R] → int64 [R]. A token of weight 0 is never drawn; a row without any
    weight (its logits were not numbers) gives some token of the vocabulary.
    """
    cumulative = weights.cumsum(dim=1)
    total = cumulative[:, -1:]
    target = (uniforms.double().unsqueeze(1) * total).to(torch.int64)
    tokens = torch.searchsorted(cumulative, torch.minimum(target, total - 1), right=True)
    return tokens.squeeze(1).clamp_(max=weights.shape[1] - 1)


def _descending_keys(logits: Tensor) -> Tensor:
    """int32 [R, V] in the opposite order of the logits; equal logits have equal keys."""
    bits = (logits.float() + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    return ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))


def _threshold(keys: Tensor, masses: Tensor, target: Tensor) -> Tensor:
    """[R, 1] int64: the smallest key up to which the masses of a row reach its target.

    A radix selection: a histogram of the keys' upper 16 bits, then one of the lower 16 inside the
    bucket found. No sort, and the masses are summed exactly.
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
        reached = torch.searchsorted(histogram.cumsum(dim=1), target.unsqueeze(1))
        base = (base + reached - 1) << shift
    return base
