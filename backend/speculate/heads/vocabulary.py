"""The draft vocabulary: which of the target's tokens a head can propose.

`d2t` [Vd] holds offsets, as published heads do: draft token i is the target's token i + d2t[i].
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.errors import BadCheckpoint


def offsets_of(counts: Tensor, draft_vocab_size: int) -> Tensor:
    """`counts` [V]: how often each token was seen → d2t [Vd] of the most frequent ones.

    Ties go to the lower id, and tokens never seen fill up from the lowest id. Raises ValueError if
    the vocabulary is smaller than that.
    """
    if not 0 < draft_vocab_size <= counts.shape[0]:
        raise ValueError(f"{draft_vocab_size} of {counts.shape[0]} tokens cannot be chosen")
    order = torch.sort(counts, descending=True, stable=True).indices
    chosen = torch.sort(order[:draft_vocab_size]).values
    return chosen - torch.arange(draft_vocab_size, device=counts.device)


def drafted_mask(offsets: Tensor, vocab_size: int) -> Tensor:
    """t2d: bool [V], whether a token is in the draft vocabulary."""
    mask = torch.zeros(vocab_size, dtype=torch.bool, device=offsets.device)
    mask[torch.arange(offsets.shape[0], device=offsets.device) + offsets] = True
    return mask


def checked_offsets(
    offsets: Tensor, is_drafted: Tensor | None, vocab_size: int, where: str
) -> Tensor:
    """The offsets themselves. Raises BadCheckpoint, beginning with `where`, if they are none."""
    ids = torch.arange(offsets.shape[0]) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise BadCheckpoint(
            f"{where}: d2t leads to token {int(ids.min())} to {int(ids.max())}, but the vocabulary "
            f"has {vocab_size}; it must hold offsets, not ids"
        )
    if len(set(ids.tolist())) != ids.numel():
        raise BadCheckpoint(f"{where}: d2t leads to the same token twice")
    if is_drafted is not None and not torch.equal(
        is_drafted.bool(), drafted_mask(offsets, vocab_size)
    ):
        raise BadCheckpoint(f"{where}: t2d marks other tokens than d2t leads to")
    return offsets
