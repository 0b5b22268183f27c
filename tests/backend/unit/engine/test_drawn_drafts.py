"""Drawn drafts through the whole engine: the answers are distributed as the target's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats
from torch import Tensor

from backend.config import EngineConfig, Rejection
from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest, RoundFigures
from backend.models.interface import CausalModel
from backend.sampling.params import SamplingParams
from backend.speculate.proposers.draft_model import DraftModelProposer
from backend.speculate.proposers.ngram import NgramProposer
from backend.speculate.protocol import Proposer
from tests.support.engine_world import Tiny, tiny_engine_config
from tests.support.tiny_checkpoints import reference_logits

# What was written is likely to be written again: else nothing looked up would ever stand.
PROMPT = (7, 50, 90, 120, 50)
BIAS = {50: 9.0, 90: 9.0, 120: 9.0}
TOP_K, LENGTH, TEMPERATURE = 3, 3, 1.5
BATCH = 64
SIZES: dict[str, Any] = {
    "num_drafts_max": 2, "sequences_max": BATCH, "rows_max": 16 * BATCH, "kv_cache_bytes": 1 << 22,
    "prefills_max": BATCH, "waiting_max": 2 * BATCH, "context_len_max": 32,
}  # fmt: skip

Text = tuple[int, ...]


class Sharpened:
    """A draft that likes the same tokens as its target, but more or less."""

    def __init__(self, target: CausalModel) -> None:
        self._target = target
        self.config = target.config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._target.logits(hidden) * 1.7
        for token, bias in BIAS.items():
            logits[:, token] += bias
        return logits


def drawing(model: CausalModel, config: EngineConfig) -> Proposer:
    return DraftModelProposer(Sharpened(model), model, config)


def distribution(tiny: Tiny) -> dict[Text, float]:
    """Every answer with its probability, computed by transformers alone."""
    found: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        grown: dict[Text, float] = {}
        for text, mass in found.items():
            logits = reference_logits(tiny.reference, [*PROMPT, *text])[-1].clone()
            for token, bias in BIAS.items():
                logits[token] += bias
            best = (logits.double() / TEMPERATURE).topk(TOP_K)
            for token, share in zip(best.indices.tolist(), best.values.softmax(0), strict=True):
                grown[*text, token] = mass * float(share)
        found = grown
    return found


def draws(engine: Engine, count: int) -> np.ndarray:
    """So many answers to one prompt without a seed, as many at once as there is room for."""
    params = SamplingParams(
        max_tokens=LENGTH, temperature=TEMPERATURE, top_k=TOP_K, logit_bias=BIAS, ignore_eos=True
    )
    writing: dict[str, list[int]] = {}
    texts: list[list[int]] = []
    asked = 0
    while len(texts) < count:
        while asked < count and len(writing) < BATCH:
            engine.add(EngineRequest(str(asked), PROMPT, params))
            writing[str(asked)] = []
            asked += 1
        for event in engine.step():
            writing[event.request_id] += event.token_ids
            if event.finish is not None:
                texts.append(writing.pop(event.request_id))
    return np.array(texts)


def pvalue(texts: np.ndarray, exact: dict[Text, float]) -> float:
    counts = np.array([(texts == text).all(1).sum() for text in exact])
    assert counts.sum() == len(texts), "an answer that the target never gives"
    return float(stats.chisquare(counts, np.array(list(exact.values())) * len(texts)).pvalue)


def figures_of(engine: Engine) -> RoundFigures:
    (figures,) = engine.load().speculation.figures
    return figures


Make = Callable[[CausalModel, EngineConfig], Proposer]


def engine_of(tiny: Tiny, make: Make, **changes: Any) -> Engine:
    config = tiny_engine_config(**SIZES, **changes)
    return Engine(tiny.model, config, (), rng=random.Random(5), make_proposer=make)


METHODS = pytest.mark.parametrize(
    ("make", "rejection"),
    [
        (drawing, Rejection.BLOCK),
        (drawing, Rejection.STANDARD),
        (NgramProposer, Rejection.BLOCK),
    ],
    ids=["block", "standard", "one-hot"],
)


@pytest.mark.slow
@METHODS
def test_many_answers_are_distributed_as_the_target(
    tiny: Tiny, make: Make, rejection: Rejection
) -> None:
    engine = engine_of(tiny, make, rejection=rejection)

    texts = draws(engine, 100_000 if rejection is Rejection.BLOCK and make is drawing else 25_000)

    figures = figures_of(engine)
    assert figures.acceptance_rate is not None
    assert 0.1 < figures.acceptance_rate < 0.9
    assert pvalue(texts, distribution(tiny)) > 1e-4


@pytest.mark.slow
@METHODS
def test_a_few_thousand_answers_look_like_the_target_s(
    tiny: Tiny, make: Make, rejection: Rejection
) -> None:
    """A gross error of the wiring shows here already."""
    engine = engine_of(tiny, make, rejection=rejection)

    texts = draws(engine, 500)

    assert pvalue(texts, distribution(tiny)) > 1e-4


def test_drawn_drafts_are_told_apart_from_those_of_seeded_and_greedy_requests(tiny: Tiny) -> None:
    """Only without a seed drafts are drawn; with one the text is the plain one, and greedy too."""
    texts = {}
    for name, make in {"plain": NgramProposer, "drafted": drawing}.items():
        engine = engine_of(tiny, make)
        for number, more in enumerate(({"seed": 3}, {"temperature": 0.0}, {})):
            given = {"max_tokens": 20, "temperature": 1.0, "ignore_eos": True, **more}
            engine.add(EngineRequest(str(number), PROMPT, SamplingParams(**given)))
        found: dict[str, list[int]] = {}
        while engine.has_work():
            for event in engine.step():
                found.setdefault(event.request_id, []).extend(event.token_ids)
        texts[name] = found

    assert texts["plain"]["0"] == texts["drafted"]["0"]
    assert texts["plain"]["1"] == texts["drafted"]["1"]
    assert texts["plain"]["2"] != texts["drafted"]["2"]
