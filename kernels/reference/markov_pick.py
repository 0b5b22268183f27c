"""Drafts of a block one after the other: what the token before makes likely is added to each."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.interface import Int8Weight
from kernels.reference.linear_int8 import linear_int8


def markov_pick(
    logits: Tensor,  # float32 [S, N, Vd]
    previous: Tensor,  # [S] int64: the token before the first place
    table: Tensor,  # [V, K]: what a token says of the one behind it
    weight: Int8Weight,  # [Vd, K]
    *,
    offsets: Tensor | None = None,  # [Vd] int64: draft number i is token i + offsets[i]
    out: Tensor | None = None,
) -> Tensor:
    """int64 [S, N]: at each place the first best of logits + weight · table[token before].

    DSpark's Markov head (arXiv 2607.05147), greedy; the token before a place is the one that was
    picked for the place before it.
    """
    num_sequences, num_places, size = logits.shape
    tokens = previous.new_empty((num_sequences, num_places)) if out is None else out
    for place in range(num_places):
        bias = torch.empty((num_sequences, size), dtype=torch.float32, device=logits.device)
        linear_int8(table.index_select(0, previous), weight, out=bias)
        previous = bias.add_(logits[:, place]).argmax(-1)
        if offsets is not None:
            previous = previous + offsets.index_select(0, previous)
        tokens[:, place] = previous
    return tokens
