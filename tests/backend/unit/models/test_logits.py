"""Logits at every position equal transformers' own: whole prompts, chunks, single tokens, mixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from backend.config import DType, EngineConfig
from backend.models.interface import CausalModel, FeatureTap
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
    step_input,
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


def test_decodes_and_prompts_in_one_step(pair: tuple[PreTrainedModel, CausalModel]) -> None:
    reference, model = pair
    first, second, third = tokens(30, seed=2), tokens(30, seed=3), tokens(12, seed=4)
    tables = ([1, 2, 3, 4], [8, 7, 6, 5], [9, 10])
    cache = model.make_cache(16, BLOCK_SIZE)
    step_logits(model, cache, [[Chunk(first[:26], 0, tables[0])]])
    step_logits(model, cache, [[Chunk(second[:19], 0, tables[1])]])

    decodes = [Chunk(first[26:28], 26, tables[0]), Chunk(second[19:21], 19, tables[1])]
    actual = step_logits(model, cache, [decodes, [Chunk(third, 0, tables[2])]])

    assert_close(reference_logits(reference, first)[26:28], actual[:2])
    assert_close(reference_logits(reference, second)[19:21], actual[2:4])
    assert_close(reference_logits(reference, third), actual[4:])


def test_features_are_the_states_between_layers(
    pair: tuple[PreTrainedModel, CausalModel],
) -> None:
    reference, model = pair
    prompt = tokens(21, seed=5)
    num_layers, hidden = model.config.num_layers, model.config.hidden_size
    taps = [FeatureTap(at, side) for at in range(num_layers) for side in ("in", "out")]
    features = {tap: torch.zeros(32, hidden) for tap in taps}
    left: list[torch.Tensor] = []
    last = reference.model.layers[-1]
    hook = last.register_forward_hook(lambda _module, _given, found: left.append(found))
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        hook.remove()
        given = step_input([[Chunk(prompt, 0, BLOCKS)]], features=features)
        final = model.forward(given, model.make_cache(16, BLOCK_SIZE))

    between = [*expected[:num_layers], left[0]]
    for tap, actual in features.items():
        wanted = between[tap.layer if tap.side == "in" else tap.layer + 1]
        assert_close(wanted[0], actual[: len(prompt)])
        assert not actual[len(prompt) :].any()
    assert_close(expected[-1][0], final)


def test_padding_rows_change_nothing(pair: tuple[PreTrainedModel, CausalModel]) -> None:
    reference, model = pair
    prompt = tokens(18, seed=6)
    cache = model.make_cache(16, BLOCK_SIZE)
    step_logits(model, cache, [[Chunk(prompt[:17], 0, BLOCKS)]])

    padding = Chunk([0], 0, [0])
    actual = step_logits(model, cache, [[Chunk(prompt[17:], 17, BLOCKS), padding, padding]])

    assert_close(reference_logits(reference, prompt)[17:], actual[:1])
    assert all(torch.isfinite(each).all() for each in (*cache.keys, *cache.values))


class ForbidHostSync(TorchDispatchMode):
    """Fails where a step would wait for the device, or where its shapes would hang on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "item"), name
        return func(*args, **(kwargs or {}))


def test_a_step_asks_the_device_for_nothing(pair: tuple[PreTrainedModel, CausalModel]) -> None:
    _reference, model = pair
    cache = model.make_cache(16, BLOCK_SIZE)
    given = step_input([[Chunk([5], 3, [1])], [Chunk(tokens(12), 0, [2, 3])]])

    with torch.inference_mode(), ForbidHostSync():
        hidden = model.forward(given, cache)
        first_storage = hidden.untyped_storage().data_ptr()
        model.logits(hidden)
        again = model.forward(given, cache)

    assert again.untyped_storage().data_ptr() == first_storage


def test_a_cache_knows_its_size(pair: tuple[PreTrainedModel, CausalModel]) -> None:
    _reference, model = pair
    cache = model.make_cache(5, BLOCK_SIZE)

    held = sum(each.nbytes for each in (*cache.keys, *cache.values))

    assert cache.num_blocks == 5
    assert held == 5 * BLOCK_SIZE * model.kv_bytes_per_token()
    assert cache.keys[0].shape == (5, model.config.num_kv_heads, BLOCK_SIZE, model.config.head_dim)
