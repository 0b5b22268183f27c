"""What the heads of all methods share: dimensions, features, vocabulary, the target's two ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from backend.config import ModelConfig
from backend.errors import BadCheckpoint
from backend.models.interface import FeatureTap
from backend.speculate.heads.parts import DraftLayer, RmsNorm, Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """`shape` describes the head's own layers; its vocabulary and context are the target's."""

    shape: ModelConfig
    windows: tuple[int, ...]  # a layer: keys that a row sees before itself; 0: all
    target_hidden_size: int
    # Layers of the target, whose states are the features; empty: the method's rule.
    layer_ids: tuple[int, ...]
    # Published heads count in two ways: states that enter layer i, or that leave it.
    tap_side: Literal["in", "out"]
    num_features: int
    draft_vocab_size: int  # the target's: all tokens can be drafted
    has_own_embedding: bool
    has_own_lm_head: bool

    @property
    def has_draft_vocab(self) -> bool:
        return self.draft_vocab_size < self.shape.vocab_size

    def layer_rule(self, num_target_layers: int) -> tuple[int, ...]:
        """The layers of a head that does not name them, counted as `tap_side` says."""
        raise NotImplementedError

    def taps(self, num_target_layers: int) -> tuple[FeatureTap, ...]:
        """In the order in which `fc` takes them. Raises BadCheckpoint for a layer without states.

        The state behind the last layer is none of them: Hugging Face gives it normed.
        """
        layer_ids = self.layer_ids or self.layer_rule(num_target_layers)
        first = -1 if self.tap_side == "out" else 0  # what leaves layer -1 is the embedding
        last = num_target_layers - (2 if self.tap_side == "out" else 1)
        for layer in layer_ids:
            if not first <= layer <= last:
                raise BadCheckpoint(
                    f"the head reads target layer {layer}, but of a target of {num_target_layers} "
                    f"layers it can read {first} to {last}"
                )
        return tuple(FeatureTap(layer, self.tap_side) for layer in layer_ids)


class DraftHead(nn.Module):
    """Parameters by their canonical names: those of the speculators layout.

    `embed_tokens` and `lm_head` are here if the head has its own; else `attach` lends it the
    target's. A checkpoint never holds lent ones.
    """

    def __init__(self, config: HeadConfig, layers: Sequence[DraftLayer]) -> None:
        super().__init__()
        shape = config.shape
        self.head_config = config
        self.fc = nn.Linear(
            config.num_features * config.target_hidden_size, shape.hidden_size, bias=False
        )
        self.layers = nn.ModuleList(layers)
        self.norm = RmsNorm(shape.hidden_size, shape.rms_norm_eps)
        self.embed_tokens = (
            nn.Embedding(shape.vocab_size, shape.hidden_size) if config.has_own_embedding else None
        )
        self.lm_head = (
            nn.Linear(shape.hidden_size, config.draft_vocab_size, bias=False)
            if config.has_own_lm_head
            else None
        )
        self.d2t: Tensor | None
        offsets = torch.zeros(config.draft_vocab_size, dtype=torch.int64)
        self.register_buffer("d2t", offsets if config.has_draft_vocab else None)
        self.rope = Rope(shape.rope)

    @property
    def draft_layers(self) -> Sequence[DraftLayer]:
        return [each for each in self.layers if isinstance(each, DraftLayer)]

    def target_ids(self) -> Tensor:
        """[Vd] int64: the token that each row of `lm_head` stands for (`d2t` holds offsets)."""
        ids = torch.arange(self.head_config.draft_vocab_size)
        return ids if self.d2t is None else ids.to(self.d2t.device) + self.d2t

    def own_state(self) -> dict[str, Tensor]:
        """What belongs into a checkpoint: everything but what the target lends."""
        config = self.head_config
        lent = [] if config.has_own_embedding else ["embed_tokens.weight"]
        lent += [] if config.has_own_lm_head else ["lm_head.weight"]
        return {name: each for name, each in self.state_dict().items() if name not in lent}

    def attach(self, embedding: Tensor | None, lm_head: Tensor | None) -> None:
        """Lends the target's table [V, H] and the rows of its head that `target_ids` names [Vd, H].

        Both stay as they are in training. None: not needed here.
        """
        config = self.head_config
        if embedding is not None and not config.has_own_embedding:
            rows, size = embedding.shape
            self.embed_tokens = nn.Embedding(rows, size, device="meta")
            self.embed_tokens.weight = nn.Parameter(embedding, requires_grad=False)
        if lm_head is not None and not config.has_own_lm_head:
            rows, size = lm_head.shape
            self.lm_head = nn.Linear(size, rows, bias=False, device="meta")
            self.lm_head.weight = nn.Parameter(lm_head, requires_grad=False)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[...] → [..., H]. Raises ValueError before there is a table."""
        if self.embed_tokens is None:
            raise ValueError("this head has no embedding of its own; attach the target's")
        states: Tensor = self.embed_tokens(token_ids)
        return states

    def project(self, normed: Tensor) -> Tensor:
        """[..., H] behind the last norm → float32 [..., Vd]."""
        if self.lm_head is None:
            raise ValueError("this head has no lm_head of its own; attach the target's")
        logits: Tensor = self.lm_head(normed)
        return logits.float()
