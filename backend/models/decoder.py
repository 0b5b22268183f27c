"""The frame around a family's layers: embed, run them in order, normalise, project to logits.

A family says what one layer does; everything that all decoder-only models share is here: the cache,
the groups of a step, the feature taps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.config import ModelConfig
from backend.layers.attention import StepRows
from backend.layers.embedding import Embedding, Head
from backend.layers.norm import RmsNorm
from backend.layers.rotary import cos_sin_table
from backend.layers.workspace import Activations, Workspace
from backend.models.captured import CapturedSteps
from backend.models.family import TensorSpec, Weights
from backend.models.interface import FeatureTap, ForwardInput, KvCache
from kernels import memory
from kernels.dispatch import Ops

# Names that the checkpoints of nearly all decoder-only models share.
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class DecoderLayer(Protocol):
    """A layer starts from `normed` and leaves in `delta` what is to be added to `residual`."""

    input_norm: RmsNorm

    def forward(self, given: Activations, step: StepRows, keys: Tensor, values: Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """What a family hands over."""

    embedding: Embedding
    layers: Sequence[DecoderLayer]
    final_norm: RmsNorm
    head: Head


class DecoderModel:
    """A `CausalModel`. The states it returns are valid until its next forward."""

    def __init__(
        self,
        config: ModelConfig,
        parts: DecoderParts,
        *,
        ops: Ops,
        rows_max: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._embedding = parts.embedding
        self._layers = tuple(parts.layers)
        self._final_norm = parts.final_norm
        self._head = parts.head
        self._workspace = Workspace(config, rows_max, dtype=dtype, device=device)
        self._steps = CapturedSteps(ops)

    def forward(self, given: ForwardInput, cache: KvCache) -> Tensor:
        """[R, H] after the last norm; see `CausalModel.forward`."""
        rows = given.token_ids.shape[0]
        states = self._workspace.take(rows)
        self._embedding.forward(given.token_ids, states.residual)

        def run_layers(step: StepRows) -> None:
            self._run_layers(step, states, cache, given.features)

        self._steps.run(given, cache, states, run_layers)
        return states.normed

    def _run_layers(
        self,
        step: StepRows,
        states: Activations,
        cache: KvCache,
        taps: Mapping[FeatureTap, Tensor] | None,
    ) -> None:
        """From `states.residual` to `states.normed`, by ops alone."""
        for index, layer in enumerate(self._layers):
            # The sum of the layer before is taken with this layer's norm, in one pass.
            if index == 0:
                layer.input_norm.forward(states.residual, states.normed)
            else:
                layer.input_norm.add_forward(states.delta, states.residual, states.normed)
            _tap(taps, index, layer.input_norm, states)
            layer.forward(states, step, cache.keys[index], cache.values[index])
        self._final_norm.add_forward(states.delta, states.residual, states.normed)
        _tap(taps, len(self._layers), self._final_norm, states)

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] → float32 [S, V]."""
        return self._head.forward(hidden)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[R] → [R, H]."""
        shape = (token_ids.shape[0], self.config.hidden_size)
        out = torch.empty(shape, dtype=self.dtype, device=self.device)
        self._embedding.forward(token_ids, out)
        return out

    def head_rows(self, token_ids: Tensor) -> Tensor:
        """float32 [K, H]."""
        if self.config.tie_embeddings:
            return self.embed(token_ids).float()
        return self._head.rows(token_ids, self.config.hidden_size, self.dtype)

    def make_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Zeroed: rows that only pad read from it, and a NaN there would spread."""
        shape = (num_blocks, self.config.num_kv_heads, block_size, self.config.head_dim)

        def zeros() -> Tensor:
            if self.device.type == "cpu":
                return memory.zeros(shape, self.dtype)
            return torch.zeros(shape, dtype=self.dtype, device=self.device)

        keys, values = (tuple(zeros() for _ in self._layers) for _ in range(2))
        return KvCache(keys=keys, values=values, block_size=block_size)

    def kv_bytes_per_token(self) -> int:
        """Keys and values of one position, all layers."""
        config = self.config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.dtype.itemsize


def frame_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """The tensors outside of the layers."""
    table = (config.vocab_size, config.hidden_size)
    specs = (TensorSpec(EMBEDDING, table), TensorSpec(FINAL_NORM, (config.hidden_size,)))
    return specs if config.tie_embeddings else (*specs, TensorSpec(HEAD, table))


def build_decoder(
    config: ModelConfig, weights: Weights, make_layer: Callable[[str, Tensor], DecoderLayer]
) -> DecoderModel:
    """Reads every tensor once, layer by layer.

    `make_layer` is given the prefix of a layer's names and the table of cosines and sines.
    """
    table = weights.table(EMBEDDING)
    cos_sin = cos_sin_table(config.rope, weights.context_len, weights.device)
    layers = [make_layer(f"model.layers.{index}.", cos_sin) for index in range(config.num_layers)]
    parts = DecoderParts(
        embedding=Embedding(table),
        layers=layers,
        final_norm=RmsNorm(weights.vector(FINAL_NORM), config.rms_norm_eps, weights.ops),
        head=Head(weights.linear(EMBEDDING if config.tie_embeddings else HEAD), config.vocab_size),
    )
    return DecoderModel(
        config,
        parts,
        ops=weights.ops,
        rows_max=weights.rows_max,
        dtype=weights.dtype,
        device=weights.device,
    )


def _tap(
    taps: Mapping[FeatureTap, Tensor] | None, layer: int, norm: RmsNorm, states: Activations
) -> None:
    """What enters layer `layer` is what left the one before. `norm` has just been taken of it; that
    it is taken again is what a copy costs."""
    for tap, buffer in (taps or {}).items():
        if (tap.layer if tap.side == "in" else tap.layer + 1) == layer:
            norm.copy_forward(states.residual, states.normed, buffer[: states.residual.shape[0]])
