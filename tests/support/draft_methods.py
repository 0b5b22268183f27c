"""A saved head as the proposer that serves it and as the reference that it is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backend.speculate.heads.dflash import DFlashHead
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.heads.loading import load_head
from backend.speculate.proposers.dflash import DFlashProposer
from backend.speculate.proposers.dspark import DSparkProposer
from backend.speculate.proposers.eagle3 import Eagle3Proposer
from kernels.dispatch import Ops, select
from tests.support.draft_heads import SavedHead
from tests.support.draft_references import (
    BlockReference,
    BlockRules,
    Eagle3Reference,
    Eagle3Rules,
)
from tests.support.draft_rounds import Rounds
from tests.support.engine_world import Tiny, tiny_engine_config

NUM_DRAFTS = 4
Reference = Eagle3Reference | BlockReference
FeatureProposers = Eagle3Proposer | DFlashProposer


def proposer_of(
    target: Tiny, saved: SavedHead, *, ops: Ops | None = None, **changes: Any
) -> FeatureProposers:
    config = tiny_engine_config(**{"num_drafts_max": NUM_DRAFTS, **changes})
    head = load_head(saved.directory, target.model.config)
    ops = ops or select("cpu", "reference")
    if isinstance(head, Eagle3Head):
        return Eagle3Proposer(head, target.model, config, ops)
    if isinstance(head, DSparkHead):
        return DSparkProposer(head, target.model, config, ops, is_confidence_told=True)
    assert isinstance(head, DFlashHead)
    return DFlashProposer(head, target.model, config, ops)


def reference_of(
    target: Tiny, saved: SavedHead, rules: Eagle3Rules | BlockRules | None = None
) -> Reference:
    tensors = {name: _exact(each) for name, each in saved.tensors.items()}
    embedding, lm_head = _ends(target, saved)
    if isinstance(rules, BlockRules):
        return BlockReference(tensors, saved.dims, embedding, lm_head, rules)
    return Eagle3Reference(tensors, saved.dims, embedding, lm_head, rules or Eagle3Rules())


def check_drafts(rounds: Rounds, saved: SavedHead, reference: Reference) -> None:
    """Every sequence's drafts beside those that are recomputed from its whole text."""
    for slot, running in rounds.running.items():
        states = rounds.states.of(running.tokens[:-1])
        features = [states[index].double() for index in saved.state_indices]
        expected = reference.drafts(running.tokens, features, rounds.num_drafts, running.missing)
        assert running.drafts == expected, f"slot {slot} after {len(running.tokens)} tokens"


def _ends(target: Tiny, saved: SavedHead) -> tuple[Tensor, Tensor]:
    """The target's table, and where the head has no lm_head the rows of the target's own."""
    tensors = saved.tensors
    embedding = tensors.get("embed_tokens.weight", target.reference.get_input_embeddings().weight)
    lm_head = tensors.get("lm_head.weight")
    if lm_head is None:
        lm_head = target.reference.get_output_embeddings().weight
        if "d2t" in tensors:
            lm_head = lm_head[torch.arange(len(tensors["d2t"])) + tensors["d2t"]]
    return _exact(embedding.detach()), _exact(lm_head.detach())


def _exact(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
