"""Self-attention over a paged cache: project, rotate and write, attend group by group, project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from backend.config import ModelConfig
from backend.layers.linear import Linear
from backend.layers.workspace import Activations
from kernels.dispatch import Ops
from kernels.interface import MaskKind


@dataclass(frozen=True, slots=True)
class GroupRows:
    """One attention group of a step with its rows of the query and result buffers.

    Fields as in `backend.models.interface.AttentionGroup`, which layers do not import.
    """

    queries: Tensor  # [S Q, QH, D]
    attended: Tensor  # [S Q, QH, D]
    block_tables: Tensor  # [S, W] int32
    context_lens: Tensor  # [S] int32
    query_starts: Tensor  # [S] int32
    query_len: int
    mask: MaskKind
    mask_bits: Tensor | None


@dataclass(frozen=True, slots=True)
class StepRows:
    """What is the same for every layer of one step."""

    positions: Tensor  # [R] int64
    kv_slots: Tensor  # [R] int64
    groups: Sequence[GroupRows]


class Attention:
    """Grouped-query attention. `q_norm`, `k_norm` [D]: weights of a norm on each head, if any.

    `cos_sin`: [context, rotary_dim] as `layers.rotary.cos_sin_table` makes it.
    """

    def __init__(
        self,
        config: ModelConfig,
        ops: Ops,
        *,
        qkv: Linear,
        output: Linear,
        cos_sin: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
    ) -> None:
        self._ops = ops
        self._qkv = qkv
        self._output = output
        self._cos_sin = cos_sin
        self._num_heads = config.num_heads
        self._rotary_dim = config.rope.rotary_dim
        self._is_interleaved = config.rope.is_interleaved
        self._scale = config.head_dim**-0.5
        self._q_norm = q_norm
        self._k_norm = k_norm
        self._eps = config.rms_norm_eps

    def forward(self, given: Activations, step: StepRows, keys: Tensor, values: Tensor) -> None:
        """delta ← attention(normed). Keys and values of this step are in the cache before."""
        self._qkv.forward(given.normed, given.qkv)
        self._ops.rope_kv_write(
            given.qkv,
            step.positions,
            self._cos_sin,
            step.kv_slots,
            keys,
            values,
            num_heads=self._num_heads,
            rotary_dim=self._rotary_dim,
            is_interleaved=self._is_interleaved,
            q_norm=self._q_norm,
            k_norm=self._k_norm,
            eps=self._eps,
            q_out=given.queries,
        )
        for group in step.groups:
            self._ops.paged_attention(
                group.queries,
                keys,
                values,
                group.block_tables,
                group.context_lens,
                group.query_starts,
                query_len=group.query_len,
                scale=self._scale,
                mask=group.mask,
                mask_bits=group.mask_bits,
                out=group.attended,
            )
        self._output.forward(given.attended_rows, given.delta)
