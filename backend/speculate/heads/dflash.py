"""DFlash (Chen, Liang, Liu 2026, arXiv 2602.06036): a whole block of drafts in one pass.

The target's states give keys and values of every position that it has processed; a block of the
newest token and mask tokens attends to them and to itself, in both directions. A mask at position t
predicts the token at t.

Shapes: B sequences, L positions, F features, A anchors, R rows of a block, H hidden, KH key heads,
D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.errors import BadCheckpoint
from backend.speculate.heads.base import DraftHead, HeadConfig
from backend.speculate.heads.files import HeadFiles
from backend.speculate.heads.parts import DraftLayer, RmsNorm, attend_blocks

KeysValues = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(HeadConfig):
    """`is_causal`: layers whose block rows do not see those behind them."""

    block_size: int
    mask_token_id: int
    is_causal: tuple[bool, ...]
    # The newest token's own row drafts too: R rows give R drafts, else R - 1.
    samples_from_anchor: bool = False

    @property
    def num_drafts_max(self) -> int:
        return self.block_size if self.samples_from_anchor else self.block_size - 1

    def layer_rule(self, num_target_layers: int) -> tuple[int, ...]:
        """What leaves one layer for each of the head's own, from the second to the last but two."""
        spread = max(1, self.num_features - 1)
        return tuple(
            round(1 + index * (num_target_layers - 4) / spread)
            for index in range(self.num_features)
        )


def read_config(files: HeadFiles) -> DFlashConfig:
    """Raises BadCheckpoint for a key that is missing, wrong, or asks for what is not computed."""
    return DFlashConfig(**common_fields(files, samples_from_anchor=False))


def common_fields(files: HeadFiles, *, samples_from_anchor: bool) -> dict[str, Any]:
    """The fields of a `DFlashConfig`; `samples_from_anchor` where nothing is said."""
    given = files.section("dflash_config")
    for section in (given, files.raw):
        files.refuse_keys(
            *("use_swa", "attention_sinks", "conv_kernel_size", "candidate_rank"),
            why="only plain DFlash layers are computed",
            section=section,
        )
    if files.value("attention_value_scale", given) not in (None, 1, 1.0):
        raise BadCheckpoint(f"{files.path}: attention_value_scale is not supported")
    shape, windows = files.shape()
    if files.layout == "speculators":
        layer_ids = files.layer_ids("aux_hidden_state_layer_ids")
    else:
        layer_ids = files.layer_ids("target_layer_ids", given)
    if not layer_ids and files.layout != "native":
        raise BadCheckpoint(f"{files.path}: no layers of the target are named")
    mask_token_id = files.whole("mask_token_id", None, given)
    if mask_token_id >= shape.vocab_size:
        raise BadCheckpoint(
            f"{files.path}: mask_token_id {mask_token_id} is outside of the vocabulary of "
            f"{shape.vocab_size}"
        )
    block_size = files.whole("block_size", None, given)
    if block_size < 2:
        raise BadCheckpoint(f"{files.path}: block_size {block_size} leaves no draft")
    return {
        "shape": shape,
        "windows": windows,
        "target_hidden_size": files.target_hidden_size(shape.hidden_size),
        "layer_ids": layer_ids,
        # In a speculators config layer i means what enters it, as EAGLE counts.
        "tap_side": "in" if files.layout == "speculators" else "out",
        "num_features": len(layer_ids) or shape.num_layers,
        "draft_vocab_size": files.draft_vocab_size(shape.vocab_size),
        "has_own_embedding": files.has("embed_tokens.weight"),
        "has_own_lm_head": files.has("lm_head.weight"),
        "block_size": block_size,
        "mask_token_id": mask_token_id,
        "is_causal": _causality(files, windows),
        "samples_from_anchor": files.flag("sample_from_anchor", samples_from_anchor, given),
    }


def _causality(files: HeadFiles, windows: Sequence[int]) -> tuple[bool, ...]:
    """A layer's own word, else one for all, else layers with a window look back only."""
    given = files.section("dflash_config")
    stated = files.value("is_causal", given)
    if stated is None:
        stated = files.value("causal", given)
    if isinstance(stated, bool):
        return (stated,) * len(windows)
    if isinstance(stated, list) and len(stated) == len(windows):
        return tuple(bool(each) for each in stated)
    if stated is not None:
        raise BadCheckpoint(f"{files.path}: is_causal {stated!r} is not one for each layer")
    if files.flag("sliding_window_non_causal", False):
        return (False,) * len(windows)
    return tuple(window > 0 for window in windows)


class DFlashHead(DraftHead):
    """`context` and `blocks` are for training; serving keeps the context in a cache."""

    def __init__(self, config: DFlashConfig) -> None:
        shape = config.shape
        super().__init__(config, [DraftLayer(shape) for _ in range(shape.num_layers)])
        self.config = config
        self.hidden_norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)

    def context(self, features: Tensor) -> list[KeysValues]:
        """[B, L, F H] of positions 0 to L - 1 → each layer's keys and values [B, L, KH, D]."""
        states = self.hidden_norm(self.fc(features))
        length = features.shape[1]
        cos_sin = self.rope.rows(torch.arange(length, device=features.device), length)
        return [layer.self_attn.keys_values(states, cos_sin) for layer in self.draft_layers]

    def block_ids(self, anchor_tokens: Tensor, num_rows: int) -> Tensor:
        """[...] tokens → [..., R]: each with its masks."""
        shape = (*anchor_tokens.shape, num_rows - 1)
        masks = anchor_tokens.new_full(shape, self.config.mask_token_id)
        return torch.cat((anchor_tokens.unsqueeze(-1), masks), -1)

    def blocks(self, context: Sequence[KeysValues], anchors: Tensor, block_ids: Tensor) -> Tensor:
        """Normed states [B, A, R, H] of blocks that stand at `anchors` [B, A].

        A block sees the context before its anchor and itself; `block_ids` [B, A, R].
        """
        num_rows, length = block_ids.shape[-1], context[0][0].shape[1]
        offsets = torch.arange(num_rows, device=anchors.device)
        positions = anchors.unsqueeze(-1) + offsets
        cos_sin = self.rope.rows(positions, length + num_rows)
        residual = self.embed(block_ids).to(context[0][0].dtype)
        places = torch.arange(length, device=anchors.device)
        is_before = places < anchors[..., None, None]
        for layer, window, is_causal, kept in zip(
            self.draft_layers, self.config.windows, self.config.is_causal, context, strict=True
        ):
            given = layer.input_layernorm(residual)
            distance = offsets.unsqueeze(1) - offsets
            is_seen, own_is_seen = is_before.expand(*positions.shape, length), distance > -num_rows
            if is_causal:
                own_is_seen = distance >= 0
            if window:
                is_seen = is_seen & (positions.unsqueeze(-1) - places < window)
                own_is_seen = own_is_seen & (distance < window)
            attended = attend_blocks(
                layer.self_attn.queries(given, cos_sin),
                kept,
                layer.self_attn.keys_values(given, cos_sin),
                is_seen,
                own_is_seen,
            )
            residual = layer.finished(residual, attended)
        states: Tensor = self.norm(residual)
        return states
