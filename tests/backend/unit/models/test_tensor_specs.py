"""Names and shapes of the published models, as transformers has them, without their weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from backend.models.registry import FAMILIES

# config.json of meta-llama/Llama-3.1-8B, as published.
LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
# config.json of Qwen/Qwen3-8B, as published.
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
PUBLISHED = {
    "llama": (LLAMA_3_1_8B, LlamaConfig, 8_030_261_248),
    "qwen3": (QWEN3_8B, Qwen3Config, 8_190_735_360),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_tensors_of_the_published_models(name: str) -> None:
    raw, make_config, num_parameters = PUBLISHED[name]
    family = FAMILIES[name]
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(make_config(**raw))

    specs = {spec.name: spec.shape for spec in family.tensor_specs(family.config_from_hf(raw))}

    expected = {key: tuple(value.shape) for key, value in reference.state_dict().items()}
    assert expected == specs
    assert num_parameters == sum(torch.Size(shape).numel() for shape in specs.values())


def test_a_tied_model_has_no_head_of_its_own() -> None:
    family = FAMILIES["qwen3"]
    tied = family.config_from_hf({**QWEN3_8B, "tie_word_embeddings": True})

    names = {spec.name for spec in family.tensor_specs(tied)}

    assert "lm_head.weight" not in names
    assert "model.embed_tokens.weight" in names
