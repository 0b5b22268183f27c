"""From how many at once an endpoint slows down: found where it does, not made up elsewhere."""

from __future__ import annotations

import math
import random

import pytest

from gateway.fleet.fleet import Fleet
from gateway.fleet.slowdown import NONE, PROVEN_START, Slowdown
from tests.support.fleet_world import Clock, facts, make_fleet, streamed


@pytest.mark.parametrize("places", [3.0, 8.0, 16.0, 45.0])
def test_places_are_found_within_one_rung(places: float) -> None:
    fitted = _learned(places, loads=(1, int(places * 3)), num=600)
    assert places / 1.5 <= fitted.places <= places * 1.5


def test_no_slow_down_is_none() -> None:
    assert _learned(NONE, loads=(1, 60), num=600).places == NONE


def test_loads_that_never_reached_the_places_tell_nothing() -> None:
    assert _learned(16.0, loads=(1, 10), num=600).places == NONE


def test_a_slow_hour_is_not_taken_for_load() -> None:
    """Speed halves and comes back, whatever the load."""
    rng = random.Random(3)
    fitted = Slowdown()
    for idx in range(800):
        slow = math.log(2.0) if 300 < idx < 500 else 0.0
        fitted.observe(slow + rng.gauss(0.0, 0.2), float(rng.randint(1, 30)), is_decode=True)
    assert fitted.places >= 23.0


def test_it_forgets_when_the_endpoint_grows() -> None:
    fitted = _learned(6.0, loads=(1, 30), num=600)
    assert fitted.places < 10.0
    rng = random.Random(5)
    for _ in range(1_500):
        fitted.observe(rng.gauss(0.0, 0.2), float(rng.randint(1, 30)), is_decode=True)
    assert fitted.places >= 23.0


def test_load_never_carried_is_met_with_care() -> None:
    fitted = Slowdown()
    assert fitted.places_now == 1.5 * PROVEN_START
    for _ in range(20):
        fitted.observe(0.0, 40.0, is_decode=True)
    assert fitted.places_now >= 50.0


def test_beliefs_are_of_an_unloaded_endpoint_and_the_view_tells_its_places() -> None:
    clock = Clock()
    fleet = make_fleet(clock=clock)
    rng = random.Random(7)
    for _ in range(500):
        _serve(fleet, clock, rng.randint(1, 24), places=8.0)
    view = fleet.view(facts(), ["fast/m"])
    assert 5.0 <= view.live["fast/m"].places <= 12.0
    clock.advance(1.1)
    stats = fleet.snapshot().stats["fast/m"]
    assert math.exp(stats.rate_mu) == pytest.approx(100.0, rel=0.2)


def _serve(fleet: Fleet, clock: Clock, in_flight: int, *, places: float) -> None:
    clock.advance(0.5)
    fleet.started("fast/m")
    slow = max(1.0, in_flight / places)
    fleet.observe(streamed(clock(), ttft_s=0.4 * slow, rate=100.0 / slow, in_flight=in_flight))


def _learned(places: float, *, loads: tuple[int, int], num: int) -> Slowdown:
    rng = random.Random(1)
    fitted = Slowdown()
    for idx in range(num):
        load = rng.randint(*loads)
        slow = max(0.0, math.log(load / places)) if places < NONE else 0.0
        is_decode = bool(idx % 2)
        offset = -4.6 if is_decode else -0.7
        fitted.observe(offset + slow + rng.gauss(0.0, 0.3), float(load), is_decode=is_decode)
    return fitted
