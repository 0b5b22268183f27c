"""The engine from prompt to text with the Triton ops in place of torch's: the same tokens.

The interpreter computes, so the model is tiny; what is shown is that ops, engine and draft methods
go together, for every method there is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backend.config import DType, EngineConfig, KernelChoice, ShapeSet
from backend.engine.engine import Engine
from backend.engine.interface import EngineRequest, FinishReason, RoundFigures
from backend.models.loading import load_model
from backend.sampling.params import SamplingParams
from backend.speculate.registry import PROPOSERS
from kernels.dispatch import REFERENCE, select
from tests.support import draft_heads
from tests.support.draft_heads import MASK_TOKEN, save_block_head, save_eagle3
from tests.support.draft_references import BlockRules
from tests.support.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.slow

VOCAB = 128
NUM_TOKENS = 8
NUM_DRAFTS = 2
# What is written and drafted: so every third draft of a random head is right by chance.
WRITTEN = (50, 90, 120)
PROMPTS = ((7, 50, 90, 33, 50, 90, 12, 50), (50, 120, 61))
BIASED = {"logit_bias": {token: 60.0 for token in WRITTEN}}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0},
}
METHODS = [each for each in PROPOSERS if "+" not in each]  # the others are two of these
CASES = [(method, way) for method in METHODS for way in WAYS]


@dataclass
class Written:
    """What one engine gave, and how its drafts went."""

    texts: list[list[int]]
    figures: Sequence[RoundFigures] = field(default_factory=tuple)

    @property
    def num_accepted(self) -> int:
        return sum(each.num_accepted_tokens for each in self.figures)

    @property
    def num_drafted(self) -> int:
        return sum(each.num_draft_tokens for each in self.figures)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    save_tiny(directory, "qwen3", num_hidden_layers=2, vocab_size=VOCAB)
    return directory


@pytest.fixture(scope="module")
def drafts(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Method → what it drafts with; the draft model is the target itself."""
    folder, found = tmp_path_factory.mktemp("drafts"), {"draft_model": str(target)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_heads, "VOCAB", VOCAB)
        save_eagle3(folder / "eagle3", layer_ids=(0, 1), draft_ids=WRITTEN)
        for method in ("dflash", "dspark"):
            rules = BlockRules(MASK_TOKEN)
            if method == "dspark":
                rules = BlockRules(MASK_TOKEN, samples_from_anchor=True, markov_kind="vanilla")
            save_block_head(
                folder / method, method, rules=rules, layer_ids=(0, 1), draft_ids=WRITTEN
            )
    return {**found, **{each: str(folder / each) for each in ("eagle3", "dflash", "dspark")}}


def config_for(method: str, kernels: str, drafts: dict[str, str]) -> EngineConfig:
    return EngineConfig(
        dtype=DType.FLOAT32,
        block_size=8,
        kv_cache_bytes=1 << 20,
        context_len_max=64,
        sequences_max=2,
        rows_max=32,
        prefills_max=2,
        shapes=ShapeSet(decode_batches=(1, 2), prefill_lens=(4, 8)),
        proposer=method,
        num_drafts_max=0 if method == "none" else NUM_DRAFTS,
        draft_path=drafts.get(method.removesuffix("+ngram"), ""),
        kernels=KernelChoice(kernels),
    )


def write(target: Path, config: EngineConfig, params: dict[str, Any]) -> Written:
    engine = Engine(load_model(target, config).model, config, (), rng=random.Random(3))
    texts: list[list[int]] = [[] for _ in PROMPTS]
    for number, prompt in enumerate(PROMPTS):
        asked = SamplingParams(max_tokens=NUM_TOKENS, **params)
        engine.add(EngineRequest(str(number), prompt, asked))
    while engine.has_work():
        for event in engine.step():
            assert event.finish is not FinishReason.ERROR, event.error
            texts[int(event.request_id)] += event.token_ids
    return Written(texts, engine.load().speculation.figures)


@pytest.mark.parametrize(("method", "way"), CASES)
def test_the_text_is_that_of_torchs_ops(
    target: Path, drafts: dict[str, str], method: str, way: str
) -> None:
    params = {**WAYS[way], **({} if method == "draft_model" else BIASED)}
    by_torch = write(target, config_for(method, "reference", drafts), params)
    by_triton = write(target, config_for(method, "triton", drafts), params)

    assert [len(each) for each in by_torch.texts] == [NUM_TOKENS] * len(PROMPTS)
    assert by_triton.texts == by_torch.texts
    assert (by_triton.num_accepted, by_triton.num_drafted) == (
        by_torch.num_accepted, by_torch.num_drafted,
    )  # fmt: skip
    if method != "none":
        assert by_triton.num_accepted > 0


def test_filtered_text_is_that_of_torchs_ops(target: Path) -> None:
    """Once: an interpreter takes a second for a row's filters."""
    params = {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "min_p": 0.01, **BIASED}
    found = [
        write(target, config_for("none", each, {}), params) for each in ("reference", "triton")
    ]

    assert found[0].texts == found[1].texts


def test_triton_computes_it() -> None:
    """Else the comparison would be torch with itself."""
    ops = select("cpu", "triton")
    by_torch = {op for op in REFERENCE if ops.name_of(op) == "reference"}

    # Dense products are the library's.
    assert by_torch == {"linear_dense"}
