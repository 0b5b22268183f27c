"""The omniscient reference: an exact optimum, and a bound that nobody goes below."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from gateway.policy.placement import PriceWindow
from gateway.simulator.batch.omniscient import lower_bound
from gateway.simulator.batch.play import Day
from gateway.simulator.batch.transport import solve
from gateway.simulator.batch.world import (
    LINE_TOKENS,
    SLOT_S,
    Fates,
    Job,
    Steps,
    TrueLane,
    World,
)
from gateway.simulator.batch.worlds import WORLDS, make_world
from tests.support.lanes import HOUR_S, LINE_NANOS, always, row


def _job(count: int, deadline_s: float, name: str = "j", arrives_s: float = 0.0) -> Job:
    return Job(
        id=name,
        model="m",
        arrives_s=arrives_s,
        deadline_s=deadline_s,
        count=count,
        prompt_tokens=1_000.0,
        output_tokens=LINE_TOKENS,
        true_output_tokens=LINE_TOKENS,
    )


def _lane(
    name: str, lines_per_s: float, windows: tuple[PriceWindow, ...], *, dies_s: float = math.inf
) -> TrueLane:
    times, rates = [0.0], [lines_per_s]
    if dies_s < math.inf:
        times, rates = [0.0, dies_s], [lines_per_s, 0.0]
    return TrueLane(
        id=f"{name}#standard",
        endpoint_id=name,
        model="m",
        kind="sync",
        tier="standard",
        windows=windows,
        rate=Steps(np.array(times), np.array(rates)),
    )


def _native(takes_s: float, share: float = 1.0, factor: float = 0.5) -> TrueLane:
    return TrueLane(
        id="a#native",
        endpoint_id="a",
        model="m",
        kind="native",
        tier="standard",
        windows=always(factor, "batch"),
        fates=Fates((takes_s,), (share,)),
    )


def _world(lanes: list[TrueLane], *jobs: Job) -> World:
    return World(name="by-hand", seed=0, lanes=tuple(lanes), jobs=jobs)


@pytest.mark.parametrize("seed", range(12))
def test_transport_is_as_cheap_as_linear_programming(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sources, sinks = int(rng.integers(2, 8)), int(rng.integers(5, 40))
    costs = rng.uniform(1.0, 10.0, (sources, sinks))
    costs[rng.random((sources, sinks)) < 0.3] = np.inf
    costs = np.hstack([costs, np.full((sources, 1), 1_000.0)])
    supplies = rng.integers(1, 5_000, sources).astype(float)
    rooms = np.append(rng.integers(1, 900, sinks), 1e9).astype(float)

    flows = solve(costs, supplies, rooms)

    cells = np.argwhere(np.isfinite(costs))
    of_source = np.array([[idx == source for source, _ in cells] for idx in range(sources)])
    of_sink = np.array([[idx == sink for _, sink in cells] for idx in range(sinks + 1)])
    best = linprog(
        [costs[source, sink] for source, sink in cells],
        A_ub=of_sink.astype(float),
        b_ub=rooms,
        A_eq=of_source.astype(float),
        b_eq=supplies,
    )
    assert np.allclose(flows.sum(axis=1), supplies)
    assert (flows.sum(axis=0) <= rooms + 1e-6).all()
    assert flows.min() >= -1e-6
    assert (flows * np.where(np.isfinite(costs), costs, 0.0)).sum() == pytest.approx(best.fun)


def test_transport_refuses_what_fits_nowhere() -> None:
    with pytest.raises(ValueError, match=r"3 of source 0 fit nowhere"):
        solve(np.array([[1.0]]), np.array([5.0]), np.array([2.0]))


def test_reference_fills_the_cheap_lane_and_buys_the_rest() -> None:
    lanes = [_lane("cheap", 0.5, always(0.2)), _lane("dear", 5.0, always(1.0))]

    bound = lower_bound(_world(lanes, _job(3_000, HOUR_S)))

    assert bound.cost_nanos == pytest.approx((1_800 * 0.2 + 1_200) * LINE_NANOS)
    assert bound.keeps("j")


def test_reference_waits_for_a_price_and_knows_of_a_death() -> None:
    windows = (
        PriceWindow(rows=(row(1.0),), until_s=1_800.0),
        PriceWindow(rows=(row(0.5),), from_s=1_800.0),
    )
    job = _job(1_000, HOUR_S)

    alive = lower_bound(_world([_lane("a", 1.0, windows)], job))
    dying = lower_bound(_world([_lane("a", 1.0, windows, dies_s=2_400.0)], job))

    assert alive.cost_nanos == pytest.approx(500.0 * LINE_NANOS)
    assert dying.cost_nanos == pytest.approx((600.0 * 0.5 + 400.0) * LINE_NANOS)


def test_reference_uses_a_batch_only_where_it_comes_back_in_time() -> None:
    lane, job = _lane("a", 5.0, always(1.0)), _job(1_000, HOUR_S)

    quick = lower_bound(_world([lane, _native(600.0)], job))
    slow = lower_bound(_world([lane, _native(HOUR_S + 1.0)], job))
    half = lower_bound(_world([lane, _native(HOUR_S - SLOT_S + 1.0, share=0.5)], job))

    assert quick.cost_nanos == pytest.approx(500.0 * LINE_NANOS)
    assert slow.cost_nanos == pytest.approx(1_000.0 * LINE_NANOS)
    assert half.cost_nanos == pytest.approx(750.0 * LINE_NANOS)


def test_reference_tells_how_many_lines_cannot_be_in_time() -> None:
    bound = lower_bound(
        _world(
            [_lane("a", 1.0, always(1.0))],
            _job(500, 600.0, "early"),
            _job(1_000, 1_200.0, "late"),
        )
    )

    assert sum(bound.late_lines.values()) == pytest.approx(300.0)
    assert not (bound.keeps("early") and bound.keeps("late"))
    assert bound.cost_nanos == pytest.approx(1_200.0 * LINE_NANOS)


@pytest.mark.parametrize("name", WORLDS)
def test_planner_never_beats_the_bound(name: str) -> None:
    world = make_world(name, seed=3)

    outcomes = Day(world).run()
    bound = lower_bound(world)

    assert all(outcome.is_in_time for outcome in outcomes)
    assert sum(outcome.cost_nanos for outcome in outcomes) >= bound.cost_nanos * (1.0 - 1e-9)
