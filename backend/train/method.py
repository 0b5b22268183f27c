"""What training asks of a draft method: the one place where the three differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from backend.speculate.heads.base import DraftHead
from backend.train.corpus import Batch
from backend.train.counting import PlaceCounts
from backend.train.losses import LossWeights


@dataclass(frozen=True, slots=True)
class LossSettings:
    """`num_drafts`: places that are trained. `anchor_share`: of the positions at which a block
    could stand, those that get one in an epoch. `dtype`: in which is multiplied."""

    num_drafts: int
    weights: LossWeights
    decay: float  # of a place's weight, against the one before it
    anchor_share: float = 1.0
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class StepLoss:
    """`parts`: mean terms for the progress line."""

    loss: Tensor
    counts: PlaceCounts
    parts: Mapping[str, float] = field(default_factory=dict)


# (head, batch, labels [B, L], settings, generator of choices) → loss of one step.
LossFunction = Callable[[Any, Batch, Tensor, LossSettings, torch.Generator], StepLoss]


class Vocabulary:
    """Tokens of the target → draft ids."""

    def __init__(self, head: DraftHead) -> None:
        ids, size = head.target_ids(), head.head_config.shape.vocab_size
        self._draft_ids = torch.full((size,), -1, dtype=torch.int64, device=ids.device)
        self._draft_ids[ids] = torch.arange(ids.shape[0], device=ids.device)

    def labels(self, token_ids: Tensor) -> Tensor:
        """Of one shape with `token_ids`; -1 for a token that cannot be drafted."""
        return self._draft_ids[token_ids]


def table_of(head: DraftHead, dtype: torch.dtype) -> Tensor:
    """The rows [Vd, H] that make a head's logits. Raises ValueError before any were lent."""
    if head.lm_head is None:
        raise ValueError("lend the head the target's rows first (DraftHead.attach)")
    return head.lm_head.weight.to(dtype)
