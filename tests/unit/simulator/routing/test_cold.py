"""The cost of coldness: a run whose routers begin anew, beside its warm twin."""

from __future__ import annotations

import pytest

from gateway.simulator.routing.bench import Cell, Task, factory_of, run_task, summarise
from gateway.simulator.routing.cold import JUDGED_S, judged
from gateway.simulator.routing.episode import play
from gateway.simulator.routing.ours import OurRouter
from gateway.simulator.routing.report import as_markdown
from gateway.simulator.routing.workloads.registry import workload
from gateway.simulator.routing.worlds import make_world


def test_a_router_that_measures_pays_and_one_that_does_not_pays_nothing() -> None:
    routers = ("fastest", "static_table", "clairvoyant_means")
    played = run_task(
        Task(cell=Cell(world="cold-start"), seed=2, duration_s=240.0, routers=routers)
    )
    ours, table, oracle = (played.figures[name] for name in routers)
    assert ours.cold_mean is not None
    assert ours.cold_minute is not None
    assert 1.02 < ours.cold_mean < ours.cold_minute < 1.6
    assert ours.cold_for_s is not None
    assert 0.0 < ours.cold_for_s < 60.0
    report = as_markdown(summarise([played]), "looprouter bench router", 240.0)
    assert "| first minute cold / warm | mean cold / warm | p95 cold / warm |" in report
    # Rules without a memory that matters are the same before and after.
    for each in (table, oracle):
        assert each.cold_mean == pytest.approx(1.0, abs=0.02)
        assert each.cold_for_s == 0.0


def test_only_the_minutes_after_the_restart_are_judged() -> None:
    load = workload("synthetic-conversation", seed=1, duration_s=1_200.0)
    world = make_world("cold-start", seed=1, duration_s=1_200.0)
    assert world.restart_s == 600.0
    served = play(world, load, factory_of("round_robin"), seed=1).served
    rows, minutes = judged(served, load, world.restart_s)
    assert minutes.duration_s == JUDGED_S
    assert len(rows) == len(minutes.arrivals)
    assert all(600.0 <= one.at_s < 900.0 for one in rows)
    assert [one.at_s for one in rows] == [each.at_s for each in minutes.arrivals]
    with pytest.raises(ValueError, match="run for longer"):
        judged(served, load, 5_000.0)


def test_the_twin_is_the_same_until_the_restart_and_every_replica_forgets() -> None:
    load = workload("synthetic-conversation", seed=2, duration_s=240.0)
    world = make_world("cold-start", seed=2, duration_s=240.0)
    cold, warm = (
        play(
            world, load, factory_of("fastest"),
            seed=2, num_replicas=3, stale_s=1.0, has_restart=has_restart,
        )
        for has_restart in (True, False)
    )  # fmt: skip
    before = [one.idx for one in cold.served if one.done_s + one.at_s < 120.0]
    assert len(before) > 100
    assert all(cold.served[idx] == warm.served[idx] for idx in before)
    for cold_router, warm_router in zip(cold.routers, warm.routers, strict=True):
        assert isinstance(cold_router, OurRouter)
        assert isinstance(warm_router, OurRouter)
        assert _num_samples(cold_router) < 0.8 * _num_samples(warm_router)
    assert len(cold.served) == len(load.arrivals)


def _num_samples(router: OurRouter) -> int:
    return sum(each.num_samples for each in router.fleet.snapshot().stats.values())
