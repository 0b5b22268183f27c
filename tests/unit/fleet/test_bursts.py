"""Bursts: what is decided at one instant, and what is refused at one instant."""

from __future__ import annotations

from tests.support.fleet_world import facts, fail, serve, world


def in_flight(fleet: object, endpoint_id: str = "a/m") -> int:
    view = fleet.view(facts(), [endpoint_id])  # type: ignore[attr-defined]
    return int(view.live[endpoint_id].in_flight)


def test_promised_place_counts_until_it_is_let_go_once() -> None:
    _, fleet = world("a/m")
    first, second = fleet.promise("a/m"), fleet.promise("a/m")
    assert in_flight(fleet) == 2
    fleet.started("a/m")
    first()
    assert in_flight(fleet) == 2
    first()
    second()

    assert in_flight(fleet) == 1


def test_promise_at_an_endpoint_of_no_policy_is_harmless() -> None:
    _, fleet = world("a/m")

    fleet.promise("gone/m")()


def test_burst_that_is_refused_together_does_not_open_the_breaker() -> None:
    clock, fleet = world("a/m")
    serve(fleet, clock, "a/m", 3)
    began_s = clock()
    for _ in range(30):
        fail(fleet, clock, "a/m", "overloaded", dispatched_at_s=began_s, retry_after_s=1.0)
    clock.advance(2.0)

    assert fleet.metrics("a/m")["breaker"] == "closed"


def test_overload_round_after_round_opens_the_breaker() -> None:
    clock, fleet = world("a/m")
    for _ in range(3):
        fail(fleet, clock, "a/m", "overloaded", dispatched_at_s=clock(), retry_after_s=0.0)
        clock.advance(1.0)

    assert fleet.metrics("a/m")["breaker"] == "open"
