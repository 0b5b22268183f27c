"""EAGLE-3 (Li et al. 2025, arXiv 2503.01840): one layer that drafts token after token.

It reads states of several of the target's layers at position t beside the embedding of the token at
t + 1, and drafts the one at t + 2. For a further draft its own state stands in for the target's.

Shapes: B sequences, L positions, F features, H hidden, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.errors import BadCheckpoint
from backend.speculate.heads.base import DraftHead, HeadConfig
from backend.speculate.heads.files import HeadFiles
from backend.speculate.heads.parts import DraftLayer, RmsNorm, attend_unrolled

NUM_FEATURES = 3  # where nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(HeadConfig):
    """`is_fusing_everywhere`: every layer reads the embedding, not the first one alone."""

    is_fusing_everywhere: bool = False
    is_norm_before_residual: bool = False  # the residual starts from the normed state
    is_norm_before_fc: bool = False  # one norm over all features
    has_fc_norm: bool = False  # a norm for each feature (EAGLE-3.1)
    is_output_normed: bool = False  # the next draft reads the normed state (EAGLE-3.1)

    def layer_rule(self, num_target_layers: int) -> tuple[int, ...]:
        """What enters an early, a middle and a late layer."""
        return (2, num_target_layers // 2, num_target_layers - 3)


def read_config(files: HeadFiles) -> Eagle3Config:
    """Raises BadCheckpoint for a key that is missing, wrong, or asks for what is not computed."""
    files.refuse_keys(
        "parallel_drafting", "mask_hidden", "ptd_token_id", why="this is no EAGLE-3 head"
    )
    shape, windows = files.shape()
    given = files.section("eagle_config")
    is_speculators = files.layout == "speculators"
    if files.layout == "deepspec":
        layer_ids, side = files.layer_ids("target_layer_ids"), "out"
    else:
        layer_ids, side = files.layer_ids("eagle_aux_hidden_state_layer_ids", given), "in"
    if files.flag("use_aux_hidden_state", True, given) is False:
        raise BadCheckpoint(
            f"{files.path}: use_aux_hidden_state is false: an EAGLE-1 head, only EAGLE-3 is read"
        )
    config = Eagle3Config(
        shape=shape,
        windows=windows,
        target_hidden_size=files.target_hidden_size(shape.hidden_size),
        layer_ids=layer_ids,
        tap_side="out" if side == "out" else "in",
        num_features=len(layer_ids) or NUM_FEATURES,
        draft_vocab_size=files.draft_vocab_size(shape.vocab_size),
        has_own_embedding=files.has("embed_tokens.weight"),
        has_own_lm_head=files.has("lm_head.weight"),
        is_fusing_everywhere=files.layout == "deepspec",
        # Left out of a speculators config it means true to those who read it.
        is_norm_before_residual=files.flag("norm_before_residual", is_speculators),
        is_norm_before_fc=files.flag("norm_before_fc", False, given),
        has_fc_norm=files.flag("fc_norm", False, given),
        is_output_normed=files.flag("norm_output", False, given),
    )
    if config.is_norm_before_fc and config.has_fc_norm:
        raise BadCheckpoint(f"{files.path}: norm_before_fc and fc_norm exclude each other")
    return config


class Eagle3Head(DraftHead):
    """`unroll` is for training; serving steps through the same parameters one token at a time."""

    def __init__(self, config: Eagle3Config) -> None:
        shape = config.shape
        is_fusing = [index == 0 or config.is_fusing_everywhere for index in range(shape.num_layers)]
        super().__init__(config, [DraftLayer(shape, is_fusing=each) for each in is_fusing])
        self.config = config
        size, eps = config.target_hidden_size, shape.rms_norm_eps
        self.input_norm = (
            RmsNorm(config.num_features * size, eps) if config.is_norm_before_fc else None
        )
        self.fc_norm = (
            nn.ModuleList([RmsNorm(size, eps) for _ in range(config.num_features)])
            if config.has_fc_norm
            else None
        )

    @property
    def feature_norms(self) -> Sequence[RmsNorm]:
        """One for each feature, or none at all."""
        return [each for each in self.fc_norm or () if isinstance(each, RmsNorm)]

    def fuse(self, features: Tensor) -> Tensor:
        """[..., F H] of the target, in the order of the taps → [..., H]."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        norms = self.feature_norms
        if norms:
            parts = features.chunk(len(norms), dim=-1)
            normed = [norm(part) for norm, part in zip(norms, parts, strict=True)]
            features = torch.cat(normed, -1)
        fused: Tensor = self.fc(features)
        return fused

    def feedback(self, states: Tensor) -> Tensor:
        """What the next draft reads in place of the target's features."""
        return self.norm(states) if self.config.is_output_normed else states

    def logits(self, states: Tensor) -> Tensor:
        """[..., H] as `unroll` gives them → float32 [..., Vd]."""
        return self.project(self.norm(states))

    def unroll(self, features: Tensor, next_tokens: Tensor, num_steps: int) -> Iterator[Tensor]:
        """States [B, L, H] of step 0, 1, …: row t of step s drafts the token at t + s + 2.

        `features` [B, L, F H] of positions 0 to L - 1; `next_tokens` [B, L]: the token at t + 1.
        Teacher-forced; of step s the last s rows have no token and mean nothing. Each row sees what
        it sees when serving drafts behind position t: the true rows up to t, and the provisional
        ones of its own earlier steps ("training-time test").
        """
        hidden, tokens = self.fuse(features), next_tokens
        length = tokens.shape[1]
        past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.draft_layers]
        for step in range(num_steps):
            states = self._layers(tokens, hidden, step, past)
            yield states
            hidden = self.feedback(states)
            tokens = torch.cat((tokens[:, 1:], tokens[:, :1]), 1) if length > 1 else tokens

    def _layers(
        self, tokens: Tensor, hidden: Tensor, step: int, past: list[list[tuple[Tensor, Tensor]]]
    ) -> Tensor:
        length = tokens.shape[1]
        places = torch.arange(length, device=hidden.device)
        cos_sin = self.rope.rows(places + step, length + step)
        embedded = self.embed(tokens).to(hidden.dtype)
        residual = hidden
        distance = places.unsqueeze(1) + step - places
        for layer, window, kept in zip(self.draft_layers, self.config.windows, past, strict=True):
            residual, given = self._entered(layer, embedded, residual)
            kept.append(layer.self_attn.keys_values(given, cos_sin))
            is_seen = distance >= step
            if window:
                is_seen = is_seen & (distance < window)
            attended = attend_unrolled(
                layer.self_attn.queries(given, cos_sin),
                kept,
                is_seen,
                [window == 0 or step - earlier < window for earlier in range(1, step + 1)],
            )
            residual = layer.finished(residual, attended)
        return residual

    def _entered(
        self, layer: DraftLayer, embedded: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(residual to add to, what attention projects)."""
        if layer.hidden_norm is None:
            return residual, layer.input_layernorm(residual)
        normed = layer.hidden_norm(residual)
        given = torch.cat((layer.input_layernorm(embedded), normed), -1)
        return (normed if self.config.is_norm_before_residual else residual), given
