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
    if proposal is None:
        return _plain(logits.flatten(0, 1), slots, positions, sampler, traits)
    num_sequences, num_rows, _ = logits.shape
    rows = (num_sequences, num_rows)
    place = torch.arange(num_rows, device=logits.device)
    every_position = positions.unsqueeze(1) + place
    if traits.is_counting:
        tokens = _choose_in_turn(logits, proposal, slots, every_position, sampler, traits)
    else:
        every_slot = slots.unsqueeze(1).expand(rows).flatten()
        tokens = sampler.choose(logits.flatten(0, 1), every_slot, every_position.flatten(), traits)
    sampled = sampler.describe(logits.flatten(0, 1), tokens.flatten(), traits)
    tokens = tokens.view(rows)
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


def _plain(
    logits: Tensor, slots: Tensor, positions: Tensor, sampler: Sampler, traits: BatchTraits
) -> Verified:
    """[S, V]: one token each, of nobody's draft."""
    sampled = sampler.sample(logits, slots, positions, traits)
    rows = (logits.shape[0], 1)
    return Verified(
        tokens=sampled.tokens.view(rows),
        num_tokens=torch.ones_like(slots),
        logprobs=_unflatten(sampled.logprobs, rows),
        top_ids=_unflatten(sampled.top_ids, rows),
        top_logprobs=_unflatten(sampled.top_logprobs, rows),
    )


def _choose_in_turn(
    logits: Tensor,
    proposal: Drafts,
    slots: Tensor,
    positions: Tensor,
    sampler: Sampler,
    traits: BatchTraits,
) -> Tensor:
    """Row after row, each with the drafts before it counted; positions [S, N + 1] → tokens."""
    drafts = proposal.token_ids.clamp(0, sampler.vocab_size - 1)
    counts = sampler.tables.counts[slots]
    tokens = []
    for row in range(logits.shape[1]):
        if row:
            draft = drafts[:, row - 1 : row]
            counts.scatter_add_(1, draft, torch.ones_like(draft, dtype=torch.int32))
        tokens.append(sampler.choose(logits[:, row], slots, positions[:, row], traits, counts))
    return torch.stack(tokens, 1)


def _unflatten(flat: Tensor | None, rows: tuple[int, int]) -> Tensor | None:
    return None if flat is None else flat.view(*rows, *flat.shape[1:])
