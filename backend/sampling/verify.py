"""Drafts against the target's own choice: how many tokens of a step stand.

Sample-and-match: the target draws its token at every position as plain decoding would, with the
noise of that position; a draft is accepted while it equals that token. What comes out is what plain
decoding gives, token for token, whatever was drafted. Greedy is the same with argmax as the draw.

A pure function of tensors. Shapes: S sequences, N drafts each, V vocabulary, K best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.sampling.sampler import BatchTraits, Sampler


class Drafts(Protocol):
    """What verification reads of a proposal."""

    @property
    def token_ids(self) -> Tensor: ...  # [S, N] int64
    @property
    def num_valid(self) -> Tensor: ...  # [S] int64, at most N


@dataclass(frozen=True, slots=True)
class Verified:
    """The tokens of a step: accepted drafts, then one of the target's own (recovered or bonus).

    Behind `num_tokens[s]` a row of `tokens` holds 0 and the other fields mean nothing.
    """

    tokens: Tensor  # [S, N + 1] int64
    num_tokens: Tensor  # [S] int64, 1 to N + 1
    logprobs: Tensor | None = None  # [S, N + 1] float32
    top_ids: Tensor | None = None  # [S, N + 1, K] int64
    top_logprobs: Tensor | None = None  # [S, N + 1, K] float32


def verify(
    logits: Tensor,
    proposal: Drafts | None,
    slots: Tensor,
    positions: Tensor,
    sampler: Sampler,
    traits: BatchTraits,
) -> Verified:
    """float32 [S, N + 1, V] → the tokens that stand; without a proposal N is 0.

    `positions` [S]: where the first token will stand. Row j of the logits follows the first j
    drafts, so its penalties count those as if they were committed; nothing is committed here.
    """
    num_sequences, num_rows, _ = logits.shape
    rows = (num_sequences, num_rows)
    place = torch.arange(num_rows, device=logits.device)
    adjusted = _adjust_by_position(logits, proposal, slots, sampler, traits)
    sampled = sampler.finish(
        logits.flatten(0, 1),
        adjusted.flatten(0, 1),
        slots.unsqueeze(1).expand(rows).flatten(),
        (positions.unsqueeze(1) + place).flatten(),
        traits,
    )
    tokens = sampled.tokens.view(rows)
    if proposal is None:
        num_tokens = torch.ones_like(slots)
    else:
        is_match = (tokens[:, :-1] == proposal.token_ids) & (
            place[:-1] < proposal.num_valid.unsqueeze(1)
        )
        num_tokens = is_match.to(torch.int64).cumprod(1).sum(1) + 1
    return Verified(
        tokens=torch.where(place < num_tokens.unsqueeze(1), tokens, 0),
        num_tokens=num_tokens,
        logprobs=_unflatten(sampled.logprobs, rows),
        top_ids=_unflatten(sampled.top_ids, rows),
        top_logprobs=_unflatten(sampled.top_logprobs, rows),
    )


def _adjust_by_position(
    logits: Tensor,
    proposal: Drafts | None,
    slots: Tensor,
    sampler: Sampler,
    traits: BatchTraits,
) -> Tensor:
    if not traits.is_adjusting:
        return logits
    num_rows = logits.shape[1]
    counts = sampler.tables.counts[slots] if traits.is_counting else None
    adjusted = []
    for row in range(num_rows):
        adjusted.append(sampler.adjust(logits[:, row], slots, traits, counts))
        if counts is not None and proposal is not None and row + 1 < num_rows:
            draft = proposal.token_ids[:, row : row + 1].clamp(0, sampler.vocab_size - 1)
            counts.scatter_add_(1, draft, torch.ones_like(draft, dtype=torch.int32))
    return torch.stack(adjusted, 1)


def _unflatten(flat: Tensor | None, rows: tuple[int, int]) -> Tensor | None:
    return None if flat is None else flat.view(*rows, *flat.shape[1:])
