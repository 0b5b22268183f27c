"""The frame of the methods that read the target's states and keep a cache of their own."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TypeVar

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.layers.ops import ops_of
from backend.models.interface import CausalModel
from backend.speculate.draft_cache import DraftCache, View
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.loading import load_head
from backend.speculate.picking import Picker
from backend.speculate.protocol import Proposal, ProposeInput
from backend.speculate.running import Packer, RunningHead
from kernels.dispatch import Ops

log = logging.getLogger(__name__)

_MIB = 1 << 20
_Head = TypeVar("_Head", bound=DraftHead)


def configured_head(
    model: CausalModel, config: EngineConfig, method: str, kind: type[_Head]
) -> _Head:
    """The head that `draft_path` names. Raises SetupError where there is none of this method."""
    if not config.draft_path:
        raise SetupError(f"the draft method {method} needs a head; name its directory (draft_path)")
    head = load_head(config.draft_path, model.config)
    if not isinstance(head, kind):
        raise SetupError(
            f"the head in {config.draft_path} is not one for {method}; choose the method that it "
            "was made for"
        )
    return head


class FeatureProposer(ABC):
    """A `Proposer`: shows every row of the target to the draft, and keeps what failed apart."""

    name: str

    def __init__(
        self,
        head: DraftHead,
        model: CausalModel,
        config: EngineConfig,
        *,
        num_drafts_max: int,
        lookahead: int,
        ops: Ops | None = None,
    ) -> None:
        """`lookahead`: tokens behind a position that its row in the draft's cache depends on."""
        ops = ops or ops_of(config)
        self.num_drafts_max = min(num_drafts_max, config.num_drafts_max)
        self.taps = head.head_config.taps(model.config.num_layers)
        self.cache = DraftCache(model, config, head.head_config.shape, lookahead=lookahead)
        self._packer = Packer(config, ops)
        with torch.inference_mode():
            self._head = RunningHead(head, model, self._packer, self.cache)
        self._picker = Picker(self._packer.device)
        self._vocab_size = model.config.vocab_size
        log.info(
            "%s drafts with a cache of %d blocks, %.1f MiB",
            self.name,
            self.cache.blocks.num_blocks,
            self.cache.num_bytes / _MIB,
        )

    def propose(self, given: ProposeInput) -> Proposal | None:
        """See `Proposer`. After a failure the sequences that run then get no more drafts."""
        try:
            view = self.cache.enter(given)
            return self._drafts(given, view, self._features(given))
        except Exception:
            self.cache.lose_all()
            raise

    def release(self, slot: int) -> None:
        self.cache.release(slot)

    def note_drafts(  # noqa: B027 - most build on nothing but the target's states
        self, given: ProposeInput, token_ids: Tensor
    ) -> None:
        """Others' drafts [S, ≤ N] are verified in place of its own; for methods that build on them.

        The tokens behind the first of a row's own length mean nothing.
        """

    @abstractmethod
    def _drafts(self, given: ProposeInput, view: View, features: Tensor) -> Proposal | None:
        """`features` [S Q, F H], the taps side by side."""

    def _features(self, given: ProposeInput) -> Tensor:
        return torch.cat([given.features[tap] for tap in self.taps], -1).flatten(0, 1)

    def _proposal(
        self, given: ProposeInput, view: View, tokens: list[Tensor], probs: list[Tensor | None]
    ) -> Proposal:
        """Of N tokens [S] each; a sequence without rows of its own gets none of them."""
        known = [self._head.scattered(each, self._vocab_size) for each in probs if each is not None]
        return Proposal(
            torch.stack(tokens, 1),
            self._num_valid(given, view),
            torch.stack(known, 1) if known else None,
        )

    def _num_valid(self, given: ProposeInput, view: View) -> Tensor:
        """[S]: all that were asked for, or none."""
        return given.num_drafts * (1 - view.is_lost)
