"""config.json: what is read, and what is refused with its key named."""

from __future__ import annotations

from typing import Any

import pytest

from backend.config import RopeScaling
from backend.errors import BadCheckpoint
from backend.models.hf_config import token_ids, unknown_keys
from backend.models.registry import FAMILIES, family_of_gguf, family_of_hf

BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
REFUSED: dict[str, dict[str, Any]] = {
    "hidden_act 'gelu'": {"hidden_act": "gelu"},
    "attention_bias True": {"attention_bias": True},
    "mlp_bias True": {"mlp_bias": True},
    "sliding_window 4096": {"sliding_window": 4096},
    "sliding_window 512": {"sliding_window": 512, "use_sliding_window": True},
    "layer_types": {"layer_types": ["full_attention", "sliding_attention"]},
    "quantization_config": {"quantization_config": {"quant_method": "gptq"}},
    "rope_interleaved": {"rope_interleaved": True},
    "pretraining_tp 2": {"pretraining_tp": 2},
    "is_encoder_decoder": {"is_encoder_decoder": True},
    "rope type 'dynamic'": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "rope type 'longrope'": {"rope_parameters": {"rope_type": "longrope"}},
    "with mscale 1.0": {"rope_scaling": {**YARN, "mscale": 1.0}},
    "with truncate False": {"rope_scaling": {**YARN, "truncate": False}},
    "rope_scaling must be an object": {"rope_scaling": ["yarn"]},
    "rope_theta must be": {"rope_theta": "5e5"},
    "layer_types must be a list": {"layer_types": "full_attention"},
    "original_max_position_embeddings must be": {
        "rope_scaling": {
            "rope_type": "llama3",
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "factor": 8.0,
        }
    },
    "factor must be": {"rope_scaling": {"rope_type": "linear"}},
    "partial_rotary_factor 0.5": {"partial_rotary_factor": 0.5},
    "hidden_size must be": {"hidden_size": None},
    "vocab_size must be": {"vocab_size": "320"},
    "num_hidden_layers must be": {"num_hidden_layers": 0},
    "num_hidden_layers 9999 is more than 1024": {"num_hidden_layers": 9999},
    "rms_norm_eps must be": {"rms_norm_eps": float("nan")},
    "is no multiple of num_attention_heads 5": {"num_attention_heads": 5, "head_dim": None},
    "is no multiple of num_key_value_heads 3": {"num_key_value_heads": 3},
    "eos_token_id must be": {"eos_token_id": ["</s>"]},
}


@pytest.mark.parametrize("message", REFUSED, ids=str)
def test_what_is_not_computed_is_refused(message: str) -> None:
    with pytest.raises(BadCheckpoint, match=message) as raised:
        FAMILIES["llama"].config_from_hf({**BASE, **REFUSED[message]})

    assert "\n" not in str(raised.value)


def test_both_spellings_of_rope_are_one() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}

    config_of = FAMILIES["llama"].config_from_hf

    assert config_of({**BASE, **old}) == config_of({**BASE, **new})
    assert config_of({**BASE, **old}).rope.scaling is RopeScaling.LINEAR


def test_yarn_without_its_original_context_takes_the_context() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "truncate": True, "mscale": None}

    rope = FAMILIES["llama"].config_from_hf({**BASE, "rope_scaling": scaling}).rope

    assert (rope.original_context_len, rope.factor, rope.beta_fast) == (256, 4.0, 32.0)


def test_a_window_that_is_turned_off_is_fine() -> None:
    off = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}

    config = FAMILIES["qwen3"].config_from_hf({**BASE, **off, "head_dim": 32})

    assert (config.head_dim, config.has_qk_norm) == (32, True)


def test_head_size_where_it_is_not_given() -> None:
    assert FAMILIES["llama"].config_from_hf(BASE).head_dim == 16
    assert FAMILIES["qwen3"].config_from_hf(BASE).head_dim == 128


def test_unknown_keys_are_told_and_inert_ones_are_not() -> None:
    raw = {**BASE, "use_cache": True, "residual_multiplier": 2.0, "new_switch": False}

    assert unknown_keys(raw) == ("residual_multiplier",)


def test_end_tokens_are_one_or_many() -> None:
    assert token_ids(None, "eos_token_id") == ()
    assert token_ids(7, "eos_token_id") == (7,)
    assert token_ids([7, 9], "eos_token_id") == (7, 9)


def test_unknown_architectures_name_the_known_ones() -> None:
    with pytest.raises(BadCheckpoint, match="'GPT2LMHeadModel' is not supported; known: Llama"):
        family_of_hf("GPT2LMHeadModel")
    with pytest.raises(BadCheckpoint, match="'gptneox' is not supported; known: llama, qwen3"):
        family_of_gguf("gptneox")
