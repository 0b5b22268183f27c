"""DSpark: DFlash's block, then token after token by the Markov head (arXiv 2607.05147).

Shapes: S sequences, N drafts, H hidden, Vd draft vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.models.interface import CausalModel
from backend.speculate.draft_cache import View
from backend.speculate.feature_proposer import configured_head
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.proposers.dflash import DFlashProposer
from backend.speculate.protocol import Proposal, ProposeInput
from backend.speculate.running import projected
from kernels.dispatch import Ops


class DSparkProposer(DFlashProposer):
    name = "dspark"

    def __init__(
        self,
        head: DSparkHead,
        model: CausalModel,
        config: EngineConfig,
        ops: Ops | None = None,
        *,
        survival_min: float = 0.0,
        is_confidence_told: bool = False,
    ) -> None:
        """`survival_min`: no draft whose chance to be reached and accepted is estimated lower.
        `is_confidence_told`: proposals say what is estimated, even where nothing is left out.

        Whether a draft is kept depends on those before it alone, so no choice is biased by it.
        """
        super().__init__(head, model, config, ops)
        packer = self._packer
        self._survival_min = survival_min
        self._reads_markov = head.config.reads_markov
        self._markov = packer.module(head.markov_head)
        self._confidence = packer.module(head.confidence_head)
        self._is_confidence_used = is_confidence_told or survival_min > 0.0
        self._w2 = self._w2_int8 = None
        if head.markov_head is not None:
            self._w2 = packer.linear(head.markov_head.markov_w2.weight)
            if head.config.markov_kind == "vanilla":
                self._w2_int8 = packer.int8_for("markov_pick", self._w2)

    def _chosen(self, given: ProposeInput, view: View, states: Tensor) -> Proposal:
        """Slot after slot, each with what was chosen before it."""
        logits = self._head.logits(states.flatten(0, 1)).view(*states.shape[:2], -1)
        proposal = self._best(given, view, logits)
        if proposal is None:
            proposal = self._one_by_one(given, view, states, logits)
        if self._confidence is None or not self._is_confidence_used:
            return proposal
        before = torch.cat((given.last_tokens.unsqueeze(1), proposal.token_ids[:, :-1]), 1)
        return self._limited(proposal, self._confidences(states, before))

    def _best(self, given: ProposeInput, view: View, logits: Tensor) -> Proposal | None:
        """All slots in one call; None where there is none for this head, or drafts are drawn."""
        if self._markov is None or self._w2_int8 is None or given.temperatures is not None:
            return None
        tokens = self._packer.ops.markov_pick(
            logits,
            given.last_tokens,
            self._markov.markov_w1.weight,
            self._w2_int8,
            offsets=self._head.offsets,
        )
        return Proposal(tokens, self._num_valid(given, view))

    def _one_by_one(
        self, given: ProposeInput, view: View, states: Tensor, logits: Tensor
    ) -> Proposal:
        previous = given.last_tokens
        memory = None if self._markov is None else self._markov.start(states[:, 0])
        tokens: list[Tensor] = []
        probs: list[Tensor | None] = []
        for slot in range(given.num_drafts):
            row = logits[:, slot]
            if self._markov is not None and self._w2 is not None and memory is not None:
                latent, memory = self._markov.latent(previous, states[:, slot], memory)
                row = row + projected(self._w2, latent, row.shape[1], torch.float32)
            draft_ids, drawn_from = self._picker.pick(row, given.temperatures)
            previous = self._head.target_ids(draft_ids)
            tokens.append(previous)
            probs.append(drawn_from)
        return self._proposal(given, view, tokens, probs)

    def _confidences(self, states: Tensor, previous: Tensor) -> Tensor:
        """[S, N]: how likely each draft is accepted if those before it are."""
        assert self._confidence is not None
        if self._reads_markov and self._markov is not None:
            states = torch.cat((states, self._markov.markov_w1(previous)), -1)
        logits: Tensor = self._confidence.proj(states)
        return torch.sigmoid(logits.squeeze(-1).float())

    def _limited(self, proposal: Proposal, confidences: Tensor) -> Proposal:
        num_likely = (confidences.cumprod(1) >= self._survival_min).sum(1)
        return replace(
            proposal,
            num_valid=torch.minimum(proposal.num_valid, num_likely),
            confidences=confidences,
        )


def make(model: CausalModel, config: EngineConfig) -> DSparkProposer:
    """Raises SetupError for a head that is not there, not DSpark, or of another target."""
    head = configured_head(model, config, DSparkProposer.name, DSparkHead)
    return DSparkProposer(head, model, config)
