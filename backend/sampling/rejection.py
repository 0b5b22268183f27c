"""Rejection sampling of drafts: the text is distributed as the target's, whatever was drafted.

For requests without a seed whose drafts were drawn from known probabilities; all others are
verified by matching (`verify.py`). Pure functions of tensors: the same uniforms give the same
tokens. p is the target's distribution as the logits hold it, q what a draft was drawn from.

- `standard`: each draft by itself, then the residual (Leviathan et al., 2023, algorithm 1; Chen et
  al., 2023). Without q the drafts are one-hot: x is accepted with probability p(x), and where it is
  not, the token comes from p without x.
- `block`: how many drafts stand is decided for all of them together (Sun et al., Block Verification
  Accelerates Speculative Decoding, 2024, algorithm 2). In expectation never fewer; with one-hot
  drafts the same as `standard`.

Shapes: S sequences, N drafts each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import Rejection
from kernels.dispatch import Ops
from kernels.reference.sample import weights_of


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafts beside what the target says of them."""

    logits: Tensor  # [S, N + 1, V]: -inf where a filter took a token out
    temperature: Tensor  # [S]; 0: greedy
    draft_ids: Tensor  # [S, N] int64
    num_valid: Tensor  # [S] int64: drafts that count
    draft_probs: Tensor | None = None  # [S, N, V]; None: one-hot


@dataclass(frozen=True, slots=True)
class Accepted:
    """So many drafts stand, and behind them one token of the target's."""

    num_accepted: Tensor  # [S] int64, 0 to `num_valid`
    tokens: Tensor  # [S] int64


# (drafts, uniforms [S, N + 1]: one for each draft, the last for the token behind them).
Rule = Callable[[Drafted, Tensor, Ops], Accepted]


def standard(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
    """Draft by draft: x stands while u · q(x) ≤ p(x); then (p - q)+, or p where all stand."""
    num_accepted = ops.verify_rejection(
        given.logits,
        given.draft_ids,
        given.num_valid,
        uniforms[:, :-1],
        temperature=given.temperature,
        draft_probs=given.draft_probs,
    )
    tokens = ops.residual_pick(
        given.logits,
        num_accepted,
        uniforms[:, -1],
        temperature=given.temperature,
        draft_ids=_known_ids(given),
        draft_probs=given.draft_probs,
    )
    return Accepted(num_accepted, tokens)


def block(given: Drafted, uniforms: Tensor, ops: Ops) -> Accepted:
    """All drafts together; behind the τ that stand (P_τ · p - q)+, or p where all stand.

    P_i = min(1, P_i-1 · p(x_i) / q(x_i)) is the chance that the first i drafts stand together, had
    they to be judged without those behind them.
    """
    if given.draft_probs is None:
        return standard(given, uniforms, ops)
    num_drafts = given.draft_ids.shape[1]
    chances, bars = _chances(given, given.draft_probs)
    places = torch.arange(1, num_drafts + 1, device=uniforms.device)
    is_standing = (uniforms[:, :-1] <= bars) & (places <= given.num_valid.unsqueeze(1))
    num_accepted = (is_standing * places).amax(1)
    # (P · p - q)+ has the shape of (p - q / P)+, which the op for the residual draws from.
    at = num_accepted.view(-1, 1, 1)
    row = given.logits.gather(1, at.expand(-1, 1, given.logits.shape[2]))
    place = num_accepted.clamp(max=num_drafts - 1)
    chance = chances.gather(1, place.unsqueeze(1)).unsqueeze(2)
    index = place.view(-1, 1, 1).expand(-1, 1, row.shape[2])
    tokens = ops.residual_pick(
        row.expand(-1, 2, -1),
        torch.zeros_like(num_accepted),
        uniforms[:, -1],
        temperature=given.temperature,
        draft_ids=_known_ids(given)
        .gather(1, place.unsqueeze(1))
        .masked_fill((num_accepted == num_drafts).unsqueeze(1), -1),
        draft_probs=given.draft_probs.gather(1, index).double() / chance,
    )
    return Accepted(num_accepted, tokens)


RULES: Mapping[Rejection, Rule] = {Rejection.BLOCK: block, Rejection.STANDARD: standard}


def _known_ids(given: Drafted) -> Tensor:
    """-1 where there is no draft: nothing is rejected there."""
    places = torch.arange(given.draft_ids.shape[1], device=given.draft_ids.device)
    return torch.where(places < given.num_valid.unsqueeze(1), given.draft_ids, -1)


def _chances(given: Drafted, draft_probs: Tensor) -> tuple[Tensor, Tensor]:
    """P_0 … P_N and, for each number i > 0 of drafts, what u_i may be at most: [S, N + 1], [S, N].

    With R_i = Σ_v (P_i · p_i(v) - q_i+1(v))+ the bar is R_i / (R_i + 1 - P_i); for the whole of
    what was drafted it is P itself.
    """
    logits, ids = given.logits, given.draft_ids.clamp(0, given.logits.shape[2] - 1)
    num_sequences, num_drafts = ids.shape
    chance = torch.ones(num_sequences, dtype=torch.float64, device=ids.device)
    chances, bars = [chance], []
    for place in range(num_drafts):
        target = _probs(logits[:, place], given.temperature)
        drawn_from = draft_probs[:, place].double()
        if place:
            excess = (chance.unsqueeze(1) * target - drawn_from).clamp_(min=0.0).sum(1)
            other = excess + 1.0 - chance
            bar = torch.where(other > 0.0, excess / other, 1.0)
            bars.append(torch.where(given.num_valid == place, chance, bar))
        of_target, of_draft = (
            each.gather(1, ids[:, place : place + 1]).squeeze(1) for each in (target, drawn_from)
        )
        # Of probability 0 it was not drawn from q at all; then it counts where p knows it.
        ratio = torch.where(of_draft > 0.0, of_target / of_draft, (of_target > 0.0).double())
        chance = (chance * ratio).clamp(max=1.0)
        chances.append(chance)
    return torch.stack(chances, 1), torch.stack([*bars, chance], 1)


def _probs(logits: Tensor, temperature: Tensor) -> Tensor:
    """float64 [S, V]."""
    weights = weights_of(logits, temperature)
    return weights.double() / weights.sum(1, keepdim=True)
