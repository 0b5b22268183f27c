"""Metadata of a GGUF file → the keys of a config.json, so that one reader checks both.

Key names: github.com/ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from backend.config import ModelConfig
from backend.errors import BadCheckpoint
from backend.models.family import Family
from backend.models.gguf_file import GgufFile
from backend.models.hf_config import token_ids

# GGUF's key behind the architecture's name → that of config.json.
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
_ROPE_SCALING_KEYS = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_CHECKED = ("attention.value_length", "rope.dimension_count", "vocab_size")
# Each changes what the model computes; absent or 0 in the families that are known here.
_REFUSED = (
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
ROPE_DIVISORS = "rope_freqs.weight"


def gguf_config(file: GgufFile, family: Family) -> ModelConfig:
    """Raises BadCheckpoint with the key that is missing or asks for what is not computed."""
    raw = as_hf_config(file, family.gguf_architecture)
    config = family.config_from_hf(raw)
    _check(file, family.gguf_architecture, config)
    divisors = _rope_divisors(file, config)
    return replace(config, rope=replace(config.rope, frequency_divisors=divisors))


def as_hf_config(file: GgufFile, architecture: str) -> dict[str, Any]:
    values = _of_architecture(file, architecture)
    for key in _REQUIRED:
        if key not in values:
            raise BadCheckpoint(f"metadata {architecture}.{key} is missing")
    raw = {name: values[key] for key, name in _KEYS.items() if key in values}
    scaling = {name: values[key] for key, name in _ROPE_SCALING_KEYS.items() if key in values}
    if scaling.get("rope_type", "none") != "none":
        raw["rope_scaling"] = scaling
    raw["vocab_size"] = _vocab_size(file, values)
    raw["tie_word_embeddings"] = "output.weight" not in file.tensors
    raw["bos_token_id"] = file.metadata.get("tokenizer.ggml.bos_token_id")
    ends = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _END_TOKENS]
    raw["eos_token_id"] = list(dict.fromkeys(each for each in ends if each is not None))
    token_ids(raw["eos_token_id"], "tokenizer.ggml.eos_token_id")
    return raw


def unknown_keys(file: GgufFile, architecture: str) -> tuple[str, ...]:
    """Keys of the architecture that nobody reads here."""
    known = {*_KEYS, *_ROPE_SCALING_KEYS, *_CHECKED, *_REFUSED}
    values = _of_architecture(file, architecture)
    return tuple(sorted(f"{architecture}.{key}" for key in values.keys() - known))


def _of_architecture(file: GgufFile, architecture: str) -> Mapping[str, Any]:
    prefix = f"{architecture}."
    return {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }


def _vocab_size(file: GgufFile, values: Mapping[str, Any]) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise BadCheckpoint("tensor token_embd.weight [vocabulary, hidden] is missing")
    size = values.get("vocab_size", table.shape[0])
    if size != table.shape[0]:
        raise BadCheckpoint(
            f"metadata vocab_size {size} is not the {table.shape[0]} rows of token_embd.weight"
        )
    return table.shape[0]


def _check(file: GgufFile, architecture: str, config: ModelConfig) -> None:
    values = _of_architecture(file, architecture)
    for key in ("attention.value_length", "rope.dimension_count"):
        if values.get(key, config.head_dim) != config.head_dim:
            raise BadCheckpoint(
                f"metadata {architecture}.{key} {values[key]} is not the head size "
                f"{config.head_dim}; that is not supported"
            )
    for key in _REFUSED:
        if values.get(key):
            raise BadCheckpoint(f"metadata {architecture}.{key} {values[key]!r} is not supported")
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise BadCheckpoint("one part of a split GGUF; merge the parts first")


def _rope_divisors(file: GgufFile, config: ModelConfig) -> tuple[float, ...]:
    """The llama3 scaling, which GGUF holds as numbers in a tensor and not as metadata."""
    tensor = file.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return ()
    if tensor.shape != (config.rope.rotary_dim // 2,) or tensor.ggml_type.name != "F32":
        raise BadCheckpoint(
            f"tensor {ROPE_DIVISORS} must be F32 [{config.rope.rotary_dim // 2}], "
            f"not {tensor.ggml_type.name} {list(tensor.shape)}"
        )
    count = tensor.shape[0]
    divisors = np.frombuffer(file.content, dtype="<f4", count=count, offset=tensor.offset)
    if not (divisors > 0).all():
        raise BadCheckpoint(f"tensor {ROPE_DIVISORS} must hold positive numbers")
    return tuple(float(each) for each in divisors)
