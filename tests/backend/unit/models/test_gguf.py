"""GGUF: every tensor type, both orders of queries and keys, metadata; logits as transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from backend.config import DType, EngineConfig, RopeScaling
from backend.models.checkpoint import CheckpointWeights
from backend.models.gguf_checkpoint import GgufCheckpoint
from backend.models.gguf_config import gguf_config
from backend.models.gguf_file import read_gguf
from backend.models.llama import FAMILY as LLAMA
from backend.models.loading import LoadedModel, load_model
from kernels.dispatch import select
from tests.support.tiny_checkpoints import (
    BLOCK_SIZE,
    LLAMA3_ROPE,
    YARN_ROPE,
    Chunk,
    reference_logits,
    save_tiny,
    step_logits,
)
from tests.support.tiny_gguf import TOKENIZER, encode_q4_k, encode_q6_k, write_gguf

FLOAT32 = EngineConfig(dtype=DType.FLOAT32, rows_max=64)
OPS = select("cpu", "reference")
PROMPT = [(7 * at + 3) % 320 for at in range(70)]
BLOCKS = (3, 1, 2, 5, 4, 7, 6, 9, 8)
# Blocks of 256 numbers lie along a row.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
TYPES = [
    getattr(GGMLQuantizationType, name)
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
]


def load(path: Path) -> LoadedModel:
    return load_model(path, FLOAT32, ops=OPS)


def prompt_logits(loaded: LoadedModel) -> torch.Tensor:
    cache = loaded.model.make_cache(16, BLOCK_SIZE)
    return step_logits(loaded.model, cache, [[Chunk(PROMPT, 0, BLOCKS)]])


@pytest.mark.parametrize("matrix_type", TYPES, ids=lambda each: each.name)
def test_every_type_gives_the_numbers_it_stands_for(
    tmp_path: Path, matrix_type: GGMLQuantizationType
) -> None:
    model = save_tiny(tmp_path / "hf", "llama", **WIDE)
    write_gguf(tmp_path / "tiny.gguf", model, matrix_type=matrix_type)

    actual = prompt_logits(load(tmp_path / "tiny.gguf"))

    assert (reference_logits(model, PROMPT) - actual).abs().max() < 1e-4


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_families(tmp_path: Path, family: str, is_tied: bool) -> None:
    model = save_tiny(tmp_path / "hf", family, tie_word_embeddings=is_tied)
    write_gguf(tmp_path / "tiny.gguf", model)

    loaded = load(tmp_path / "tiny.gguf")

    assert (reference_logits(model, PROMPT) - prompt_logits(loaded)).abs().max() < 1e-4
    assert loaded.config.tie_embeddings is is_tied
    assert loaded.config == replace(
        load(tmp_path / "hf").config, rms_norm_eps=float(np.float32(1e-5))
    )


def test_neighbours_rotated_or_rows_put_back_is_the_same(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama")
    write_gguf(tmp_path / "tiny.gguf", model)
    file = read_gguf(tmp_path / "tiny.gguf")
    config = gguf_config(file, LLAMA)
    as_stored = replace(LLAMA, has_gguf_permuted_qk=False)
    interleaved = replace(config, rope=replace(config.rope, is_interleaved=True))
    weights = CheckpointWeights(
        GgufCheckpoint(file, as_stored, interleaved),
        OPS,
        dtype=torch.float32,
        device=torch.device("cpu"),
        is_int8=False,
        rows_max=64,
        context_len=config.context_len_max,
    )
    neighbours = as_stored.build(interleaved, weights)

    cache = neighbours.make_cache(16, BLOCK_SIZE)
    actual = step_logits(neighbours, cache, [[Chunk(PROMPT, 0, BLOCKS)]])

    assert (reference_logits(model, PROMPT) - actual).abs().max() < 1e-4


def test_queries_and_keys_not_put_back_would_show(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama")
    write_gguf(tmp_path / "tiny.gguf", model, is_permuted=False)

    actual = prompt_logits(load(tmp_path / "tiny.gguf"))

    assert (reference_logits(model, PROMPT) - actual).abs().max() > 0.1


def test_llama3_scaling_comes_as_divisors(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama", rope_parameters=LLAMA3_ROPE)
    scaled, _factor = ROPE_INIT_FUNCTIONS["llama3"](model.config, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 16, 2) / 16)
    divisors = (plain / scaled).numpy().astype(np.float32)
    write_gguf(tmp_path / "tiny.gguf", model, extra={"rope_freqs.weight": divisors})

    loaded = load(tmp_path / "tiny.gguf")

    assert (reference_logits(model, PROMPT) - prompt_logits(loaded)).abs().max() < 1e-4
    assert loaded.report.skipped_tensors == ("rope_freqs.weight",)


def test_yarn_comes_as_metadata(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "qwen3", rope_parameters=YARN_ROPE)
    metadata: dict[str, Any] = {
        "qwen3.rope.scaling.type": "yarn",
        "qwen3.rope.scaling.factor": 4.0,
        "qwen3.rope.scaling.original_context_length": 64,
    }
    write_gguf(tmp_path / "tiny.gguf", model, metadata=metadata)

    loaded = load(tmp_path / "tiny.gguf")

    assert loaded.config.rope.scaling is RopeScaling.YARN
    assert (reference_logits(model, PROMPT) - prompt_logits(loaded)).abs().max() < 1e-4


def test_the_tokenizer_is_handed_on(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    ends = {"tokenizer.ggml.eot_token_id": 4, "llama.some_new_key": 1}
    write_gguf(path, save_tiny(tmp_path / "hf"), metadata=ends)

    loaded = load(path)

    assert loaded.tokenizer_source.kind == "gguf"
    assert loaded.tokenizer_source.path == path
    handed_on = loaded.tokenizer_source.metadata
    assert {key: handed_on[key] for key in TOKENIZER} == TOKENIZER
    assert (loaded.config.bos_token_id, loaded.config.eos_token_ids) == (1, (2, 4))
    assert loaded.report.ignored_config_keys == ("llama.some_new_key",)


@pytest.mark.parametrize("encode", [encode_q4_k, encode_q6_k])
def test_encoders_of_these_tests_are_close_to_what_they_encode(encode: Any) -> None:
    values = np.random.default_rng(0).normal(size=(4, 512)).astype(np.float32)

    stored, read_back = encode(values)

    error = np.sqrt(((values - read_back) ** 2).mean())
    assert error < (0.1 if encode is encode_q4_k else 0.03)
    ggml_type = GGMLQuantizationType.Q4_K if encode is encode_q4_k else GGMLQuantizationType.Q6_K
    assert np.allclose(read_back, quants.dequantize(stored, ggml_type), atol=1e-6)
