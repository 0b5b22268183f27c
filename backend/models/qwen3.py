"""Qwen3, dense: as Llama, with a norm on every query and key head and a head size of its own.

Source: Qwen3 Technical Report (arXiv 2505.09388), section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from backend.config import ModelConfig
from backend.layers.attention import Attention, StepRows
from backend.layers.mlp import GatedMlp
from backend.layers.norm import RmsNorm
from backend.layers.workspace import Activations
from backend.models.decoder import DecoderModel, build_decoder, frame_specs
from backend.models.family import LLAMA_GGUF_NAMES, Family, TensorSpec, Weights
from backend.models.hf_config import decoder_config

HEAD_DIM = 128  # where config.json does not say: it is not hidden_size / num_attention_heads


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """Raises BadCheckpoint for what this family does not compute."""
    return decoder_config("qwen3", raw, head_dim=HEAD_DIM, has_qk_norm=True)


def tensor_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Every tensor a checkpoint must have, and no other but those in `FAMILY.skips`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    specs = list(frame_specs(config))
    for index in range(config.num_layers):
        at = f"model.layers.{index}."
        specs += [
            TensorSpec(at + "input_layernorm.weight", (hidden,)),
            TensorSpec(at + "self_attn.q_proj.weight", (queries, hidden)),
            TensorSpec(at + "self_attn.k_proj.weight", (keys, hidden)),
            TensorSpec(at + "self_attn.v_proj.weight", (keys, hidden)),
            TensorSpec(at + "self_attn.o_proj.weight", (hidden, queries)),
            TensorSpec(at + "self_attn.q_norm.weight", (config.head_dim,)),
            TensorSpec(at + "self_attn.k_norm.weight", (config.head_dim,)),
            TensorSpec(at + "post_attention_layernorm.weight", (hidden,)),
            TensorSpec(at + "mlp.gate_proj.weight", (inner, hidden)),
            TensorSpec(at + "mlp.up_proj.weight", (inner, hidden)),
            TensorSpec(at + "mlp.down_proj.weight", (hidden, inner)),
        ]
    return tuple(specs)


class Qwen3Layer:
    """Attention with normed heads, then the feed-forward block."""

    def __init__(self, config: ModelConfig, weights: Weights, at: str, cos_sin: Tensor) -> None:
        ops, eps = weights.ops, config.rms_norm_eps
        self.input_norm = RmsNorm(weights.vector(at + "input_layernorm.weight"), eps, ops)
        self._attention = Attention(
            config,
            ops,
            qkv=weights.linear(
                at + "self_attn.q_proj.weight",
                at + "self_attn.k_proj.weight",
                at + "self_attn.v_proj.weight",
            ),
            output=weights.linear(at + "self_attn.o_proj.weight"),
            cos_sin=cos_sin,
            q_norm=weights.vector(at + "self_attn.q_norm.weight"),
            k_norm=weights.vector(at + "self_attn.k_norm.weight"),
        )
        self._mlp_norm = RmsNorm(weights.vector(at + "post_attention_layernorm.weight"), eps, ops)
        self._mlp = GatedMlp(
            ops,
            gate_up=weights.linear(at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight"),
            down=weights.linear(at + "mlp.down_proj.weight"),
        )

    def forward(self, given: Activations, step: StepRows, keys: Tensor, values: Tensor) -> None:
        self._attention.forward(given, step, keys, values)
        self._mlp_norm.add_forward(given.delta, given.residual, given.normed)
        self._mlp.forward(given)


def build(config: ModelConfig, weights: Weights) -> DecoderModel:
    return build_decoder(config, weights, lambda at, table: Qwen3Layer(config, weights, at, table))


FAMILY = Family(
    name="qwen3",
    hf_architecture="Qwen3ForCausalLM",
    gguf_architecture="qwen3",
    config_from_hf=config_from_hf,
    tensor_specs=tensor_specs,
    build=build,
    gguf_names={
        **LLAMA_GGUF_NAMES,
        "blk.*.attn_q_norm.weight": "model.layers.*.self_attn.q_norm.weight",
        "blk.*.attn_k_norm.weight": "model.layers.*.self_attn.k_norm.weight",
    },
)
