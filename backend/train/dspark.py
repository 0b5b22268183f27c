"""Training of DSpark (arXiv 2607.05147): DFlash's blocks, with the Markov and confidence heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from backend.speculate.heads.dspark import DSparkHead
from backend.train.blocks import choose
from backend.train.corpus import Batch
from backend.train.counting import count
from backend.train.dflash import block_rows, block_states, by_place
from backend.train.losses import row_losses
from backend.train.method import LossSettings, StepLoss, table_of


def loss(
    head: DSparkHead, batch: Batch, labels: Tensor, given: LossSettings, rng: torch.Generator
) -> StepLoss:
    """The text before each place is teacher-forced; the confidence head learns the overlap of the
    two distributions, which is how likely a draft is accepted."""
    blocks = choose(batch, given.num_drafts, given.anchor_share, rng)
    whole = block_states(head, batch, blocks)
    latents = head.latents(whole, blocks.previous)
    states = whole[blocks.is_there].to(given.dtype)
    markov = head.markov_head
    rows = block_rows(batch, blocks, labels, given)
    found = row_losses(
        states,
        table_of(head, given.dtype),
        rows,
        given.weights,
        latent=None if latents is None else latents[blocks.is_there].to(given.dtype),
        bias_table=None if markov is None else markov.markov_w2.weight.to(given.dtype),
    )
    total, parts = found.loss, {}
    if head.confidence_head is not None:
        logits = head.confidence_logits(whole, blocks.previous)[blocks.is_there]
        surprise = functional.binary_cross_entropy_with_logits(
            logits, found.overlap, reduction="none"
        )
        confidence = (surprise * rows.weights).sum()
        total = total + confidence
        parts["confidence"] = float(confidence.detach())
    return StepLoss(total, count(by_place(blocks.is_there, found.is_hit)), parts)
