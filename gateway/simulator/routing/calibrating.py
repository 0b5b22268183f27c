"""How well our own routers foresaw what came: their fleets' calibration as figures of a run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from gateway.fleet.calibration import COMPLETION, SPEED, TTFT
from gateway.simulator.routing.measures import Figures
from gateway.simulator.routing.ours import OurRouter
from gateway.simulator.routing.router import Router


def with_calibration(figures: Figures, routers: Sequence[Router]) -> Figures:
    """The same figures, with coverage and bias over all endpoints and replicas, weighted by n."""
    fleets = [router.fleet for router in routers if isinstance(router, OurRouter)]
    shown = [
        by_figure
        for fleet in fleets
        for endpoint_id in fleet.snapshot().stats
        for by_figure in fleet.calibration(endpoint_id).values()
    ]
    return structs.replace(
        figures,
        coverage_50=_mean(shown, COMPLETION, "coverage_50"),
        coverage_90=_mean(shown, COMPLETION, "coverage_90"),
        bias_ln=_mean(shown, COMPLETION, "bias_ln"),
        speed_coverage_90=_mean(shown, SPEED, "coverage_90"),
        ttft_coverage_90=_mean(shown, TTFT, "coverage_90"),
    )


def _mean(shown: Sequence[dict[str, dict[str, float]]], figure: str, what: str) -> float | None:
    held = [each[figure] for each in shown if figure in each]
    n = sum(each["n"] for each in held)
    return sum(each["n"] * each[what] for each in held) / n if n > 0.0 else None
