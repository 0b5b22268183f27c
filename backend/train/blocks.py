"""Blocks to train DFlash and DSpark on: where they stand and what their places predict.

Shapes: B texts, L positions, A anchors a text, N places of a block, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backend.train.corpus import Batch

# More blocks of one text would need more memory at once than they are worth.
ANCHORS_MAX = 512


@dataclass(frozen=True, slots=True)
class Blocks:
    """Place j of a block at anchor a predicts the token at a + 1 + j, whatever the method."""

    anchors: Tensor  # [B, A] int64
    is_there: Tensor  # [B, A, N] bool: the anchor is real and the target wrote that token
    token_ids: Tensor  # [B, A, N + 1]: of the text, from the anchor on

    @property
    def anchor_tokens(self) -> Tensor:
        return self.token_ids[..., 0]

    @property
    def previous(self) -> Tensor:
        """[B, A, N]: the token before each place's."""
        return self.token_ids[..., :-1]

    def target_states(self, last: Tensor) -> Tensor:
        """[M, H]: what the target says of each place that is there; `last` [B, L, H]."""
        num_places = self.is_there.shape[2]
        offsets = torch.arange(num_places, device=last.device)
        at = (self.anchors.unsqueeze(-1) + offsets).clamp_max(last.shape[1] - 1)
        texts = torch.arange(last.shape[0], device=last.device).view(-1, 1, 1).expand_as(at)
        return last[texts[self.is_there], at[self.is_there]]


def choose(batch: Batch, num_places: int, share: float, rng: torch.Generator) -> Blocks:
    """Anchors are tokens that the target wrote and went on from; `share` of them, by chance.

    Each text gets one at least, if it has any.
    """
    is_answer = batch.is_answer
    length = is_answer.shape[1]
    can = is_answer.clone()
    can[:, :-1] &= is_answer[:, 1:]
    can[:, -1] = False
    num_can = can.sum(1)
    wanted = (num_can * share).ceil().clamp(max=ANCHORS_MAX).to(torch.int64)
    num_anchors = max(1, int(wanted.max()))
    # The real candidates first, in random order.
    noise = torch.rand(can.shape, generator=rng).to(can.device)
    order = torch.where(can, noise, noise + 2.0).argsort(1)[:, :num_anchors]
    is_real = torch.arange(num_anchors, device=can.device) < wanted.unsqueeze(1)
    anchors = torch.where(is_real, order, 0)
    at = anchors.unsqueeze(-1) + torch.arange(num_places + 1, device=can.device)
    inside = at.clamp_max(length - 1)
    texts = torch.arange(len(can), device=can.device).view(-1, 1, 1).expand_as(at)
    is_there = (at < length) & is_answer[texts, inside]
    return Blocks(
        anchors,
        is_there[..., 1:] & is_real.unsqueeze(-1),
        batch.token_ids[texts, inside],
    )
