"""The ops of an engine: one choice for its model, its sampler and its drafts."""

from __future__ import annotations

from backend.config import EngineConfig
from backend.errors import SetupError
from kernels.dispatch import Ops, select


def ops_of(config: EngineConfig) -> Ops:
    """Raises SetupError for an implementation that this device cannot have."""
    chosen = config.kernels
    try:
        return select(config.device, chosen.implementation, withheld=chosen.withheld)
    except ValueError as error:
        raise SetupError(str(error)) from error
