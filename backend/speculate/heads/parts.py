"""What draft heads are built of, as torch modules: parameters by their published names.

Training differentiates these; serving reads the same parameters (`backend.speculate.running`).
Norms, scores and softmax are taken in float32 whatever the type of the weights.

Shapes: B sequences, R rows, T keys, QH query heads, KH key heads, D head size, H hidden, A anchors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.config import ModelConfig, RopeConfig
from backend.layers.rotary import cos_sin_table

HIDDEN_SCORE = -1e30  # finite, so that a row that sees nothing stays finite


class RmsNorm(nn.Module):
    """Zhang and Sennrich 2019 (arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        normed = torch.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)
        return normed.to(x.dtype)


class Rope:
    """Cosines and sines by position, as serving computes them; grows on demand."""

    def __init__(self, rope: RopeConfig) -> None:
        self._rope = rope
        self._table = torch.empty(0)

    def rows(self, positions: Tensor, num_positions: int) -> tuple[Tensor, Tensor]:
        """[..., 1, rotary_dim / 2] each, float32; `num_positions`: all are below it."""
        table = self._table
        if table.shape[0] < num_positions or table.device != positions.device:
            table = cos_sin_table(self._rope, num_positions, positions.device)
            self._table = table
        cos, sin = table[positions].unsqueeze(-2).chunk(2, dim=-1)
        return cos, sin


def rotated(heads: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """[..., heads, D]: entry i is paired with i + D / 2 (Su et al. 2021, half-split)."""
    cos, sin = cos_sin
    low, high = heads.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(heads.dtype)


class Attention(nn.Module):
    """Projections with their names; who sees whom is the caller's."""

    def __init__(self, shape: ModelConfig, input_size: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.head_dim = shape.head_dim
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(input_size, queries, bias=False)
        self.k_proj = nn.Linear(input_size, keys, bias=False)
        self.v_proj = nn.Linear(input_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if shape.has_qk_norm:
            self.q_norm = RmsNorm(self.head_dim, shape.rms_norm_eps)
            self.k_norm = RmsNorm(self.head_dim, shape.rms_norm_eps)

    def queries(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        """[..., input] → [..., QH, D], normed and rotated."""
        heads = self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim))
        return rotated(heads if self.q_norm is None else self.q_norm(heads), cos_sin)

    def keys_values(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """[..., input] → [..., KH, D] each."""
        shape = (self.num_kv_heads, self.head_dim)
        heads = self.k_proj(x).unflatten(-1, shape)
        keys = rotated(heads if self.k_norm is None else self.k_norm(heads), cos_sin)
        return keys, self.v_proj(x).unflatten(-1, shape)

    def output(self, attended: Tensor) -> Tensor:
        """[..., QH, D] → [..., H]."""
        projected: Tensor = self.o_proj(attended.flatten(-2))
        return projected


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, shape: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class DraftLayer(nn.Module):
    """A pre-norm layer. `is_fusing`: its attention reads token and state side by side (EAGLE-3)."""

    def __init__(self, shape: ModelConfig, *, is_fusing: bool = False) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.input_layernorm = RmsNorm(size, eps)
        self.hidden_norm = RmsNorm(size, eps) if is_fusing else None
        self.self_attn = Attention(shape, 2 * size if is_fusing else size)
        self.post_attention_layernorm = RmsNorm(size, eps)
        self.mlp = Mlp(shape)

    def finished(self, residual: Tensor, attended: Tensor) -> Tensor:
        """[..., H] and the attention's [..., QH, D] → the residual behind the layer."""
        residual = residual + self.self_attn.output(attended)
        behind: Tensor = residual + self.mlp(self.post_attention_layernorm(residual))
        return behind


def attend_unrolled(
    queries: Tensor,
    keys_values: Sequence[tuple[Tensor, Tensor]],
    is_seen: Tensor,
    later_is_seen: Sequence[bool],
) -> Tensor:
    """Attention of EAGLE-3's training-time test (arXiv 2503.01840): all [B, R, heads, D].

    Row t sees keys of the first entry as `is_seen` [R, R] says, and of each later one only its own,
    the key of the draft that follows it; not even that where `later_is_seen` is False.
    """
    group = queries.shape[2] // keys_values[0][0].shape[2]
    scale = queries.shape[-1] ** -0.5
    q = queries.float() * scale
    keys, values = (each.float().repeat_interleave(group, 2) for each in keys_values[0])
    scores = torch.einsum("brhd,bthd->bhrt", q, keys).masked_fill(~is_seen, HIDDEN_SCORE)
    later = [pair for pair, seen in zip(keys_values[1:], later_is_seen, strict=True) if seen]
    own = [(q * k.float().repeat_interleave(group, 2)).sum(-1).transpose(1, 2) for k, _ in later]
    weights = torch.softmax(torch.cat((scores, *(each.unsqueeze(-1) for each in own)), -1), -1)
    result = torch.einsum("bhrt,bthd->brhd", weights[..., : keys.shape[1]], values)
    for index, (_, value) in enumerate(later):
        weight = weights[..., keys.shape[1] + index].transpose(1, 2).unsqueeze(-1)
        result = result + weight * value.float().repeat_interleave(group, 2)
    attended: Tensor = result.to(queries.dtype)
    return attended


def attend_blocks(
    queries: Tensor,
    context: tuple[Tensor, Tensor],
    block: tuple[Tensor, Tensor],
    context_is_seen: Tensor,
    block_is_seen: Tensor,
) -> Tensor:
    """Attention of blocks [B, A, R, heads, D] that share a context [B, T, KH, D].

    A block sees the context as `context_is_seen` [B, A, R, T] says and itself as `block_is_seen`
    [R, R] says; no other block.
    """
    group = queries.shape[3] // context[0].shape[2]
    q = queries.float() * queries.shape[-1] ** -0.5
    keys, values = (each.float().repeat_interleave(group, 2) for each in context)
    own_keys, own_values = (each.float().repeat_interleave(group, 3) for each in block)
    scores = torch.einsum("barhd,bthd->bhart", q, keys)
    scores = scores.masked_fill(~context_is_seen.unsqueeze(1), HIDDEN_SCORE)
    own = torch.einsum("barhd,bakhd->bhark", q, own_keys)
    own = own.masked_fill(~block_is_seen, HIDDEN_SCORE)
    weights = torch.softmax(torch.cat((scores, own), -1), -1)
    num_keys = keys.shape[1]
    result = torch.einsum("bhart,bthd->barhd", weights[..., :num_keys], values)
    result = result + torch.einsum("bhark,bakhd->barhd", weights[..., num_keys:], own_values)
    attended: Tensor = result.to(queries.dtype)
    return attended
