"""What a caller of the ops sees: the types they share and one protocol an op.

Every implementation has these signatures; a test holds them against `specs.OPS`. All ops read sizes
from shapes and never from values, so that a step can be captured as a graph. `out=` and its like
are written in place and returned; without them new tensors are made.

Shapes: R rows, S sequences, Q rows a sequence, W blocks of a table, QH query heads, KH key heads,
D head size, K in, N out, V vocabulary, I intermediate, E experts, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

MaskKind = Literal["causal", "block", "bits"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A linear's weight, one symmetric scale an output: weight ≈ qweight · scale[:, None].

    `packed` belongs to the implementation that made it (`Ops.pack_int8`); None is valid for all of
    them and means that they work from `qweight`.
    """

    qweight: Tensor  # [N, K] int8, -127..127
    scale: Tensor  # [N] float32
    packed: object | None = None

    @property
    def out_features(self) -> int:
        return int(self.qweight.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.qweight.shape[1])

    def dequantized(self) -> Tensor:
        """float32 [N, K]."""
        return self.qweight.float() * self.scale[:, None]


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A linear's weight in float8, one scale an output: weight ≈ qweight · scale[:, None].

    e4m3fn (largest value 448) is the OCP's format; e4m3fnuz (240) is that of CDNA 3 (gfx942).
    """

    qweight: Tensor  # [N, K] float8_e4m3fn or float8_e4m3fnuz
    scale: Tensor  # [N] float32

    @property
    def out_features(self) -> int:
        return int(self.qweight.shape[0])

    @property
    def in_features(self) -> int:
        return int(self.qweight.shape[1])

    def dequantized(self) -> Tensor:
        """float32 [N, K]."""
        return self.qweight.float() * self.scale[:, None]


INT4_BLOCK = 128  # inputs whose nibbles share 64 bytes
INT4_ZERO = 8  # the nibble of zero


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A linear's weight in 4 bits, one symmetric scale for a group of inputs of an output:
    weight ≈ (nibble - 8) · scale, nibbles 1..15.

    Two nibbles a byte: in each block of 128 inputs, byte j (0..63) holds input j in its low half
    and input 64 + j in its high half. So a run of bytes is two runs of inputs, each within one
    group. K is filled up to a whole block with nibbles of zero.
    """

    packed: Tensor  # [N, 64 · ceil(K / 128)] uint8
    scale: Tensor  # [128 · ceil(K / 128) / group_size, N] bfloat16
    in_features: int
    group_size: int  # 32, 64 or 128

    @property
    def out_features(self) -> int:
        return int(self.packed.shape[0])

    def dequantized(self) -> Tensor:
        """float32 [N, K]."""
        blocks = self.packed.reshape(self.out_features, -1, 1, INT4_BLOCK // 2)
        nibbles = torch.cat((blocks & 15, blocks >> 4), dim=2)
        groups = (nibbles.float() - INT4_ZERO).reshape(self.out_features, -1, self.group_size)
        return (groups * self.scale.float().t()[:, :, None]).flatten(1)[:, : self.in_features]


class RmsNorm(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        eps: float,
        residual: Tensor | None = None,
        is_zero_centred: bool = False,
        out: Tensor | None = None,
        residual_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...


class RopeKvWrite(Protocol):
    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_slots: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        num_heads: int,
        rotary_dim: int,
        is_interleaved: bool = False,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        q_out: Tensor | None = None,
    ) -> Tensor: ...


class PagedAttention(Protocol):
    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        context_lens: Tensor,
        query_starts: Tensor,
        *,
        query_len: int,
        scale: float,
        mask: MaskKind = "causal",
        mask_bits: Tensor | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
        num_splits: int = 0,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class DflashContextKv(Protocol):
    def __call__(
        self,
        states: Tensor,
        weight: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_slots: Tensor,
        *,
        k_caches: Tensor,
        v_caches: Tensor,
        rotary_dim: int,
        is_interleaved: bool = False,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> tuple[Tensor, Tensor]: ...


class GatedMul(Protocol):
    def __call__(
        self, gate_up: Tensor, *, activation: Activation = "silu", out: Tensor | None = None
    ) -> Tensor: ...


class LinearDense(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class LinearInt8(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Int8Weight,
        *,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class LinearFp8(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Fp8Weight,
        *,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class LinearWeightOnly(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Int8Weight | Int4Weight,
        *,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class RowStats(Protocol):
    def __call__(
        self,
        logits: Tensor,
        *,
        temperature: Tensor | None = None,
        max_out: Tensor | None = None,
        sum_out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...


class Sample(Protocol):
    def __call__(
        self,
        logits: Tensor,
        uniforms: Tensor,
        *,
        temperature: Tensor | None = None,
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
        top_k_max: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class VerifyRejection(Protocol):
    def __call__(
        self,
        logits: Tensor,
        draft_ids: Tensor,
        num_valid: Tensor,
        uniforms: Tensor,
        *,
        temperature: Tensor | None = None,
        draft_probs: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class ResidualPick(Protocol):
    def __call__(
        self,
        logits: Tensor,
        num_accepted: Tensor,
        uniforms: Tensor,
        *,
        temperature: Tensor | None = None,
        draft_ids: Tensor | None = None,
        draft_probs: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class MarkovPick(Protocol):
    def __call__(
        self,
        logits: Tensor,
        previous: Tensor,
        table: Tensor,
        weight: Int8Weight,
        *,
        offsets: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor: ...


class MoeMatmul(Protocol):
    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        expert_ids: Tensor,
        expert_weights: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor: ...


class GatedDelta(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        scale: float,
        state_out: Tensor | None = None,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
