"""Drafts that were found in texts, on the host, as the tensors that the engine takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend.speculate.protocol import Proposal, ProposeInput


def proposal_of(drafts: Sequence[Sequence[int]], given: ProposeInput) -> Proposal | None:
    """`drafts`: of each real sequence, as many as were found; None if there are none at all.

    As wide as the longest of them, so that the target does no work for drafts that nobody has.
    One copy to the device, which is not waited for.
    """
    width = max((len(each) for each in drafts), default=0)
    if width == 0:
        return None
    rows = [[len(each), *each, *[0] * (width - len(each))] for each in drafts]
    rows += [[0] * (width + 1)] * (given.slots.shape[0] - len(rows))
    device = given.slots.device
    is_apart = device.type != "cpu"
    packed = torch.tensor(rows, dtype=torch.int64, pin_memory=is_apart)
    if is_apart:
        packed = packed.to(device, non_blocking=True)
    return Proposal(token_ids=packed[:, 1:], num_valid=packed[:, 0])
