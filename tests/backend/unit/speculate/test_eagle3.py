"""EAGLE-3 against the published formulas, recomputed from the whole prefix without any cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernels.dispatch import select
from tests.support.draft_heads import dimensions, save_eagle3
from tests.support.draft_methods import NUM_DRAFTS, check_drafts, proposer_of, reference_of
from tests.support.draft_references import Eagle3Rules
from tests.support.draft_rounds import Rounds, States, play, poison
from tests.support.engine_world import Tiny

pytestmark = pytest.mark.slow  # all of them together; `make check` has the parts

FORMS: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_drafts_are_those_of_the_formulas(
    target: Tiny, states: States, tmp_path: Path, form: dict[str, Any]
) -> None:
    saved = save_eagle3(tmp_path, **form)
    rounds = Rounds(proposer_of(target, saved), states, NUM_DRAFTS)
    reference = reference_of(target, saved, form.get("rules"))

    rounds.admit(1, rounds.prompt(11))
    check_drafts(rounds, saved, reference)
    for accepted in (0, 4, 2):
        rounds.round({1: accepted})
        check_drafts(rounds, saved, reference)


def test_sequences_do_not_disturb_each_other(target: Tiny, states: States, tmp_path: Path) -> None:
    saved = save_eagle3(tmp_path)
    proposer = proposer_of(target, saved, ops=select("cpu"))  # this machine's own kernels
    rounds = Rounds(proposer, states, NUM_DRAFTS, batch=6)
    rounds.before_round = lambda: poison(proposer.cache)
    reference = reference_of(target, saved)

    play(rounds, lambda rounds: check_drafts(rounds, saved, reference), lookahead=1)
