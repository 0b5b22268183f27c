"""The decode floor's window, and the budget of hedges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.decode_floor import DecodeFloor
from gateway.relay.hedge_budget import SAVED_MAX, HedgeBudget


def trips_at(rate: float, floor: float = 10.0, grace_s: float = 2.0, end_s: float = 60.0) -> float:
    """When a stream of so many tokens a second, one at a time, is found too slow; inf = never."""
    watched = DecodeFloor(floor, grace_s, 0.0)
    now = 0.0
    while now < end_s:
        watched.add(1.0, now)
        now += 1.0 / rate
        while watched.check_at <= now:
            at = watched.check_at
            if watched.is_slow(at):
                return at
    return float("inf")


@pytest.mark.parametrize("rate", [0.5, 2.0, 5.0, 8.5])
def test_stream_below_the_floor_is_found_when_the_grace_is_over(rate: float) -> None:
    assert trips_at(rate) == pytest.approx(2.0)


@pytest.mark.parametrize("rate", [11.5, 20.0, 500.0])
def test_stream_above_the_floor_is_never_found(rate: float) -> None:
    assert trips_at(rate) == float("inf")


def test_stream_that_stalls_is_found_within_the_grace() -> None:
    watched = DecodeFloor(10.0, 2.0, 0.0)
    for step in range(1000):
        watched.add(1.0, step * 0.01)
    at = 0.0
    while not watched.is_slow(at):
        at = watched.check_at

    assert 11.0 < at < 12.2  # the last token came at 9.99; 20 of 200 would have been enough


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.1, 20.0)), max_size=60))
def test_every_check_sets_a_later_one_or_finds_it_slow(steps: list[tuple[float, float]]) -> None:
    watched = DecodeFloor(5.0, 1.0, 0.0)
    now = 0.0
    for pause_s, tokens in steps:
        now += pause_s
        watched.add(tokens, now)
        while watched.check_at <= now:
            before = watched.check_at
            if watched.is_slow(now):
                return
            assert watched.check_at > before


@given(st.floats(0.0, 1.0), st.integers(1, 2_000), st.integers(1, 5))
def test_hedges_are_at_most_the_share_of_requests(share: float, num: int, wishes: int) -> None:
    budget = HedgeBudget()
    for _ in range(num):
        budget.begin(share)
        for _ in range(wishes):
            budget.take()

    assert budget.num_hedges <= share * num + 1e-6
    assert budget.num_hedges + budget.num_denied == num * wishes


def test_two_in_a_hundred_is_two_and_a_calm_day_saves_up_little() -> None:
    budget = HedgeBudget()
    for _ in range(100):
        budget.begin(0.02)
        budget.take()
    assert budget.num_hedges == 2

    for _ in range(100_000):
        budget.begin(0.02)
    assert sum(budget.take() for _ in range(100)) == int(SAVED_MAX)
