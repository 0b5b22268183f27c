"""In worlds of known truth the gateway's own predictions hold as often as they say."""

from __future__ import annotations

import pytest

from gateway.simulator.routing.bench import Cell, Task, run_task


@pytest.mark.parametrize("world", ["calm", "drift"])
def test_ninety_percent_intervals_hold_in_calm_and_drift(world: str) -> None:
    played = run_task(
        Task(cell=Cell(world=world), seed=3, duration_s=300.0, routers=("fastest", "round_robin"))
    )
    ours, theirs = played.figures["fastest"], played.figures["round_robin"]

    for coverage in (ours.coverage_90, ours.speed_coverage_90, ours.ttft_coverage_90):
        assert coverage is not None
        assert 0.85 <= coverage <= 0.95
    assert ours.coverage_50 == pytest.approx(0.5, abs=0.08)
    assert ours.bias_ln is not None
    assert abs(ours.bias_ln) < 0.4
    assert (theirs.coverage_90, theirs.coverage_50, theirs.bias_ln) == (None, None, None)
