"""The two numbers a row of logits needs to become probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def row_stats(
    logits: Tensor,  # [R, V]
    *,
    temperature: Tensor | None = None,  # [R]; None: 1
    max_out: Tensor | None = None,  # [R] float32
    sum_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(max, sum), float32 [R]: max of logit / t, sum of exp(logit / t - max) (Milakov and
    Gimelshein, 2018), so that a token's probability is exp(logit / t - max) / sum.

    A temperature of 0 is read as 1: greedy rows need no probabilities.
    """
    scaled = logits.float()
    if temperature is not None:
        scaled = scaled / torch.where(temperature == 0.0, 1.0, temperature).float().unsqueeze(1)
    largest = scaled.amax(dim=1)
    total = torch.exp(scaled - largest.unsqueeze(1)).sum(dim=1)
    if max_out is not None:
        largest = max_out.copy_(largest)
    if sum_out is not None:
        total = sum_out.copy_(total)
    return largest, total
