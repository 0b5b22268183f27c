"""A draft head's parameters as serving uses them: packed for the ops, layer by layer.

The module stays what it is; what is made here are the same weights in the engine's type, int8 where
the engine computes in int8. `fc` is never int8: the raw states of a target hold a few huge values,
beside which a row's own scale would round all others away.

Shapes: R rows, S sequences, H hidden, QH query heads, KH key heads, D head size, Vd draft
vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from backend.config import EngineConfig, ModelConfig, Quantization
from backend.layers.linear import DenseLinear, Int8Linear, Linear
from backend.layers.rotary import cos_sin_table
from backend.models.interface import CausalModel
from backend.speculate.draft_cache import DraftCache, Places
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.parts import DraftLayer, RmsNorm
from kernels.dispatch import Ops
from kernels.interface import Int8Weight, MaskKind

_T = TypeVar("_T")
_Module = TypeVar("_Module", bound=nn.Module | None)


class Packer:
    """Makes weights of parameters."""

    def __init__(self, config: EngineConfig, ops: Ops) -> None:
        self.ops = ops
        self.dtype: torch.dtype = getattr(torch, config.dtype.value)
        self.device = torch.device(config.device)
        self._is_int8 = config.quantization is Quantization.INT8

    def linear(self, *weights: Tensor) -> Linear:
        """[N_i, K] stacked to [ΣN_i, K]."""
        merged = torch.cat([each.detach().float() for each in weights])
        if self._is_int8:
            return Int8Linear(self.ops.pack_int8(merged.to(self.device)), self.ops)
        return self.dense(merged)

    def int8_for(self, op: str, linear: Linear) -> Int8Weight | None:
        """The weight for an op that is given it as it is. None where it is not int8, or another
        implementation than the one that packed it serves that op."""
        if self.ops.name_of(op) != self.ops.name_of("linear_int8"):
            return None
        return linear.weight if isinstance(linear, Int8Linear) else None

    def stacked_for(self, op: str, weights: Sequence[Tensor]) -> Tensor | None:
        """[N_i, K] as one [ΣN_i, K] for an op that does at once what a linear and `rope_kv_write`
        do apart. None where linears are int8, or another implementation than that of
        `rope_kv_write` serves the op."""
        if self._is_int8 or self.ops.name_of(op) != self.ops.name_of("rope_kv_write"):
            return None
        return self.vector(torch.cat([each.detach() for each in weights])).contiguous()

    def dense(self, weight: Tensor) -> Linear:
        return DenseLinear(weight.detach().to(self.device, self.dtype).contiguous(), self.ops)

    def vector(self, weight: Tensor) -> Tensor:
        return weight.detach().to(self.device, self.dtype)

    def module(self, module: _Module) -> _Module:
        """A copy as it is, for what is too small to be packed."""
        if module is None:
            return module
        copied = copy.deepcopy(module).to(self.device, self.dtype).requires_grad_(False)
        return cast("_Module", copied)

    def norm(self, module: RmsNorm) -> Norm:
        return Norm(self.vector(module.weight), module.eps, self.ops)


@dataclass(frozen=True, slots=True)
class Norm:
    weight: Tensor
    eps: float
    ops: Ops

    def __call__(self, x: Tensor) -> Tensor:
        return self.ops.rms_norm(x, self.weight, eps=self.eps)[0]

    def added(self, delta: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(normed sum, sum)."""
        return self.ops.rms_norm(delta, self.weight, eps=self.eps, residual=residual)


