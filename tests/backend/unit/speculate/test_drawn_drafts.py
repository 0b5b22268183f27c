"""Drafts that are drawn, the probabilities told with them, and how sure a head is of each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.heads.loading import load_head
from backend.speculate.picking import Picker
from backend.speculate.proposers.dspark import DSparkProposer
from backend.speculate.protocol import ProposeInput
from kernels.dispatch import select
from tests.support.draft_heads import MASK_TOKEN, SavedHead, save_block_head, save_eagle3
from tests.support.draft_methods import NUM_DRAFTS, proposer_of, reference_of
from tests.support.draft_references import BlockReference, BlockRules
from tests.support.draft_rounds import Rounds, States
from tests.support.engine_world import Tiny, tiny_engine_config
from tests.support.tiny_checkpoints import VOCAB

VANILLA = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")
NUM_DRAWS = 20_000


def test_without_temperatures_the_best_token_is_picked() -> None:
    ids, probs = Picker(torch.device("cpu")).pick(
        torch.tensor([[0.0, 3.0, 1.0], [5.0, 3, 1]]), None
    )

    assert ids.tolist() == [1, 0]
    assert probs is None


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([1.0, -torch.inf, 0.0, 2.0, -1.0, 0.5])
    temperatures = torch.tensor([0.7]).expand(NUM_DRAWS)

    ids, probs = Picker(torch.device("cpu"), seed=5).pick(
        logits.expand(NUM_DRAWS, -1), temperatures
    )

    assert probs is not None
    expected = torch.softmax(logits / 0.7, 0)
    assert torch.allclose(probs[0], expected)
    counts = torch.bincount(ids, minlength=6)
    assert counts[1] == 0
    possible = expected > 0
    chance = stats.chisquare(counts[possible], expected[possible].double() * NUM_DRAWS).pvalue
    assert chance > 1e-3


def test_a_temperature_of_zero_is_greedy_beside_others() -> None:
    logits = torch.randn((6, 40), generator=torch.Generator().manual_seed(1))
    temperatures = torch.tensor([0.0, 1.0, 0.0, 0.0, 2.0, 0.0])

    ids, probs = Picker(torch.device("cpu")).pick(logits, temperatures)

    assert probs is not None
    for row in (0, 2, 3, 5):
        assert int(ids[row]) == int(logits[row].argmax())
        assert probs[row].nonzero().flatten().tolist() == [int(ids[row])]
    assert bool((probs.sum(1) - 1).abs().max() < 1e-5)


def save(directory: Path, method: str) -> SavedHead:
    if method == "eagle3":
        return save_eagle3(directory)
    rules = VANILLA if method == "dspark" else BlockRules(MASK_TOKEN)
    return save_block_head(directory, method, rules=rules)


@pytest.mark.parametrize("method", ["eagle3", "dflash", "dspark"])
def test_probabilities_are_those_that_a_draft_was_drawn_from(
    target: Tiny, states: States, tmp_path: Path, method: str
) -> None:
    """Of each draft given those before it, over the whole vocabulary of the target."""
    saved = save(tmp_path, method)
    proposer = proposer_of(target, saved)
    temperature, logits = 0.8, []
    pick, drafts = proposer._picker.pick, proposer._drafts

    def noting(row: Tensor, *rest: Any) -> Any:
        logits.append(row.clone())
        return pick(row, *rest)

    def drawing(given: ProposeInput, *rest: Any) -> Any:
        return drafts(replace(given, temperatures=torch.tensor([temperature])), *rest)

    proposer._picker.pick = noting  # type: ignore[method-assign] # only listens
    proposer._drafts = drawing  # type: ignore[method-assign] # the engine asks for it so
    rounds = Rounds(proposer, states, NUM_DRAFTS)

    rounds.admit(1, rounds.prompt(9))

    made = rounds.last_proposal
    assert made is not None
    assert made.probs is not None
    assert made.probs.shape == (1, NUM_DRAFTS, VOCAB)
    ids = torch.arange(len(saved.tensors["d2t"])) + saved.tensors["d2t"]
    for place, row in enumerate(logits):
        expected = torch.zeros(VOCAB)
        expected[ids] = torch.softmax(row[0] / temperature, 0)
        assert torch.allclose(made.probs[0, place], expected, atol=1e-6)
        assert made.probs[0, place, made.token_ids[0, place]] > 0


def test_a_head_says_how_sure_it_is(target: Tiny, states: States, tmp_path: Path) -> None:
    for reads_markov in (True, False):
        rules = replace(VANILLA, reads_markov=reads_markov)
        saved = save_block_head(
            tmp_path / str(reads_markov), "dspark", rules=rules, has_confidence=True
        )
        rounds = Rounds(proposer_of(target, saved), states, NUM_DRAFTS)
        rounds.admit(1, rounds.prompt(9))
        reference = reference_of(target, saved, rules)
        assert isinstance(reference, BlockReference)

        running = rounds.running[1]
        of_text = states.of(running.tokens[:-1])
        features = [of_text[index].double() for index in saved.state_indices]
        _, expected = reference.chosen(running.tokens, features, NUM_DRAFTS)

        assert rounds.last_proposal is not None
        assert rounds.last_proposal.confidences is not None
        found = rounds.last_proposal.confidences[0]
        assert torch.allclose(found.double(), torch.tensor(expected).double(), atol=1e-4)
        assert float(found.max() - found.min()) > 0.01


def test_unlikely_drafts_are_left_out(target: Tiny, states: States, tmp_path: Path) -> None:
    saved = save_block_head(tmp_path, "dspark", rules=VANILLA, has_confidence=True)
    head = load_head(saved.directory, target.model.config)
    assert isinstance(head, DSparkHead)
    config = tiny_engine_config(num_drafts_max=NUM_DRAFTS)
    whole = Rounds(proposer_of(target, saved), states, NUM_DRAFTS)
    whole.admit(1, whole.prompt(9))
    assert whole.last_proposal is not None
    assert whole.last_proposal.confidences is not None
    survival = whole.last_proposal.confidences[0].cumprod(0)
    floor = float(survival[1] + survival[2]) / 2

    proposer = DSparkProposer(
        head, target.model, config, select("cpu", "reference"), survival_min=floor
    )
    cut = Rounds(proposer, states, NUM_DRAFTS)
    cut.admit(1, cut.prompt(9))

    assert cut.running[1].drafts == whole.running[1].drafts[:2]
