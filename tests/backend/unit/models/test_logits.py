"""Logits at every position equal transformers' own: whole prompts, chunks, single tokens, mixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from backend.config import DType, EngineConfig
from backend.models.interface import CausalModel
from backend.models.loading import load_model
from kernels.dispatch import select
from tests.support.tiny_checkpoints import (
    BLOCK_SIZE,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    VOCAB,
    YARN_ROPE,
    Chunk,
    reference_logits,
    save_tiny,
    step_logits,
)

TOLERANCE = 1e-4
FLOAT32 = EngineConfig(dtype=DType.FLOAT32, rows_max=64)
# Not in order and with block 0 left out: a table that is taken for granted would show.
BLOCKS = (7, 2, 9, 4, 11, 5, 3, 8, 12, 1, 10, 6)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-one-kv-head": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama-all-kv-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR_ROPE}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-yarn": ("qwen3", {"tie_word_embeddings": True, "rope_parameters": YARN_ROPE}),
    "llama-yarn": ("llama", {"rope_parameters": YARN_ROPE}),
}


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def pair(request: Any, tmp_path_factory: Any) -> tuple[PreTrainedModel, CausalModel]:
    family, changes = VARIANTS[request.param]
    directory: Path = tmp_path_factory.mktemp(request.param)
    reference = save_tiny(directory, family, **changes)
    return reference, load_model(directory, FLOAT32, ops=select("cpu", "reference")).model


def tokens(count: int, seed: int = 0) -> list[int]:
    drawn = torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))
    return [int(each) for each in drawn]


def assert_close(expected: torch.Tensor, actual: torch.Tensor) -> None:
    assert expected.shape == actual.shape
    assert (expected - actual).abs().max().item() < TOLERANCE


def test_whole_prompt(pair: tuple[PreTrainedModel, CausalModel]) -> None:
    reference, model = pair
    prompt = tokens(83)

    cache = model.make_cache(16, BLOCK_SIZE)
    actual = step_logits(model, cache, [[Chunk(prompt, 0, BLOCKS)]])

    assert_close(reference_logits(reference, prompt), actual)


def test_prompt_in_three_chunks_then_token_by_token(
    pair: tuple[PreTrainedModel, CausalModel],
) -> None:
    reference, model = pair
    prompt = tokens(90, seed=1)
    bounds = [(0, 13), (13, 40), (40, 70), *[(at, at + 1) for at in range(70, 90)]]

    cache = model.make_cache(16, BLOCK_SIZE)
    parts = [
        step_logits(model, cache, [[Chunk(prompt[low:high], low, BLOCKS)]]) for low, high in bounds
    ]

    assert_close(reference_logits(reference, prompt), torch.cat(parts))
