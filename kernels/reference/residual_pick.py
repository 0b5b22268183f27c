"""The token after the accepted drafts, so that all together are distributed as the target's."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.sample import WEIGHT_BITS, draw, weights_of


def residual_pick(
    logits: Tensor,  # [S, N + 1, V]: as given to `verify_rejection`
    num_accepted: Tensor,  # [S] int64, 0..N
    uniforms: Tensor,  # [S]
    *,
    temperature: Tensor | None = None,  # [S]; 0: the sequence is greedy; None: all are
    draft_ids: Tensor | None = None,  # [S, N] int64; below 0: no draft at this place
    draft_probs: Tensor | None = None,  # [S, N, V]
    out: Tensor | None = None,
) -> Tensor:
    """int64 [S]: one token at place `num_accepted`.

    Where a draft was rejected it is drawn from max(p - q, 0), with q one-hot without `draft_probs`
    (Leviathan et al., 2023, algorithm 1); where there was none to reject (the place behind the last
    draft, or `draft_ids` below 0) from p. A residual without mass falls back to p. Without
    `draft_ids` all sequences draw from p. A greedy sequence takes its first largest logit.
    """
    num_rows, vocab_size = logits.shape[1:]
    at = num_accepted.view(-1, 1, 1)
    row = logits.gather(1, at.expand(-1, 1, vocab_size)).squeeze(1)
    tokens = row.argmax(dim=1)
    if temperature is not None:
        weights = weights_of(row, temperature)
        if draft_ids is not None and num_rows > 1:
            place = num_accepted.clamp(max=num_rows - 2).unsqueeze(1)
            rejected = draft_ids.gather(1, place)
            has_draft = (num_accepted.unsqueeze(1) < num_rows - 1) & (rejected >= 0)
            if draft_probs is None:
                residual = weights.scatter(1, rejected.clamp(min=0), 0)
            else:
                residual = _excess(weights, draft_probs, place)
            has_mass = residual.sum(dim=1, keepdim=True) > 0
            weights = torch.where(has_draft & has_mass, residual, weights)
        tokens = torch.where(temperature == 0.0, tokens, draw(weights, uniforms))
    return tokens if out is None else out.copy_(tokens)


def _excess(weights: Tensor, draft_probs: Tensor, place: Tensor) -> Tensor:
    """max(p - q, 0) as int64 [S, V], q at `place` [S, 1]."""
    index = place.unsqueeze(2).expand(-1, 1, weights.shape[1])
    given = draft_probs.gather(1, index).squeeze(1).double()
    target = weights.double() / weights.sum(dim=1, keepdim=True)
    return ((target - given).clamp_(min=0.0) * 2.0**WEIGHT_BITS).round_().to(torch.int64)
