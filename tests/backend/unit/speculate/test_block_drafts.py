"""DFlash and DSpark against the published formulas, recomputed from the whole prefix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.dispatch import select
from tests.support.draft_heads import MASK_TOKEN, dimensions, save_block_head
from tests.support.draft_methods import NUM_DRAFTS, check_drafts, proposer_of, reference_of
from tests.support.draft_references import BlockRules
from tests.support.draft_rounds import Rounds, States, play, poison
from tests.support.engine_world import Tiny

pytestmark = pytest.mark.slow  # all of them together; `make check` has the parts

DFLASH = BlockRules(MASK_TOKEN)
ANCHORED = BlockRules(MASK_TOKEN, samples_from_anchor=True)
WINDOWS = dimensions(num_layers=2, windows=(6, 0))
TWO_LAYERS = dimensions(num_layers=2)

FORMS: dict[str, tuple[BlockRules, dict[str, Any]]] = {
    "dflash": (DFLASH, {}),
    "llama-like": (DFLASH, {"has_qk_norm": False}),
    "target-s-ends": (DFLASH, {"has_lm_head": False, "has_draft_vocab": False}),
    "target-s-rows": (DFLASH, {"has_lm_head": False}),
    "own-embedding": (DFLASH, {"has_embedding": True}),
    "windows": (BlockRules(MASK_TOKEN, is_causal=(True, False)), {"dims": WINDOWS}),
    "windows-both-ways": (
        BlockRules(MASK_TOKEN),
        {"dims": WINDOWS, "extra": {"sliding_window_non_causal": True}},
    ),
    "anchored": (ANCHORED, {"method": "dspark"}),
    "not-anchored": (
        BlockRules(MASK_TOKEN, markov_kind="vanilla"),
        {"method": "dspark"},
    ),
    **{
        kind: (
            BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind=kind),
            {"method": "dspark", "has_confidence": True},
        )
        for kind in ("vanilla", "gated", "rnn")
    },
}


@pytest.mark.parametrize(("rules", "form"), FORMS.values(), ids=FORMS)
def test_drafts_are_those_of_the_formulas(
    target: Tiny, states: States, tmp_path: Path, rules: BlockRules, form: dict[str, Any]
) -> None:
    saved = save_block_head(tmp_path, rules=rules, **form)
    rounds = Rounds(proposer_of(target, saved), states, NUM_DRAFTS)
    reference = reference_of(target, saved, rules)

    rounds.admit(1, rounds.prompt(11))
    check_drafts(rounds, saved, reference)
    for accepted in (0, 4, 2):
        rounds.round({1: accepted})
        check_drafts(rounds, saved, reference)


@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_sequences_do_not_disturb_each_other(
    target: Tiny, states: States, tmp_path: Path, method: str
) -> None:
    rules = DFLASH
    if method == "dspark":
        rules = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")
    saved = save_block_head(tmp_path, method, rules=rules)
    proposer = proposer_of(target, saved, ops=select("cpu"))  # this machine's own kernels
    rounds = Rounds(proposer, states, NUM_DRAFTS, batch=6)
    rounds.before_round = lambda: poison(proposer.cache)
    reference = reference_of(target, saved, rules)

    play(rounds, lambda rounds: check_drafts(rounds, saved, reference), lookahead=0)


@pytest.mark.parametrize("has_qk_norm", [True, False])
def test_context_of_all_layers_at_once_is_that_of_one_by_one(
    target: Tiny, states: States, tmp_path: Path, has_qk_norm: bool
) -> None:
    saved = save_block_head(tmp_path, rules=DFLASH, dims=TWO_LAYERS, has_qk_norm=has_qk_norm)
    ops = select("cpu", "reference")
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[0].shape[0])
        return ops.dflash_context_kv(*args, **kwargs)

    at_once = replace(ops, dflash_context_kv=counted)
    one_by_one = replace(ops, names={**ops.names, "dflash_context_kv": "another"})
    caches = []
    for chosen in (at_once, one_by_one):
        rounds = Rounds(proposer_of(target, saved, ops=chosen), states, NUM_DRAFTS)
        rounds.admit(1, rounds.prompt(11))
        rounds.round({1: 2})
        caches.append(rounds.proposer.cache)

    assert calls
    torch.testing.assert_close(caches[0].all_keys, caches[1].all_keys)
    torch.testing.assert_close(caches[0].all_values, caches[1].all_values)
    assert bool((caches[0].all_keys != 0).any(dim=(1, 2, 3, 4)).all()), "a layer was left out"
