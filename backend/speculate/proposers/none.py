"""No drafts: every step is a plain one."""

from __future__ import annotations

from backend.config import EngineConfig
from backend.models.interface import CausalModel, FeatureTap
from backend.speculate.protocol import Proposal, ProposeInput


class NoProposer:
    """The method that a measurement is compared with."""

    name = "none"
    num_drafts_max = 0
    taps: tuple[FeatureTap, ...] = ()

    def __init__(self, model: CausalModel, config: EngineConfig) -> None:
        pass

    def propose(self, given: ProposeInput) -> Proposal | None:
        return None

    def release(self, slot: int) -> None:
        pass
