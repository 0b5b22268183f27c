"""DSpark (DeepSeek-AI and Peking University 2026, arXiv 2607.05147): DFlash, and a little order.

A Markov head adds to each slot's logits what the token chosen before it makes likely; a confidence
head says how likely each draft is to be accepted. With a Markov rank of 0 it is DFlash whose newest
token drafts too, as DeepSpec's own DFlash heads are.

Shapes: R rows of a block, H hidden, r Markov rank, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from backend.errors import BadCheckpoint
from backend.speculate.heads.dflash import DFlashConfig, DFlashHead, common_fields
from backend.speculate.heads.files import HeadFiles

MarkovKind = Literal["vanilla", "gated", "rnn"]
_KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig(DFlashConfig):
    markov_rank: int = 0
    markov_kind: MarkovKind = "vanilla"
    has_confidence: bool = False
    reads_markov: bool = False  # the confidence head, beside the block's state
    has_confidence_bias: bool = True


def read_config(files: HeadFiles) -> DSparkConfig:
    """Raises BadCheckpoint for a key that is missing, wrong, or asks for what is not computed."""
    fields = common_fields(files, samples_from_anchor=files.layout != "speculators")
    rank = files.whole("markov_rank", None)
    kind = files.value("markov_head_type") or "vanilla"
    if kind not in _KINDS:
        raise BadCheckpoint(
            f"{files.path}: markov_head_type {kind!r} is not supported; known: {', '.join(_KINDS)}"
        )
    has_confidence = files.flag("enable_confidence_head", files.has("confidence_head.proj.weight"))
    reads_markov = has_confidence and files.flag("confidence_head_with_markov", rank > 0)
    if reads_markov and rank == 0:
        raise BadCheckpoint(
            f"{files.path}: confidence_head_with_markov without a Markov head (markov_rank 0)"
        )
    return DSparkConfig(
        **fields,
        markov_rank=rank,
        markov_kind=cast("MarkovKind", kind),
        has_confidence=has_confidence,
        reads_markov=reads_markov,
        has_confidence_bias=files.has("confidence_head.proj.bias"),
    )


class MarkovHead(nn.Module):
    """The bias that the token before gives each slot: low rank, V × Vd."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, size = config.markov_rank, config.shape.hidden_size
        self.rank = rank
        self.markov_w1 = nn.Embedding(config.shape.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        is_gated, is_recurrent = config.markov_kind == "gated", config.markov_kind == "rnn"
        self.gate_proj = nn.Linear(size + rank, rank) if is_gated else None
        self.joint_proj = nn.Linear(2 * rank + size, 3 * rank) if is_recurrent else None

    def start(self, states: Tensor) -> Tensor:
        """Before the first slot: [..., H] → [..., r]."""
        return states.new_zeros(*states.shape[:-1], self.rank)

    def latent(self, previous: Tensor, states: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(what `markov_w2` projects, memory of the next slot) [..., r] each.

        `previous` [...]: the token before; `states` [..., H] of the slot.
        """
        embedded = self.markov_w1(previous).to(states.dtype)
        if self.gate_proj is not None:
            gate = torch.sigmoid(self.gate_proj(torch.cat((states, embedded), -1)))
            return gate * embedded, memory
        if self.joint_proj is not None:
            joint = self.joint_proj(torch.cat((memory, embedded, states), -1))
            gate, candidate, output = joint.chunk(3, -1)
            gate = torch.sigmoid(gate)
            return torch.tanh(output), gate * memory + (1 - gate) * torch.tanh(candidate)
        return embedded, memory


class ConfidenceHead(nn.Module):
    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        size = config.shape.hidden_size + (config.markov_rank if config.reads_markov else 0)
        self.proj = nn.Linear(size, 1, bias=config.has_confidence_bias)


class DSparkHead(DFlashHead):
    """`blocks` gives the states; the two small heads read them."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__(config)
        self.config: DSparkConfig = config
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.has_confidence else None

    def block_logits(self, states: Tensor, previous: Tensor) -> Tensor:
        """States [..., R, H] of the slots that draft, and the token before each [..., R] → float32
        [..., R, Vd]. Teacher-forced: in training `previous` is the text."""
        latents = self.latents(states, previous)
        if self.markov_head is None or latents is None:
            return self.project(states)
        bias: Tensor = self.markov_head.markov_w2(latents)
        return self.project(states) + bias.float()

    def latents(self, states: Tensor, previous: Tensor) -> Tensor | None:
        """[..., R, r]: what `markov_w2` projects, slot after slot; None without a Markov head."""
        if self.markov_head is None:
            return None
        memory, made = self.markov_head.start(states[..., 0, :]), []
        for slot in range(states.shape[-2]):
            latent, memory = self.markov_head.latent(
                previous[..., slot], states[..., slot, :], memory
            )
            made.append(latent)
        return torch.stack(made, -2)

    def confidence_logits(self, states: Tensor, previous: Tensor) -> Tensor:
        """[..., R] float32: the log-odds that each slot's draft is accepted if those before are.

        Raises ValueError for a head without one.
        """
        if self.confidence_head is None:
            raise ValueError("this head has no confidence head")
        given = states
        if self.config.reads_markov and self.markov_head is not None:
            given = torch.cat((states, self.markov_head.markov_w1(previous).to(states.dtype)), -1)
        logits: Tensor = self.confidence_head.proj(given)
        return logits.squeeze(-1).float()
