"""Training of DFlash (arXiv 2602.06036): blocks at chance anchors, all of their places at once."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.speculate.heads.dflash import DFlashHead
from backend.train.blocks import Blocks, choose
from backend.train.corpus import Batch
from backend.train.counting import count, spread
from backend.train.losses import Rows, row_losses
from backend.train.method import LossSettings, StepLoss, table_of


def loss(
    head: DFlashHead, batch: Batch, labels: Tensor, given: LossSettings, rng: torch.Generator
) -> StepLoss:
    """Places farther from the anchor count less: they are reached only through those before."""
    blocks = choose(batch, given.num_drafts, given.anchor_share, rng)
    states = block_states(head, batch, blocks)[blocks.is_there].to(given.dtype)
    rows = block_rows(batch, blocks, labels, given)
    found = row_losses(states, table_of(head, given.dtype), rows, given.weights)
    return StepLoss(found.loss, count(by_place(blocks.is_there, found.is_hit)))


def block_states(head: DFlashHead, batch: Batch, blocks: Blocks) -> Tensor:
    """[B, A, N, H]: the normed states of the rows that draft."""
    num_places = blocks.is_there.shape[2]
    first = 0 if head.config.samples_from_anchor else 1
    ids = head.block_ids(blocks.anchor_tokens, num_places + first)
    return head.blocks(head.context(batch.features), blocks.anchors, ids)[:, :, first:]


def block_rows(batch: Batch, blocks: Blocks, labels: Tensor, given: LossSettings) -> Rows:
    """Of the places that are there, in the order of the mask; weights sum to 1."""
    num_places = blocks.is_there.shape[2]
    decay = given.decay ** torch.arange(num_places, device=labels.device)
    wanted = _labels_at(blocks, labels)[blocks.is_there]
    weights = decay.expand(blocks.is_there.shape)[blocks.is_there] * (wanted >= 0)
    return Rows(
        blocks.target_states(batch.last).to(given.dtype),
        wanted,
        weights / weights.sum().clamp_min(1e-9),
    )


def by_place(is_there: Tensor, is_hit: Tensor) -> list[tuple[Tensor, Tensor]]:
    whole = spread(is_hit, is_there)
    return [(is_there[..., place], whole[..., place]) for place in range(is_there.shape[-1])]


def _labels_at(blocks: Blocks, labels: Tensor) -> Tensor:
    """[B, A, N]."""
    num_places = blocks.is_there.shape[2]
    offsets = torch.arange(1, num_places + 1, device=labels.device)
    at = (blocks.anchors.unsqueeze(-1) + offsets).clamp_max(labels.shape[1] - 1)
    texts = torch.arange(len(labels), device=labels.device).view(-1, 1, 1).expand_as(at)
    return labels[texts, at]
