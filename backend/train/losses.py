"""The losses of all methods, on rows of states, without ever holding all logits at once.

A head's logits are large (a row of them has as many numbers as the draft vocabulary) and are wanted
for one number a row. So rows are taken in pieces that fit the processor's cache, and the gradient
is made in the same pass; the matrix that projects is the target's and stays as it is.

Shapes: N rows, H hidden, r Markov rank, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PIECE_NUMBERS = 4 << 20  # logits held at a time


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Of one row's terms: cross entropy with the text, with the target's distribution (forward KL
    but for a constant), and the L1 distance to it, which is twice the chance of a rejection."""

    text: float = 0.0
    soft: float = 0.0
    distance: float = 0.0


@dataclass(frozen=True, slots=True)
class Rows:
    """What N rows are to predict.

    `target_states` [N, H], behind the target's last norm: `table` makes its logits of them.
    `labels` [N]: draft ids of the text, -1 for a token that cannot be drafted, whose weight must be
    0. `weights` [N] sum to what the loss is worth.
    """

    target_states: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class RowLosses:
    """`loss` has a gradient; the others [N] have none. `overlap`: how likely a draft that is drawn
    is accepted, 1 - L1 / 2; `is_hit`: the likeliest draft is what the text says."""

    loss: Tensor
    overlap: Tensor
    is_hit: Tensor


def row_losses(
    states: Tensor,
    table: Tensor,
    rows: Rows,
    weights: LossWeights,
    *,
    latent: Tensor | None = None,
    bias_table: Tensor | None = None,
) -> RowLosses:
    """`states` [N, H] of the head behind its norm, `table` [Vd, H]: the lent rows of the target's
    head. `latent` [N, r] and `bias_table` [Vd, r]: the Markov head's part of the logits.

    All of one type, in which is multiplied; what is summed over a row is float32.
    """
    loss, overlap, is_hit = _Projected.apply(  # type: ignore[no-untyped-call]  # torch's has no types
        states, table, latent, bias_table, (rows, weights)
    )
    return RowLosses(loss, overlap, is_hit)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        table: Tensor,
        latent: Tensor | None,
        bias_table: Tensor | None,
        wanted: tuple[Rows, LossWeights],
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, weights = wanted
        needs = ctx.needs_input_grad
        grads = _Gradients(
            torch.zeros_like(states),
            _sum_like(table) if needs[1] else None,
            None if latent is None else torch.zeros_like(latent),
            None if bias_table is None else _sum_like(bias_table),
        )
        total = states.new_zeros((), dtype=torch.float32)
        overlap = torch.empty(states.shape[0], device=states.device)
        is_hit = torch.empty(states.shape[0], dtype=torch.bool, device=states.device)
        size = max(1, PIECE_NUMBERS // table.shape[0])
        for at in range(0, states.shape[0], size):
            piece = slice(at, at + size)
            logits = (states[piece] @ table.T).float()
            if latent is not None and bias_table is not None:
                logits += latent[piece] @ bias_table.T
            target = (rows.target_states[piece] @ table.T).float()
            is_hit[piece] = logits.argmax(1) == rows.labels[piece]
            losses, slope, overlap[piece] = _terms(
                logits, target, rows.labels[piece].clamp_min(0), weights
            )
            total += (losses * rows.weights[piece]).sum()
            slope *= rows.weights[piece].unsqueeze(1)
            grads.add(piece, slope, states, table, latent, bias_table)
        ctx.grads = grads
        ctx.mark_non_differentiable(overlap, is_hit)
        return total, overlap, is_hit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale, own = grads[0], ctx.grads
        dtype = own.states.dtype
        scaled = [
            None if each is None else (each * scale.to(each.dtype)).to(dtype)
            for each in (own.states, own.table, own.latent, own.bias_table)
        ]
        return (*scaled, None)


def _sum_like(table: Tensor) -> Tensor:
    """Pieces are summed up in float32."""
    return torch.zeros(table.shape, dtype=torch.float32, device=table.device)


@dataclass(slots=True)
class _Gradients:
    states: Tensor
    table: Tensor | None
    latent: Tensor | None
    bias_table: Tensor | None

    def add(
        self,
        piece: slice,
        slope: Tensor,
        states: Tensor,
        table: Tensor,
        latent: Tensor | None,
        bias_table: Tensor | None,
    ) -> None:
        """`slope` [n, Vd]: the loss's, by logits."""
        narrow = slope.to(states.dtype)
        self.states[piece] = narrow @ table
        if self.table is not None:
            self.table += narrow.T @ states[piece]
        if self.latent is not None and self.bias_table is not None:
            assert latent is not None
            assert bias_table is not None
            self.latent[piece] = narrow @ bias_table
            self.bias_table += narrow.T @ latent[piece]


def _terms(
    logits: Tensor, target: Tensor, labels: Tensor, weights: LossWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss [n], its slope by logits [n, Vd], overlap [n]) of float32 logits [n, Vd]."""
    norm = torch.logsumexp(logits, 1, keepdim=True)
    q, p = (logits - norm).exp_(), torch.softmax(target, 1)
    difference = q - p
    distance = difference.abs().sum(1)
    losses = weights.distance * distance
    slope = weights.soft * difference
    if weights.distance:
        sign = difference.sign_()
        sign -= (q * sign).sum(1, keepdim=True)
        slope += weights.distance * q * sign
    if weights.soft:
        losses = losses + weights.soft * (norm.squeeze(1) - (p * logits).sum(1))
    if weights.text:
        picked = logits.gather(1, labels.unsqueeze(1))
        losses = losses + weights.text * (norm - picked).squeeze(1)
        slope += weights.text * q
        slope.scatter_add_(1, labels.unsqueeze(1), torch.full_like(picked, -weights.text))
    return losses, slope, 1.0 - 0.5 * distance
