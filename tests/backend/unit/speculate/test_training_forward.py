"""What training differentiates gives the logits that serving drafts from, to the last digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.dflash import DFlashHead
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.heads.loading import load_head
from tests.support.draft_heads import (
    MASK_TOKEN,
    SavedHead,
    dimensions,
    save_block_head,
    save_eagle3,
)
from tests.support.draft_methods import NUM_DRAFTS, proposer_of
from tests.support.draft_references import BlockRules, Eagle3Rules
from tests.support.draft_rounds import Rounds, States
from tests.support.engine_world import Tiny

WINDOWS = dimensions(num_layers=2, windows=(4, 0))
EAGLE3: dict[str, dict[str, Any]] = {
    "plain": {},
    "two-layers": {"dims": dimensions(num_layers=2), "has_lm_head": False},
    "windows": {"dims": WINDOWS},
    "3.1": {"rules": Eagle3Rules(has_fc_norm=True, is_output_normed=True)},
    "others": {"rules": Eagle3Rules(is_norm_before_fc=True, is_norm_before_residual=True)},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "windows": {"dims": WINDOWS, "has_lm_head": False},
    **{
        kind: {
            "method": "dspark",
            "has_confidence": True,
            "rules": BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind=kind),
        }
        for kind in ("vanilla", "gated", "rnn")
    },
}
TOLERANCE = 2e-4


class Served:
    """A proposer's drafts behind a prompt and one token, and the logits that they were taken from.

    `text` goes on with the drafts; `features` [1, positions, F H] are of all of it.
    """

    def __init__(self, target: Tiny, states: States, saved: SavedHead) -> None:
        proposer = proposer_of(target, saved)
        self.logits: list[Tensor] = []
        pick = proposer._picker.pick

        def noting(logits: Tensor, *rest: Any) -> Any:
            self.logits.append(logits[0].clone())
            return pick(logits, *rest)

        proposer._picker.pick = noting  # type: ignore[method-assign] # only listens
        # A block whose slots are each for itself is chosen from all its rows at once.
        of_rows = proposer._head.logits
        block: list[Tensor] = []

        def noting_rows(states_of_rows: Tensor) -> Tensor:
            found = of_rows(states_of_rows)
            block[:] = [row.clone() for row in found]
            return found

        setattr(proposer._head, "logits", noting_rows)  # noqa: B010 - only listens
        rounds = Rounds(proposer, states, NUM_DRAFTS)
        rounds.admit(1, rounds.prompt(14), pieces=[6, 8])
        self.logits = self.logits or block
        self.anchor = 14
        self.text = [*rounds.running[1].tokens, *rounds.running[1].drafts]
        of_text = states.of(self.text)
        self.features = torch.cat([of_text[index] for index in saved.state_indices], -1)[None]


def training_head(target: Tiny, saved: SavedHead) -> DraftHead:
    head = load_head(saved.directory, target.model.config).train()
    with torch.inference_mode():
        embedding = target.model.embed(torch.arange(target.model.config.vocab_size))
        rows = target.model.head_rows(head.target_ids())
    head.attach(embedding.clone(), rows.clone())
    return head


def check_gradients(head: DraftHead, loss: Tensor) -> None:
    """Every parameter of the head's own learns, and nothing that is the target's."""
    loss.backward()
    own = set(head.own_state())
    for name, parameter in head.named_parameters():
        if name in own:
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().sum()) > 0, name
        else:
            assert parameter.grad is None, name


@pytest.mark.parametrize("form", EAGLE3.values(), ids=EAGLE3)
def test_eagle3_unrolled(
    target: Tiny, states: States, tmp_path: Path, form: dict[str, Any]
) -> None:
    saved = save_eagle3(tmp_path, **form)
    served = Served(target, states, saved)
    head = training_head(target, saved)
    assert isinstance(head, Eagle3Head)

    with torch.enable_grad():
        next_tokens = torch.tensor([[*served.text[1:], 0]])
        unrolled = list(head.unroll(served.features.clone(), next_tokens, NUM_DRAFTS))
        logits = [head.logits(step)[0, served.anchor - 1] for step in unrolled]
        for found, expected in zip(logits, served.logits, strict=True):
            assert float((found.detach() - expected).abs().max()) < TOLERANCE
        check_gradients(head, torch.stack(logits).logsumexp(-1).sum())


@pytest.mark.parametrize("form", BLOCKS.values(), ids=BLOCKS)
def test_blocks(target: Tiny, states: States, tmp_path: Path, form: dict[str, Any]) -> None:
    saved = save_block_head(tmp_path, **form)
    served = Served(target, states, saved)
    head = training_head(target, saved)
    assert isinstance(head, DFlashHead)
    num_rows = NUM_DRAFTS + (not head.config.samples_from_anchor)
    # Another block, earlier in the text, is not seen by this one.
    anchors = torch.tensor([[3, served.anchor]])

    with torch.enable_grad():
        context = head.context(served.features.clone())
        ids = head.block_ids(torch.tensor(served.text)[anchors], num_rows)
        normed = head.blocks(context, anchors, ids)[0, 1, num_rows - NUM_DRAFTS :]
        if isinstance(head, DSparkHead):
            previous = torch.tensor(served.text[served.anchor : served.anchor + NUM_DRAFTS])
            logits = head.block_logits(normed, previous)
            loss = logits.logsumexp(-1).sum() + head.confidence_logits(normed, previous).sum()
        else:
            logits = head.project(normed)
            loss = logits.logsumexp(-1).sum()
        for found, expected in zip(logits, served.logits, strict=True):
            assert float((found.detach() - expected).abs().max()) < TOLERANCE
        check_gradients(head, loss)
