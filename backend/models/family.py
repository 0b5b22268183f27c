"""What a model family declares: its names in files, its tensors, how its config is read and built.

Tensor names inside the backend are those of Hugging Face checkpoints; a GGUF file's own names are
translated when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.layers.linear import Linear
from backend.models.interface import CausalModel
from kernels.dispatch import Ops

# GGUF → Hugging Face; * stands for the layer's index.
LLAMA_GGUF_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.*.attn_norm.weight": "model.layers.*.input_layernorm.weight",
    "blk.*.attn_q.weight": "model.layers.*.self_attn.q_proj.weight",
    "blk.*.attn_k.weight": "model.layers.*.self_attn.k_proj.weight",
    "blk.*.attn_v.weight": "model.layers.*.self_attn.v_proj.weight",
    "blk.*.attn_output.weight": "model.layers.*.self_attn.o_proj.weight",
    "blk.*.ffn_norm.weight": "model.layers.*.post_attention_layernorm.weight",
    "blk.*.ffn_gate.weight": "model.layers.*.mlp.gate_proj.weight",
    "blk.*.ffn_up.weight": "model.layers.*.mlp.up_proj.weight",
    "blk.*.ffn_down.weight": "model.layers.*.mlp.down_proj.weight",
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint, by its Hugging Face name."""

    name: str
    shape: tuple[int, ...]


class Weights(Protocol):
    """Reads the tensors a family asks for, one after the other, onto the model's device."""

    ops: Ops
    dtype: torch.dtype
    device: torch.device
    rows_max: int  # rows a step may have
    context_len: int  # positions that will be used

    def linear(self, *names: str) -> Linear:
        """Weights [N_i, K] stacked to one [ΣN_i, K], in int8 where the engine asks for it."""
        ...

    def table(self, name: str) -> Tensor:
        """[V, H] in the model's type."""
        ...

    def vector(self, name: str) -> Tensor:
        """[H] in the model's type: weights of norms."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """One line of the registry. `skips`: patterns (fnmatch) of tensors that nobody needs."""

    name: str
    hf_architecture: str  # the only entry of `architectures` in config.json
    gguf_architecture: str  # general.architecture
    config_from_hf: Callable[[Mapping[str, Any]], ModelConfig]
    tensor_specs: Callable[[ModelConfig], tuple[TensorSpec, ...]]
    build: Callable[[ModelConfig, Weights], CausalModel]
    gguf_names: Mapping[str, str]
    skips: tuple[str, ...] = ()
    has_gguf_permuted_qk: bool = False  # rows of Q and K interleaved, as llama.cpp stores them
