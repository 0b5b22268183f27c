"""How many drafts of each sequence stand: rejection sampling against the target."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.reference.sample import weights_of


def verify_rejection(
    logits: Tensor,  # [S, N + 1, V]: after penalties; -inf where a filter took a token out
    draft_ids: Tensor,  # [S, N] int64
    num_valid: Tensor,  # [S] int64: drafts that count
    uniforms: Tensor,  # [S, N]
    *,
    temperature: Tensor | None = None,  # [S]; 0: the sequence is greedy; None: all are
    draft_probs: Tensor | None = None,  # [S, N, V]: what the drafts were drawn from
    out: Tensor | None = None,
) -> Tensor:
    """int64 [S]: accepted drafts, from the front, at most `num_valid`.

    Draft x at place i is accepted while u · q(x) ≤ p(x), with p the target's probability after
    temperature and q the draft's, or 1 without `draft_probs` (Leviathan et al., 2023, algorithm 1;
    Chen et al., 2023). A greedy sequence accepts while x is its first largest logit. The uniforms
    must be others than those the drafts and `residual_pick` use.
    """
    num_sequences, num_drafts = draft_ids.shape
    judged = logits[:, :num_drafts]
    places = torch.arange(num_drafts, device=logits.device)
    ids = draft_ids.clamp(0, logits.shape[2] - 1)
    is_accepted = judged.argmax(dim=2) == draft_ids
    if temperature is not None and num_drafts:
        each = temperature.repeat_interleave(num_drafts, output_size=num_sequences * num_drafts)
        weights = weights_of(judged.flatten(0, 1), each).view(judged.shape)
        of_draft = weights.gather(2, ids.unsqueeze(2)).squeeze(2).double()
        bar = uniforms.double() * weights.sum(dim=2)
        if draft_probs is not None:
            bar = bar * draft_probs.gather(2, ids.unsqueeze(2)).squeeze(2)
        is_drawn = (bar <= of_draft) & (of_draft > 0)
        is_accepted = torch.where((temperature == 0.0).unsqueeze(1), is_accepted, is_drawn)
    is_accepted = is_accepted & (places < num_valid.unsqueeze(1))
    counts = is_accepted.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return counts if out is None else out.copy_(counts)