def projected(linear: Linear, x: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """[R, width] in new memory, in the type of x if no other is asked."""
    out = torch.empty(x.shape[0], width, dtype=dtype or x.dtype, device=x.device)
    return linear.forward(x, out)


class RunningLayer:
    """One `DraftLayer`. `window`: keys that a row sees before itself; 0: all."""

    def __init__(
        self, layer: DraftLayer, shape: ModelConfig, cos_sin: Tensor, window: int, packer: Packer
    ) -> None:
        attention = layer.self_attn
        self.input_norm = packer.norm(layer.input_layernorm)
        self.hidden_norm = None if layer.hidden_norm is None else packer.norm(layer.hidden_norm)
        self._post_norm = packer.norm(layer.post_attention_layernorm)
        weights = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
        self._qkv = packer.linear(*weights)
        self._output = packer.linear(attention.o_proj.weight)
        self._gate_up = packer.linear(layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)
        self._down = packer.linear(layer.mlp.down_proj.weight)
        self._q_norm, self._k_norm = (
            None if each is None else packer.vector(each.weight)
            for each in (attention.q_norm, attention.k_norm)
        )
        self._shape = shape
        self._cos_sin = cos_sin
        self._window = window
        self._ops = packer.ops

    def enter(self, x: Tensor, places: Places, keys: Tensor, values: Tensor) -> Tensor:
        """Keys and values of rows [R, K in] into their slots; gives queries [R, QH, D]."""
        shape = self._shape
        width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        return self._rotate(
            projected(self._qkv, x, width), places, keys, values, shape.num_heads, self._q_norm
        )

    def write(self, heads: Tensor, places: Places, keys: Tensor, values: Tensor) -> None:
        """`heads` [R, 2 KH D]: keys and values as projected, into their slots."""
        self._rotate(heads, places, keys, values, 0, None)

    def attend(
        self, queries: Tensor, places: Places, keys: Tensor, values: Tensor, mask: MaskKind
    ) -> Tensor:
        """[S Q, QH, D] → [S Q, H], not yet added to the residual."""
        attended = self._ops.paged_attention(
            queries,
            keys,
            values,
            places.block_tables,
            places.context_lens,
            places.query_starts,
            query_len=places.query_len,
            scale=self._shape.head_dim**-0.5,
            mask=mask,
            window=self._window,
        )
        return projected(self._output, attended.flatten(1), self._shape.hidden_size)

    def finish(self, residual: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The feed-forward block → (residual, what is to be added to it)."""
        normed, residual = self._post_norm.added(delta, residual)
        gate_up = projected(self._gate_up, normed, 2 * self._shape.intermediate_size)
        gated = self._ops.gated_mul(gate_up)
        return residual, projected(self._down, gated, self._shape.hidden_size)

    def _rotate(
        self,
        qkv: Tensor,
        places: Places,
        keys: Tensor,
        values: Tensor,
        num_heads: int,
        q_norm: Tensor | None,
    ) -> Tensor:
        rope = self._shape.rope
        return self._ops.rope_kv_write(
            qkv,
            places.positions,
            self._cos_sin,
            places.kv_slots,
            keys,
            values,
            num_heads=num_heads,
            rotary_dim=rope.rotary_dim,
            is_interleaved=rope.is_interleaved,
            q_norm=q_norm,
            k_norm=self._k_norm,
            eps=self._shape.rms_norm_eps,
        )


class RunningHead:
    """What is the same for all methods: the two ends, the features' projection, the layers."""

    def __init__(
        self, head: DraftHead, model: CausalModel, packer: Packer, cache: DraftCache
    ) -> None:
        config = head.head_config
        self.shape = config.shape
        self.draft_vocab_size = config.draft_vocab_size
        self.cache = cache
        self._model = model
        self._fc = packer.dense(head.fc.weight)
        self.norm = packer.norm(head.norm)
        self.cos_sin = cos_sin_table(self.shape.rope, cache.num_positions, packer.device)
        self.layers = [
            RunningLayer(layer, self.shape, self.cos_sin, window, packer)
            for layer, window in zip(head.draft_layers, config.windows, strict=True)
        ]
        self._table = _own(head.embed_tokens, packer.vector)
        self._lm_head = _own(head.lm_head, packer.linear)
        if self._lm_head is None and config.has_draft_vocab:
            # Rows of the target's own head, read once.
            rows = model.head_rows(head.target_ids().to(packer.device))
            self._lm_head = packer.linear(rows)
        self.offsets = None if head.d2t is None else head.d2t.to(packer.device)

    def fuse(self, features: Tensor) -> Tensor:
        """[R, F H] → [R, H]."""
        return projected(self._fc, features, self.shape.hidden_size)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[R] → [R, H]."""
        if self._table is None:
            return self._model.embed(token_ids)
        return self._table.index_select(0, token_ids)

    def logits(self, normed: Tensor) -> Tensor:
        """[R, H] behind the last norm → float32 [R, Vd]."""
        if self._lm_head is None:
            return self._model.logits(normed)
        return projected(self._lm_head, normed, self.draft_vocab_size, torch.float32)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary → the target's."""
        if self.offsets is None:
            return draft_ids
        return draft_ids + self.offsets.index_select(0, draft_ids.flatten()).view_as(draft_ids)

    def scattered(self, probs: Tensor, vocab_size: int) -> Tensor:
        """[S, Vd] → [S, V]: nothing for tokens that cannot be drafted."""
        if self.offsets is None:
            return probs
        ids = torch.arange(self.draft_vocab_size, device=probs.device) + self.offsets
        wide = torch.zeros(probs.shape[0], vocab_size, dtype=probs.dtype, device=probs.device)
        return wide.index_copy_(1, ids, probs)


def _own(module: nn.Module | None, pack: Callable[[Tensor], _T]) -> _T | None:
    if module is None:
        return None
    weight = module.weight
    assert isinstance(weight, Tensor)
    return pack(weight)
