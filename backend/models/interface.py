"""What the engine and a model say to each other. No model knows requests, no engine knows layers.

Shapes: R rows of a step, S sequences of a group, W blocks of a table, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from backend.config import ModelConfig

MaskKind = Literal["causal", "block", "bits"]


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows [row_start, row_start + S · query_len) of the step: S sequences of equal query length.

    Row j of a sequence stands at position `query_starts[s] + j` and sees keys up to itself
    ("causal"), all keys of the context ("block"), or those of its ancestor bits ("bits"); never a
    key at or behind `context_lens[s]`. Rows that only pad a shape write to block 0, and nobody
    reads what they compute.
    """

    row_start: int
    num_sequences: int
    query_len: int
    block_tables: Tensor  # [S, W] int32; unused entries 0
    context_lens: Tensor  # [S] int32: keys that exist, this step's own among them
    query_starts: Tensor  # [S] int32
    mask: MaskKind = "causal"
    mask_bits: Tensor | None = None  # [S, query_len] int64

    @property
    def num_rows(self) -> int:
        return self.num_sequences * self.query_len


@dataclass(frozen=True, slots=True)
class FeatureTap:
    """States for a draft: of this layer, as they enter it or as they leave it (residual added)."""

    layer: int
    side: Literal["in", "out"]


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """One step. All tensors live on the model's device; sizes come from the declared set."""

    token_ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    kv_slots: Tensor  # [R] int64: block · block_size + offset; 0..block_size - 1 is for padding
    groups: Sequence[AttentionGroup]
    features: Mapping[FeatureTap, Tensor] | None = None  # [≥ R, H] buffers to be filled


@dataclass(frozen=True, slots=True)
class KvCache:
    """Keys and values of every layer, in blocks. Block 0 takes what padding rows write."""

    keys: Sequence[Tensor]  # a layer: [num_blocks, num_kv_heads, block_size, head_dim]
    values: Sequence[Tensor]
    block_size: int

    @property
    def num_blocks(self) -> int:
        return int(self.keys[0].shape[0])


class CausalModel(Protocol):
    """A model with its weights on a device."""

    config: ModelConfig

    def forward(self, given: ForwardInput, cache: KvCache) -> Tensor:
        """States after the last norm, [R, H]. Writes this step's keys and values first."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] → float32 [S, V]."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """[R] int64 → rows of the embedding table, [R, H] in the model's type: drafts share it."""
        ...

    def head_rows(self, token_ids: Tensor) -> Tensor:
        """float32 [K, H]: the rows that give these tokens' logits. Slow; for loading a draft."""
        ...

    def make_cache(self, num_blocks: int, block_size: int) -> KvCache:
        """Empty, on the model's device, zeroed."""
        ...

    def kv_bytes_per_token(self) -> int: ...
