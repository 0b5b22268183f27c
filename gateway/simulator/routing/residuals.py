"""Request noise as LLMPerf measured it, instead of the log-normal that other worlds draw from.

Each endpoint is given the residual shape of one measured provider: the request's common random
numbers pick quantiles of it. First token and decode are drawn apart: within the files their
correlation is 0.08 in the middle. Medians stay the world's own, for a ranking of 2023 means nothing
now.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.simulator.routing.workloads.llmperf import Shape
from gateway.simulator.routing.world import World

FAILED_SHARE_MAX = 0.05  # a provider that mostly refused has too few answers to show a spread


def with_residuals(world: World, shapes: Sequence[Shape], rng: np.random.Generator) -> World:
    """`world` under the name `llmperf`, each endpoint with one of the shapes drawn by `rng`."""
    steady = [shape for shape in shapes if shape.failed_share <= FAILED_SHARE_MAX]
    specs = tuple(
        msgspec.structs.replace(
            spec,
            ttft_residuals=tuple(sorted(shape.ttft_residuals)),
            rate_residuals=tuple(sorted(shape.rate_residuals)),
            error_share=max(spec.error_share, shape.failed_share),
        )
        for spec, shape in ((spec, steady[int(rng.integers(len(steady)))]) for spec in world.specs)
    )
    return msgspec.structs.replace(world, name="llmperf", specs=specs)
