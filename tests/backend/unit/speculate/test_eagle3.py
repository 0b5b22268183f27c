"""EAGLE-3 against the published formulas, recomputed from the whole prefix without any cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.heads.loading import load_head
from backend.speculate.proposers.eagle3 import Eagle3Proposer
from kernels.dispatch import Ops, select
from tests.support.draft_heads import SavedHead, dimensions, save_eagle3
from tests.support.draft_references import Eagle3Reference, Eagle3Rules
from tests.support.draft_rounds import Rounds, States, play
from tests.support.engine_world import Tiny, tiny_engine_config

NUM_DRAFTS = 4


def make(
    target: Tiny, saved: SavedHead, *, ops: Ops | None = None, **changes: Any
) -> Eagle3Proposer:
    config = tiny_engine_config(**{"num_drafts_max": NUM_DRAFTS, **changes})
    head = load_head(saved.directory, target.model.config)
    assert isinstance(head, Eagle3Head)
    return Eagle3Proposer(head, target.model, config, ops or select("cpu", "reference"))


def reference_of(
    target: Tiny, saved: SavedHead, rules: Eagle3Rules | None = None
) -> Eagle3Reference:
    """The target's table and, where the head has no lm_head, rows of the target's own."""
    tensors = saved.tensors
    embedding = tensors.get("embed_tokens.weight", target.reference.get_input_embeddings().weight)
    lm_head = tensors.get("lm_head.weight")
    if lm_head is None:
        lm_head = target.reference.get_output_embeddings().weight
        if "d2t" in tensors:
            lm_head = lm_head[torch.arange(len(tensors["d2t"])) + tensors["d2t"]]
    return Eagle3Reference(
        {name: each if name == "d2t" else each.double() for name, each in tensors.items()},
        saved.dims,
        embedding.detach().double(),
        lm_head.detach().double(),
        rules or Eagle3Rules(),
    )


def check(rounds: Rounds, reference: Eagle3Reference) -> None:
    for slot, running in rounds.running.items():
        expected = reference.drafts(
            running.tokens, rounds.features(slot), rounds.num_drafts, running.missing
        )
        assert running.drafts == expected, f"slot {slot} after {len(running.tokens)} tokens"


RULES = {
    "plain": {},
    "norm-before-residual": {"rules": Eagle3Rules(is_norm_before_residual=True)},
    "norm-before-fc": {"rules": Eagle3Rules(is_norm_before_fc=True)},
    "3.1": {"rules": Eagle3Rules(has_fc_norm=True, is_output_normed=True)},
    "two-layers": {"dims": dimensions(num_layers=2)},
    "windows": {"dims": dimensions(num_layers=2, windows=(0, 6))},
    "whole-vocabulary": {"has_draft_vocab": False},
    "target-s-head": {"has_lm_head": False},
    "target-s-whole-head": {"has_lm_head": False, "has_draft_vocab": False},
    "own-embedding": {"has_embedding": True},
    "five-features": {"layer_ids": (0, 1, 2, 3, 5)},
}


@pytest.mark.parametrize("given", RULES.values(), ids=RULES)
def test_drafts_are_those_of_the_formulas(
    target: Tiny, states: States, tmp_path: Path, given: dict[str, Any]
) -> None:
    saved = save_eagle3(tmp_path, **given)
    rounds = Rounds(make(target, saved), states, NUM_DRAFTS)
    reference = reference_of(target, saved, given.get("rules"))

    rounds.admit(1, rounds.prompt(11))
    check(rounds, reference)
    for accepted in (0, 4, 2, 1):
        rounds.round({1: accepted})
        check(rounds, reference)


def test_sequences_do_not_disturb_each_other(target: Tiny, states: States, tmp_path: Path) -> None:
    saved = save_eagle3(tmp_path, dims=dimensions(num_layers=2))
    rounds = Rounds(make(target, saved), states, NUM_DRAFTS, batch=6)
    reference = reference_of(target, saved)

    play(rounds, lambda rounds: check(rounds, reference), lookahead=1)
