"""A limit of requests a minute is learned from its refusals, kept to, and tried again gently."""

from __future__ import annotations

from gateway.fleet.capacity import Capacity
from gateway.fleet.pacing import WINDOW_S, Pace


def test_what_the_minute_held_is_what_fits() -> None:
    pace = _filled(30)
    pace.started(30.0)
    pace.refused(30.0, is_minute=True)
    assert pace.cap == 30.0
    assert 25.0 < pace.wait_s(31.0) <= 30.0  # until the first of them leaves the window


def test_room_comes_back_as_the_minute_passes() -> None:
    pace = _filled(30)
    pace.refused(30.0, is_minute=True)
    assert pace.wait_s(30.0 + WINDOW_S) == 0.0


def test_a_cap_that_holds_is_raised_a_little_each_minute() -> None:
    pace = _filled(40)
    pace.started(40.0)
    pace.refused(40.0, is_minute=True)
    first = pace.cap
    for second in range(61, 101):
        pace.started(float(second))
    pace.wait_s(101.0)
    assert first is not None
    assert pace.cap is not None
    assert first < pace.cap <= first * 1.1


def test_a_cap_that_goes_on_holding_is_outgrown_ever_faster() -> None:
    """What was full at a quiet hour must not hold back a busy one for long."""
    pace = _filled(12)
    pace.started(12.0)
    pace.refused(12.0, is_minute=True)
    for second in range(60, 1_000):
        while pace.wait_s(float(second)) == 0.0 and pace.num(float(second)) < 400:
            pace.started(float(second))
    assert pace.cap is not None
    assert pace.cap > 300.0


def test_an_overload_of_everybody_says_nothing_of_our_minute() -> None:
    capacity = Capacity()
    for second in range(20):
        capacity.pace.started(float(second))
        capacity.succeeded(12, None, second + 0.5, float(second))
    capacity.pushed_back(5, 20.0, 8.0, 20.1, is_overload=True)
    assert capacity.pace.cap is None
    assert capacity.cooling_s(20.1) > 7.0


def test_an_idle_endpoint_does_not_earn_a_higher_cap() -> None:
    pace = _filled(40)
    pace.started(40.0)
    pace.refused(40.0, is_minute=True)
    first = pace.cap
    pace.wait_s(500.0)
    assert pace.cap == first


def test_refusals_at_a_load_that_went_well_before_spare_the_places() -> None:
    capacity = Capacity()
    for second in range(20):
        capacity.pace.started(float(second))
        capacity.succeeded(12, None, second + 0.5, float(second))
    before = capacity.limit
    capacity.pace.started(20.0)
    capacity.pushed_back(5, 20.0, 8.0, 20.1)
    assert capacity.limit == before
    assert capacity.pace.cap == 20.0
    assert capacity.cooling_s(20.1) > 7.0


def test_refusals_at_a_load_never_carried_are_about_places() -> None:
    capacity = Capacity()
    for second in range(20):
        capacity.pace.started(float(second))
        capacity.succeeded(4, None, second + 0.5, float(second))
    before = capacity.limit
    capacity.pushed_back(30, 20.0, 8.0, 20.1)
    assert capacity.limit < before
    assert capacity.pace.cap is None


def _filled(num: int) -> Pace:
    """One start a second, from second 0."""
    pace = Pace()
    for second in range(num):
        pace.started(float(second))
    return pace
