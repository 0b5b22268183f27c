"""A head's drafts, but where the text repeats itself, what stood there before.

A head learns what its target tends to say; that a text copies itself it learns badly, and where it
does, looking up costs nothing and is right for many tokens in a row. So a sequence whose end stood
in it before, at least `TRUSTED_LEN` tokens long, gets what followed there; all others get the
head's. The head sees every row either way, so that its cache has no holes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from backend.config import EngineConfig
from backend.models.interface import CausalModel
from backend.speculate.feature_proposer import FeatureProposer
from backend.speculate.proposers.ngram import NgramLookup
from backend.speculate.protocol import Proposal, ProposeInput
from backend.speculate.text import proposal_of

SUFFIX = "+ngram"
# Of a shorter match the head knows better: behind two tokens that stood there before the third is
# right in two of three cases, as often as the head's first draft.
TRUSTED_LEN = 3
_LENS = (8, 5, 4, TRUSTED_LEN)


class LookupFirstProposer:
    """A `Proposer` around another one that taps the target."""

    def __init__(self, head: FeatureProposer) -> None:
        self.name = head.name + SUFFIX
        self.num_drafts_max = head.num_drafts_max
        self.taps = head.taps
        self._head = head
        self._lookup = NgramLookup(_LENS)

    def propose(self, given: ProposeInput) -> Proposal | None:
        """See `Proposer`."""
        found = self._lookup.find(given) if given.num_drafts else []
        if not any(found):
            return self._head.propose(given)
        if all(found):
            # Nobody needs the head's drafts: it only takes its rows in.
            self._head.propose(replace(given, num_drafts=0))
            made = proposal_of(found, given)
        else:
            made = _merged(self._head.propose(given), found, given)
        if made is not None:
            self._head.note_drafts(given, made.token_ids)
        return made

    def release(self, slot: int) -> None:
        self._head.release(slot)
        self._lookup.release(slot)


def with_lookup(
    make_head: Callable[[CausalModel, EngineConfig], FeatureProposer],
) -> Callable[[CausalModel, EngineConfig], LookupFirstProposer]:
    """The registry's entry for a head method with lookups before it."""
    return lambda model, config: LookupFirstProposer(make_head(model, config))


def _merged(
    head: Proposal | None, found: Sequence[Sequence[int]], given: ProposeInput
) -> Proposal | None:
    """Rows that were looked up in place of the head's; no host value of the device is read."""
    looked_up = proposal_of(found, given)
    if head is None or looked_up is None:
        return looked_up if head is None else head
    width = head.token_ids.shape[1]
    device = given.slots.device
    is_found = torch.zeros(given.slots.shape[0], dtype=torch.bool)
    is_found[: len(found)] = torch.tensor([bool(each) for each in found])
    is_found = is_found.to(device, non_blocking=True)
    missing = width - looked_up.token_ids.shape[1]
    tokens = functional.pad(looked_up.token_ids, (0, max(0, missing)))[:, :width]
    probs = head.probs
    if probs is not None:
        one_hot = torch.zeros_like(probs).scatter_(-1, tokens.unsqueeze(-1), 1.0)
        probs = torch.where(is_found.view(-1, 1, 1), one_hot, probs)
    return Proposal(
        torch.where(is_found.unsqueeze(1), tokens, head.token_ids),
        torch.where(is_found, looked_up.num_valid.clamp(max=width), head.num_valid),
        probs,
    )
