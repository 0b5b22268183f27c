"""Drafts against the target's own choice: how many tokens of a step stand.

Sample-and-match: the target draws its token at every position as plain decoding would, with the
noise of that position; a draft is accepted while it equals that token. What comes out is what plain
decoding gives, token for token, whatever was drafted. Greedy is the same with argmax as the draw.

A pure function of tensors. Shapes: S sequences, N drafts each, V vocabulary, K best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from backend.sampling.noise import round_uniforms
from backend.sampling.rejection import Drafted, Rule, block
from backend.sampling.sampler import BatchTraits, Sampler


class Drafts(Protocol):
    """What verification reads of a proposal."""

    @property
    def token_ids(self) -> Tensor: ...  # [S, N] int64
    @property
    def num_valid(self) -> Tensor: ...  # [S] int64, at most N
    @property
    def probs(self) -> Tensor | None: ...  # [S, N, V]: what they were drawn from


@dataclass(frozen=True, slots=True)
class Verified:
    """The tokens of a step: accepted drafts, then one of the target's own (recovered or bonus).

    Behind `num_tokens[s]` a row of `tokens` holds 0 and the other fields mean nothing.
    """

    tokens: Tensor  # [S, N + 1] int64
    num_tokens: Tensor  # [S] int64, 1 to N + 1
    num_drafted: Tensor | None = None  # [S] int64, 0 to N; None: no drafts in this step
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
    *,
    rule: Rule = block,
) -> Verified:
    """float32 [S, N + 1, V] → the tokens that stand; without a proposal N is 0.

    `positions` [S]: where the first token will stand. Row j of the logits follows the first j
    drafts, so its penalties count those as if they were committed; nothing is committed here.
    """
    if proposal is None:
        return _plain(logits.flatten(0, 1), slots, positions, sampler, traits)
    asked = _Asked(logits, proposal, slots, positions, sampler, traits)
    if proposal.probs is None or not traits.has_seedless:
        tokens, num_tokens = _match(asked)
    elif traits.is_all_seedless:
        tokens, num_tokens = _reject(asked, proposal.probs, rule)
    else:
        is_seedless = sampler.is_seedless(slots)
        rejected, matched = _reject(asked, proposal.probs, rule), _match(asked)
        tokens = torch.where(is_seedless.unsqueeze(1), rejected[0], matched[0])
        num_tokens = torch.where(is_seedless, rejected[1], matched[1])
    sampled = sampler.describe(logits.flatten(0, 1), tokens.flatten(), traits)
    rows = tuple(tokens.shape)
    return Verified(
        tokens=tokens,
        num_tokens=num_tokens,
        num_drafted=proposal.num_valid,
        logprobs=_unflatten(sampled.logprobs, rows),
        top_ids=_unflatten(sampled.top_ids, rows),
        top_logprobs=_unflatten(sampled.top_logprobs, rows),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of `verify`."""

    logits: Tensor
    proposal: Drafts
    slots: Tensor
    positions: Tensor
    sampler: Sampler
    traits: BatchTraits

    def places(self) -> Tensor:
        return torch.arange(self.logits.shape[1], device=self.logits.device)

    def counts(self) -> Iterator[tuple[int, Tensor]]:
        """Row after row, how often each token stands before it, the drafts among them."""
        drafts = self.proposal.token_ids.clamp(0, self.sampler.vocab_size - 1)
        counts = self.sampler.tables.counts[self.slots]
        for row in range(self.logits.shape[1]):
            if row:
                draft = drafts[:, row - 1 : row]
                counts.scatter_add_(1, draft, torch.ones_like(draft, dtype=torch.int32))
            yield row, counts


def _match(asked: _Asked) -> tuple[Tensor, Tensor]:
    """Sample-and-match: tokens [S, N + 1] and how many of them stand [S]."""
    proposal, place = asked.proposal, asked.places()
    tokens = _choose(asked, place)
    is_match = (tokens[:, :-1] == proposal.token_ids) & (
        place[:-1] < proposal.num_valid.unsqueeze(1)
    )
    num_tokens = is_match.to(torch.int64).cumprod(1).sum(1) + 1
    return torch.where(place < num_tokens.unsqueeze(1), tokens, 0), num_tokens


def _choose(asked: _Asked, place: Tensor) -> Tensor:
    """The target's own tokens [S, N + 1]."""
    logits, slots, sampler, traits = asked.logits, asked.slots, asked.sampler, asked.traits
    if traits.is_plain_greedy:
        rows = logits.flatten(0, 1)
        # Noise is not read, so it may be anything.
        return sampler.ops.sample(rows, rows[:, 0]).view(logits.shape[:2])
    positions = asked.positions.unsqueeze(1) + place
    if traits.is_counting:
        in_turn = [
            sampler.choose(logits[:, row], slots, positions[:, row], traits, counts)
            for row, counts in asked.counts()
        ]
        return torch.stack(in_turn, 1)
    every_slot = slots.unsqueeze(1).expand(positions.shape).flatten()
    tokens = sampler.choose(logits.flatten(0, 1), every_slot, positions.flatten(), traits)
    return tokens.view(positions.shape)


def _reject(asked: _Asked, probs: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """Accepted drafts and one token more: tokens [S, N + 1] and how many of them stand [S]."""
    proposal, sampler, slots = asked.proposal, asked.sampler, asked.slots
    place = asked.places()
    drafts = proposal.token_ids.clamp(0, sampler.vocab_size - 1)
    drafted = Drafted(
        logits=_filtered(asked),
        temperature=sampler.temperatures(slots),
        draft_ids=drafts,
        num_valid=proposal.num_valid,
        draft_probs=probs,
    )
    noise = round_uniforms(sampler.seeds(slots), asked.positions, place.shape[0])
    accepted = rule(drafted, noise, sampler.ops)
    num_accepted = accepted.num_accepted.unsqueeze(1)
    tokens = torch.where(place < num_accepted, functional.pad(drafts, (0, 1)), 0)
    tokens = torch.where(place == num_accepted, accepted.tokens.unsqueeze(1), tokens)
    return tokens, accepted.num_accepted + 1


def _filtered(asked: _Asked) -> Tensor:
    """[S, N + 1, V]: what each row draws from."""
    logits, slots, sampler, traits = asked.logits, asked.slots, asked.sampler, asked.traits
    if traits.is_counting:
        in_turn = [
            sampler.filtered(logits[:, row], slots, traits, counts)
            for row, counts in asked.counts()
        ]
        return torch.stack(in_turn, 1)
    every_slot = slots.unsqueeze(1).expand(logits.shape[:2]).flatten()
    return sampler.filtered(logits.flatten(0, 1), every_slot, traits).view(logits.shape)


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


def _unflatten(flat: Tensor | None, rows: tuple[int, ...]) -> Tensor | None:
    return None if flat is None else flat.view(*rows, *flat.shape[1:])
