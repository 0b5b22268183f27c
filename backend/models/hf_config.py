"""config.json of a Hugging Face directory → ModelConfig. What is not computed here is refused.

Keys that change nothing at inference are known by name; any other key is listed in the load report,
so that nobody has to guess whether it was read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from backend.config import ModelConfig, RopeConfig, RopeScaling
from backend.errors import BadCheckpoint


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Read by `decoder_config`, or checked by it.
USED_KEYS = _keys(
    """
    architectures model_type auto_map quantization_config is_encoder_decoder add_cross_attention
    vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    intermediate_size rms_norm_eps hidden_act attention_bias mlp_bias pretraining_tp
    rope_theta rope_scaling rope_parameters rope_interleaved partial_rotary_factor
    sliding_window use_sliding_window max_window_layers layer_types
    max_position_embeddings tie_word_embeddings bos_token_id eos_token_id
    """
)
# Training, defaults of sampling, bookkeeping.
INERT_KEYS = _keys(
    """
    initializer_range attention_dropout use_cache pad_token_id is_decoder torch_dtype dtype
    transformers_version transformers.js_config _name_or_path return_dict output_hidden_states
    output_attentions torchscript use_bfloat16 chunk_size_feed_forward id2label label2id
    problem_type task_specific_params finetuning_task tokenizer_class prefix is_llama_config
    cross_attention_hidden_size pruned_heads unsloth_version unsloth_fixed
    """
)

NUM_LAYERS_MAX = 1024  # a spoilt number must not make a list of millions of tensors
ROPE_THETA = 10000.0  # where nothing is said: that of the paper

_ROPE_TYPES = {
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
}
_ROPE_REQUIRED = {
    RopeScaling.NONE: _keys(""),
    RopeScaling.LINEAR: _keys("factor"),
    RopeScaling.LLAMA3: _keys(
        "factor low_freq_factor high_freq_factor original_max_position_embeddings"
    ),
    RopeScaling.YARN: _keys("factor"),
}
_ROPE_OPTIONAL = {
    RopeScaling.YARN: _keys("original_max_position_embeddings beta_fast beta_slow attention_factor")
}


def unknown_keys(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of config.json that are neither used nor known to be inert, and are set."""
    known = USED_KEYS | INERT_KEYS
    return tuple(sorted(key for key, value in raw.items() if key not in known and value))


