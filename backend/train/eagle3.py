"""Training of EAGLE-3: the "training-time test" of arXiv 2503.01840, section 3.2.

The head is unrolled over as many drafts as it is to make, each on its own states of the draft
before; the text is teacher-forced. Position t of step s learns the target's distribution of the
token at t + s + 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.speculate.heads.eagle3 import Eagle3Head
from backend.train.corpus import Batch
from backend.train.counting import count, spread
from backend.train.losses import Rows, row_losses
from backend.train.method import LossSettings, StepLoss, table_of


def loss(
    head: Eagle3Head, batch: Batch, labels: Tensor, given: LossSettings, rng: torch.Generator
) -> StepLoss:
    """Each text counts the same, whatever its length, so that long ones do not rule (DeepSpec)."""
    del rng  # every position is trained
    table = table_of(head, given.dtype)
    next_tokens = _shifted(batch.token_ids, 1)
    total = torch.zeros((), device=labels.device)
    places: list[tuple[Tensor, Tensor]] = []
    for step, states in enumerate(head.unroll(batch.features, next_tokens, given.num_drafts)):
        is_there = _shifted(batch.is_answer, 1) & _shifted(batch.is_answer, step + 2)
        wanted = _shifted(labels, step + 2)[is_there]
        per_text = is_there.sum(1, keepdim=True).clamp_min(1).expand_as(is_there)[is_there]
        weights = given.decay**step / (per_text * len(is_there))
        found = row_losses(
            head.norm(states[is_there]).to(given.dtype),
            table,
            Rows(
                _shifted(batch.last, step + 1)[is_there].to(given.dtype),
                wanted,
                weights * (wanted >= 0),
            ),
            given.weights,
        )
        total = total + found.loss
        places.append((is_there, spread(found.is_hit, is_there)))
    return StepLoss(total, count(places))


def _shifted(values: Tensor, by: int) -> Tensor:
    """[B, L, …]: at t what stands at t + by; zero behind the end."""
    moved = torch.zeros_like(values)
    if by < values.shape[1]:
        moved[:, : values.shape[1] - by] = values[:, by:]
    return moved
