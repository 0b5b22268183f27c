"""Heads that draw, through the whole engine: the answers are distributed as the target's.

A head drafts from a vocabulary of its own and knows no bias; what it tells of its probabilities has
to be right over the target's vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.config import EngineConfig, Rejection
from backend.engine.engine import Engine
from backend.models.interface import CausalModel
from backend.sampling.params import SamplingParams
from backend.speculate.protocol import Proposer
from backend.speculate.running import RunningHead
from tests.support.answer_counts import Text, exact_answers, pvalue, short_answers
from tests.support.draft_heads import MASK_TOKEN, SavedHead, save_block_head, save_eagle3
from tests.support.draft_methods import proposer_of
from tests.support.draft_references import BlockRules
from tests.support.engine_world import Tiny, tiny_engine_config
from tests.support.tiny_checkpoints import reference_logits

pytestmark = pytest.mark.slow

METHODS = ("eagle3", "dflash", "dspark")
PROMPT = (7, 50, 90, 120, 50)
WRITTEN = {50: 12.0, 90: 12.0, 120: 12.0}  # three tokens, and what the filter leaves of others
DRAFT_IDS = (33, 50, 90, 120)
TOP_K, LENGTH, TEMPERATURE, NUM_DRAFTS = 3, 5, 2.0, 3
BATCH = 64
CHANCE = 1e-4
NUM_ANSWERS, NUM_ANSWERS_MUTATED = 3_000, 1_500
SIZES: dict[str, Any] = {
    "num_drafts_max": NUM_DRAFTS, "sequences_max": BATCH, "rows_max": 16 * BATCH,
    "kv_cache_bytes": 1 << 23, "prefills_max": BATCH, "waiting_max": 2 * BATCH,
    "context_len_max": 32,
}  # fmt: skip


def save(directory: Path, method: str) -> SavedHead:
    if method == "eagle3":
        return save_eagle3(directory, draft_ids=DRAFT_IDS)
    rules = BlockRules(MASK_TOKEN)
    if method == "dspark":
        rules = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")
    return save_block_head(directory, method, rules=rules, draft_ids=DRAFT_IDS)


@pytest.fixture(scope="module")
def exact(target: Tiny) -> dict[Text, float]:
    """Of every answer, computed by transformers alone."""

    def shares(text: Text) -> Iterable[tuple[int, float]]:
        logits = reference_logits(target.reference, [*PROMPT, *text])[-1].clone()
        for token, bias in WRITTEN.items():
            logits[token] += bias
        best = (logits.double() / TEMPERATURE).topk(TOP_K)
        return zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True)

    return exact_answers(shares, LENGTH)


def engine_of(target: Tiny, saved: SavedHead, rule: Rejection) -> Engine:
    def make(model: CausalModel, config: EngineConfig) -> Proposer:
        return proposer_of(target, saved, **SIZES)

    config = tiny_engine_config(**SIZES, rejection=rule)
    return Engine(target.model, config, (), rng=random.Random(3), make_proposer=make)


PARAMS = SamplingParams(
    max_tokens=LENGTH, temperature=TEMPERATURE, top_k=TOP_K, logit_bias=WRITTEN, ignore_eos=True
)


@pytest.mark.parametrize("rule", list(Rejection))
@pytest.mark.parametrize("method", METHODS)
def test_answers_are_distributed_as_the_target_s(
    target: Tiny, exact: dict[Text, float], tmp_path: Path, method: str, rule: Rejection
) -> None:
    engine = engine_of(target, save(tmp_path, method), rule)

    texts = short_answers(engine, PROMPT, PARAMS, NUM_ANSWERS, BATCH)

    (figures,) = engine.load().speculation.figures
    assert len(figures.num_at_risk) == NUM_DRAFTS
    assert min(figures.num_accepted) > 0
    assert figures.num_accepted_tokens < figures.num_draft_tokens
    assert pvalue(texts, exact) > CHANCE


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_told_of_the_wrong_tokens_do_not_pass(
    target: Tiny,
    exact: dict[Text, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """As if the draft vocabulary had been read one row off for them alone."""
    scattered = RunningHead.scattered

    def shifted(self: RunningHead, probs: Tensor, vocab_size: int) -> Tensor:
        return scattered(self, torch.roll(probs, 1, -1), vocab_size)

    monkeypatch.setattr(RunningHead, "scattered", shifted)
    engine = engine_of(target, save(tmp_path, method), Rejection.BLOCK)

    texts = short_answers(engine, PROMPT, PARAMS, NUM_ANSWERS_MUTATED, BATCH)

    assert pvalue(texts, exact) < CHANCE