def decoder_config(
    family: str, raw: Mapping[str, Any], *, head_dim: int | None = None, has_qk_norm: bool = False
) -> ModelConfig:
    """The keys that all Llama-like families share. `head_dim`: the family's own default.

    Raises BadCheckpoint with the key that is missing, of the wrong type or asks for something that
    is not computed.
    """
    _refuse(raw)
    num_heads = positive_int(raw, "num_attention_heads")
    hidden_size = positive_int(raw, "hidden_size")
    if head_dim is None and raw.get("head_dim") is None:
        if hidden_size % num_heads:
            raise BadCheckpoint(
                f"hidden_size {hidden_size} is no multiple of "
                f"num_attention_heads {num_heads}, and there is no head_dim"
            )
        head_dim = hidden_size // num_heads
    head_dim = positive_int(raw, "head_dim", head_dim)
    num_kv_heads = positive_int(raw, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise BadCheckpoint(
            f"num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
        )
    context_len = positive_int(raw, "max_position_embeddings")
    num_layers = positive_int(raw, "num_hidden_layers")
    if num_layers > NUM_LAYERS_MAX:
        raise BadCheckpoint(f"num_hidden_layers {num_layers} is more than {NUM_LAYERS_MAX}")
    return ModelConfig(
        family=family,
        vocab_size=positive_int(raw, "vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=positive_int(raw, "intermediate_size"),
        rms_norm_eps=positive_float(raw, "rms_norm_eps"),
        rope=rope_config(raw, head_dim, context_len),
        context_len_max=context_len,
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        has_qk_norm=has_qk_norm,
        bos_token_id=_first(token_ids(raw.get("bos_token_id"), "bos_token_id")),
        eos_token_ids=token_ids(raw.get("eos_token_id"), "eos_token_id"),
    )


def rope_config(raw: Mapping[str, Any], head_dim: int, context_len: int) -> RopeConfig:
    """Both spellings: `rope_theta` with `rope_scaling`, or all in `rope_parameters`."""
    given = {**_object(raw, "rope_scaling"), **_object(raw, "rope_parameters")}
    theta = given.pop("rope_theta", None) or raw.get("rope_theta") or ROPE_THETA
    old_name = given.pop("type", None)
    named = given.pop("rope_type", None) or old_name or "default"
    partial = given.pop("partial_rotary_factor", None) or raw.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise BadCheckpoint(f"partial_rotary_factor {partial} is not supported")
    scaling = _ROPE_TYPES.get(str(named))
    if scaling is None:
        known = ", ".join(sorted(_ROPE_TYPES))
        raise BadCheckpoint(f"rope type {named!r} is not supported; known: {known}")
    values = _rope_values(given, named, scaling)
    return RopeConfig(
        theta=positive_float({"rope_theta": theta}, "rope_theta"),
        rotary_dim=head_dim,
        scaling=scaling,
        factor=values.get("factor", 1.0),
        low_frequency_factor=values.get("low_freq_factor", 1.0),
        high_frequency_factor=values.get("high_freq_factor", 4.0),
        original_context_len=int(values.get("original_max_position_embeddings", context_len)),
        beta_fast=values.get("beta_fast", 32.0),
        beta_slow=values.get("beta_slow", 1.0),
        attention_factor=values.get("attention_factor"),
    )


def _rope_values(given: Mapping[str, Any], named: str, scaling: RopeScaling) -> dict[str, float]:
    """The numbers of one scaling; refuses keys that would change it in a way unknown here."""
    if scaling is RopeScaling.NONE:
        return {}
    required = _ROPE_REQUIRED[scaling]
    known = required | _ROPE_OPTIONAL.get(scaling, frozenset())
    for key, value in given.items():
        # YaRN's bounds are whole pairs unless `truncate` is false; true is the paper's way.
        is_default = value is None or (key == "truncate" and value is True)
        if key not in known and not is_default:
            raise BadCheckpoint(f"rope type {named!r} with {key} {value!r} is not supported")
    values = {key: positive_float(given, key) for key in known if key in required or given.get(key)}
    return values


def _refuse(raw: Mapping[str, Any]) -> None:
    for key, why in _refusals(raw):
        raise BadCheckpoint(f"{key} {raw.get(key)!r} is not supported; {why}")


def _refusals(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        yield "hidden_act", "only silu"
    for key in ("attention_bias", "mlp_bias"):
        if raw.get(key):
            yield key, "only linears without a bias"
    # Qwen3 writes a window size that `use_sliding_window` turns off.
    if raw.get("use_sliding_window") or (
        raw.get("sliding_window") and raw.get("use_sliding_window") is None
    ):
        yield "sliding_window", "only full attention"
    if any(kind != "full_attention" for kind in _list(raw, "layer_types")):
        yield "layer_types", "only full_attention"
    if raw.get("quantization_config"):
        yield "quantization_config", "take unquantized weights or a GGUF file"
    if raw.get("rope_interleaved"):
        yield "rope_interleaved", "only half-split rotary positions"
    if (raw.get("pretraining_tp") or 1) != 1:
        yield "pretraining_tp", "only 1"
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if raw.get(key):
            yield key, "only decoder-only models"


def _object(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise BadCheckpoint(f"{key} must be an object, not {value!r}")
    return value


def _list(raw: Mapping[str, Any], key: str) -> list[Any]:
    value = raw.get(key) or []
    if not isinstance(value, list):
        raise BadCheckpoint(f"{key} must be a list, not {value!r}")
    return value


def positive_int(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise BadCheckpoint(f"{key} must be a positive whole number, not {value!r}")
    return value


def positive_float(raw: Mapping[str, Any], key: str) -> float:
    value = raw.get(key)
    if not _is_number(value) or value <= 0:
        raise BadCheckpoint(f"{key} must be a positive number, not {value!r}")
    return float(value)


def token_ids(value: Any, key: str) -> tuple[int, ...]:
    """One id, a list of them, or nothing."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise BadCheckpoint(f"{key} must be a token id or a list of them, not {value!r}")
    return tuple(ids)


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
