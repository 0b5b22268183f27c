"""Draft methods, slow and obvious: everything from the whole prefix, nothing kept, in float64.

Written from the published formulas alone and independent of the code under test: tensors by their
names in the file, a loop where a loop is clearer. A reference is given the target's true states of
every position that the target has processed, and every token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Dimensions:
    """As a head's config.json gives them."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    eps: float
    theta: float
    windows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Row:
    """One row of an attention: who it is, and what the others see of it."""

    position: int
    key: Tensor  # [KH, D]
    value: Tensor
    query: Tensor | None = None  # [QH, D]


@dataclass(frozen=True)
class Eagle3Rules:
    is_norm_before_residual: bool = False
    is_norm_before_fc: bool = False
    has_fc_norm: bool = False
    is_output_normed: bool = False
    is_fusing_everywhere: bool = False


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rope(heads: Tensor, position: int, theta: float) -> Tensor:
    """[heads, D] of one row: entries i and i + D / 2 are a point that turns with the position."""
    size = heads.shape[-1]
    points = torch.complex(heads[:, : size // 2], heads[:, size // 2 :])
    angles = position * theta ** (-torch.arange(0, size, 2).double() / size)
    turned = points * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


def attend(query: Tensor, position: int, seen: Sequence[Row], window: int) -> Tensor:
    """[QH, D] over the rows that are seen; of a window only those near enough."""
    rows = [row for row in seen if not window or position - row.position < window]
    group = query.shape[0] // rows[0].key.shape[0]
    keys = torch.stack([row.key for row in rows]).repeat_interleave(group, 1)
    values = torch.stack([row.value for row in rows]).repeat_interleave(group, 1)
    scores = (keys * query).sum(-1) / math.sqrt(query.shape[1])
    return (torch.softmax(scores, 0).unsqueeze(-1) * values).sum(0)


@dataclass
class Layer:
    """One layer's tensors under a prefix of names."""

    tensors: Tensors
    prefix: str
    dims: Dimensions
    window: int = 0

    def weight(self, name: str) -> Tensor:
        return self.tensors[f"{self.prefix}{name}.weight"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight(name), self.dims.eps)

    def row(self, x: Tensor, position: int, *, has_query: bool = True) -> Row:
        dims = self.dims

        def heads(name: str, count: int, norm: str | None) -> Tensor:
            found = (self.weight(f"self_attn.{name}") @ x).view(count, dims.head_dim)
            if norm and f"{self.prefix}self_attn.{norm}.weight" in self.tensors:
                found = self.norm(f"self_attn.{norm}", found)
            return found if norm is None else rope(found, position, dims.theta)

        return Row(
            position,
            heads("k_proj", dims.num_kv_heads, "k_norm"),
            heads("v_proj", dims.num_kv_heads, None),
            heads("q_proj", dims.num_heads, "q_norm") if has_query else None,
        )

    def behind(self, residual: Tensor, row: Row, seen: Sequence[Row]) -> Tensor:
        """The residual behind attention and feed-forward block."""
        assert row.query is not None
        attended = attend(row.query, row.position, seen, self.window).flatten()
        residual = residual + self.weight("self_attn.o_proj") @ attended
        x = self.norm("post_attention_layernorm", residual)
        gate = torch.nn.functional.silu(self.weight("mlp.gate_proj") @ x)
        return residual + self.weight("mlp.down_proj") @ (gate * (self.weight("mlp.up_proj") @ x))


@dataclass
class Eagle3Reference:
    """`tensors` by canonical names (`layers.0.` for the first layer), in float64."""

    tensors: Tensors
    dims: Dimensions
    embedding: Tensor  # [V, H]
    lm_head: Tensor  # [Vd, H]
    rules: Eagle3Rules = field(default_factory=Eagle3Rules)

    def drafts(
        self,
        tokens: Sequence[int],
        features: Sequence[Tensor],
        num_drafts: int,
        missing: Sequence[int] = (),
    ) -> list[int]:
        """`features`: [positions, H] a tap, of all positions but the last token's. Positions that
        are `missing` were never shown to the draft."""
        num_true = len(tokens) - 1
        rows = [(p, tokens[p + 1], self._fused(features, p)) for p in range(num_true)]
        rows = [row for row in rows if row[0] not in missing]
        drafts: list[int] = []
        for step in range(num_drafts):
            state = self._last_state(rows)
            logits = self.lm_head @ rms_norm(state, self._weight("norm"), self.dims.eps)
            index = int(logits.argmax())
            offset = int(self.tensors["d2t"][index]) if "d2t" in self.tensors else 0
            drafts.append(index + offset)
            if self.rules.is_output_normed:
                state = rms_norm(state, self._weight("norm"), self.dims.eps)
            rows.append((num_true + step, drafts[-1], state))
        return drafts

    def _weight(self, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"]

    def _fused(self, features: Sequence[Tensor], position: int) -> Tensor:
        parts = [each[position].double() for each in features]
        if self.rules.has_fc_norm:
            eps = self.dims.eps
            parts = [rms_norm(x, self._weight(f"fc_norm.{i}"), eps) for i, x in enumerate(parts)]
        joined = torch.cat(parts)
        if self.rules.is_norm_before_fc:
            joined = rms_norm(joined, self._weight("input_norm"), self.dims.eps)
        return self._weight("fc") @ joined

    def _last_state(self, rows: Sequence[tuple[int, int, Tensor]]) -> Tensor:
        """All rows through all layers; row i sees rows 0 to i."""
        states = [hidden for _, _, hidden in rows]
        for index in range(self.dims.num_layers):
            window = self.dims.windows[index] if self.dims.windows else 0
            layer = Layer(self.tensors, f"layers.{index}.", self.dims, window)
            seen: list[Row] = []
            behind = []
            for (position, token, _), state in zip(rows, states, strict=True):
                residual = state
                if index == 0 or self.rules.is_fusing_everywhere:
                    e = layer.norm("input_layernorm", self.embedding[token])
                    g = layer.norm("hidden_norm", state)
                    residual = g if self.rules.is_norm_before_residual else state
                    x = torch.cat((e, g))
                else:
                    x = layer.norm("input_layernorm", state)
                seen.append(layer.row(x, position))
                behind.append(layer.behind(residual, seen[-1], seen))
            states = behind
        return states[-1]


@dataclass(frozen=True)
class BlockRules:
    mask_token_id: int
    samples_from_anchor: bool = False
    is_causal: tuple[bool, ...] = ()
    markov_kind: str = ""  # none
    reads_markov: bool = True


@dataclass
class BlockReference:
    """DFlash, and DSpark where the rules say so. `tensors` in float64."""

    tensors: Tensors
    dims: Dimensions
    embedding: Tensor
    lm_head: Tensor
    rules: BlockRules

    def drafts(
        self,
        tokens: Sequence[int],
        features: Sequence[Tensor],
        num_drafts: int,
        missing: Sequence[int] = (),
    ) -> list[int]:
        return self.chosen(tokens, features, num_drafts, missing)[0]

    def chosen(
        self,
        tokens: Sequence[int],
        features: Sequence[Tensor],
        num_drafts: int,
        missing: Sequence[int] = (),
    ) -> tuple[list[int], list[float]]:
        """(drafts, how likely each is thought to be accepted)."""
        states = self._states(tokens, features, num_drafts, missing)
        drafts: list[int] = []
        confidences = []
        previous, memory = tokens[-1], torch.zeros(())
        for state in states:
            logits = self.lm_head @ state
            if self.rules.markov_kind:
                latent, memory = self._latent(previous, state, memory)
                logits = logits + self.tensors["markov_head.markov_w2.weight"] @ latent
            confidences.append(self._confidence(state, previous))
            index = int(logits.argmax())
            previous = index + (int(self.tensors["d2t"][index]) if "d2t" in self.tensors else 0)
            drafts.append(previous)
        return drafts, confidences

    def _states(
        self,
        tokens: Sequence[int],
        features: Sequence[Tensor],
        num_drafts: int,
        missing: Sequence[int],
    ) -> list[Tensor]:
        """Normed, of the rows that draft."""
        num_true, rules, eps = len(tokens) - 1, self.rules, self.dims.eps
        context = {}
        for position in set(range(num_true)) - set(missing):
            fused = self.tensors["fc.weight"] @ torch.cat([each[position] for each in features])
            context[position] = rms_norm(fused, self.tensors["hidden_norm.weight"], eps)
        num_rows = num_drafts if rules.samples_from_anchor else num_drafts + 1
        ids = [tokens[-1], *[rules.mask_token_id] * (num_rows - 1)]
        states = [self.embedding[token] for token in ids]
        for index in range(self.dims.num_layers):
            window = self.dims.windows[index] if self.dims.windows else 0
            layer = Layer(self.tensors, f"layers.{index}.", self.dims, window)
            before = [layer.row(c, p, has_query=False) for p, c in context.items()]
            block = [
                layer.row(layer.norm("input_layernorm", state), num_true + place)
                for place, state in enumerate(states)
            ]
            is_causal = bool(rules.is_causal) and rules.is_causal[index]
            states = [
                layer.behind(state, row, [*before, *(block[: place + 1] if is_causal else block)])
                for place, (state, row) in enumerate(zip(states, block, strict=True))
            ]
        normed = [rms_norm(state, self.tensors["norm.weight"], eps) for state in states]
        return normed[num_rows - num_drafts :]

    def _latent(self, previous: int, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.tensors["markov_head.markov_w1.weight"][previous]
        if self.rules.markov_kind == "gated":
            gate = torch.sigmoid(self._affine("gate_proj", torch.cat((state, embedded))))
            return gate * embedded, memory
        if self.rules.markov_kind == "rnn":
            memory = memory.expand(embedded.shape)
            joint = self._affine("joint_proj", torch.cat((memory, embedded, state)))
            gate, candidate, output = joint.view(3, -1)
            gate = torch.sigmoid(gate)
            return torch.tanh(output), gate * memory + (1 - gate) * torch.tanh(candidate)
        return embedded, memory

    def _affine(self, name: str, x: Tensor) -> Tensor:
        at = f"markov_head.{name}."
        return self.tensors[at + "weight"] @ x + self.tensors[at + "bias"]

    def _confidence(self, state: Tensor, previous: int) -> float:
        if "confidence_head.proj.weight" not in self.tensors:
            return math.nan
        given = state
        if self.rules.reads_markov and self.rules.markov_kind:
            given = torch.cat((state, self.tensors["markov_head.markov_w1.weight"][previous]))
        logit = self.tensors["confidence_head.proj.weight"][0] @ given
        bias = self.tensors.get("confidence_head.proj.bias")
        return float(torch.sigmoid(logit + (0 if bias is None else bias[0])))
