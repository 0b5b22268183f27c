"""What of the fleet survives a policy change and a restart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from gateway.fleet.fleet import Fleet
from tests.support.fleet_world import (
    IDS,
    Clock,
    endpoint,
    facts,
    fail,
    make_fleet,
    serve,
    world,
)
from tests.support.fleet_world import streamed as stream


def test_state_survives_a_policy_change_by_provider_address_and_model() -> None:
    clock, fleet = world("a/m")
    serve(fleet, clock, "a/m", 100, rate=200.0)
    same = endpoint("a/m", id="renamed/m")
    other_address = endpoint("a/m", base_url="https://elsewhere.example/v1")
    fleet.replace_endpoints([same, other_address])
    stats = fleet.snapshot().stats

    assert math.exp(stats["renamed/m"].rate_mu) == pytest.approx(200.0, rel=0.1)
    assert stats["a/m"].rate_n == 3.0  # a peer's speed to begin with, no sample of its own
    assert stats["a/m"].num_samples == 0


def test_endpoint_that_comes_back_finds_its_beliefs() -> None:
    clock, fleet = world("a/m", "b/m")
    serve(fleet, clock, "a/m", 100, rate=200.0)
    fleet.replace_endpoints([endpoint("b/m")])
    assert "a/m" not in fleet.snapshot().stats
    fleet.replace_endpoints([endpoint("a/m"), endpoint("b/m")])

    assert math.exp(fleet.snapshot().stats["a/m"].rate_mu) == pytest.approx(200.0, rel=0.1)


def test_attempts_under_way_end_where_they_began() -> None:
    clock, fleet = world("a/m")
    clock.advance(100.0)
    fleet.started("a/m")
    outcome = stream(clock() + 5.0, endpoint_id="a/m", ttft_s=2.5, rate=80.0)
    outcome.dispatched_at_s = clock()
    clock.advance(1.0)
    fleet.replace_endpoints([endpoint("a/m", base_url="https://new.example/v1")])
    assert fleet.view(facts(), ("a/m",)).live["a/m"].in_flight == 0
    fleet.started("a/m")
    clock.advance(4.0)
    fleet.observe(outcome)
    assert fleet.view(facts(), ("a/m",)).live["a/m"].in_flight == 1
    fleet.replace_endpoints([endpoint("a/m")])

    assert fleet.view(facts(), ("a/m",)).live["a/m"].in_flight == 0
    assert fleet.snapshot().stats["a/m"].num_samples == 1


def test_one_address_listed_twice_keeps_two_states() -> None:
    clock = Clock()
    fleet = make_fleet("a/m", clock=clock)
    flex = endpoint("a/m", id="a/m-flex", tier="flex")
    fleet.replace_endpoints([endpoint("a/m"), flex])
    serve(fleet, clock, "a/m-flex", 50, rate=20.0)
    clock.advance(1.0)
    stats = fleet.snapshot().stats

    assert stats["a/m"].num_samples == 0
    assert stats["a/m-flex"].num_samples == 50


def test_outcome_of_an_unknown_endpoint_is_ignored() -> None:
    clock, fleet = world()
    fleet.started("no/such")
    fleet.observe(stream(clock(), endpoint_id="no/such"))

    assert fleet.may_probe("no/such")
    assert set(fleet.view(facts(), IDS).live) == set(IDS)


def restarted(fleet: Fleet, clock: Clock, away_s: float) -> tuple[Fleet, Clock, bool]:
    exported = json.loads(json.dumps(fleet.export_state()))
    # Another process: its monotonic clock begins elsewhere, the wall clock goes on.
    later = Clock(now_s=7.0)
    wall_s = clock.wall() + away_s
    later.wall = lambda: later.now_s - 7.0 + wall_s  # type: ignore[method-assign]
    fresh = make_fleet(*IDS, clock=later)
    return fresh, later, fresh.import_state(exported)


def test_restart_keeps_beliefs_aged_by_the_time_away() -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", 200, rate=200.0, ttft_s=1.5, visible_chars=500)
    clock.advance(1.0)
    before = fleet.snapshot().stats["a/m"]
    fresh, _, is_taken = restarted(fleet, clock, 60.0)
    after = fresh.snapshot().stats["a/m"]

    assert is_taken
    assert after.rate_n - 3.0 == pytest.approx((before.rate_n - 3.0) / 2.0, rel=0.02)
    assert after.rate_mu == pytest.approx(before.rate_mu, abs=0.05)
    assert after.ttft_mu == pytest.approx(before.ttft_mu, abs=0.05)
    assert after.ttft_p50_p75_p90_p99_s == before.ttft_p50_p75_p90_p99_s
    assert after.characters_per_token == before.characters_per_token
    assert after.num_samples == before.num_samples
    assert after.sample_age_s == pytest.approx(61.0)
    expected = fresh.view(facts(), IDS).output_tokens_expected
    assert expected == pytest.approx(fleet.view(facts(), IDS).output_tokens_expected, rel=0.2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.update(version=999),
        lambda state: state.pop("version"),
        lambda state: state.update(endpoints="none"),
        lambda state: state["endpoints"]["a|https://a.example/v1|m"].pop("rate"),
        lambda state: state.update(at_unix_s=0.0),
        lambda state: state.update(credits=math.nan),
        lambda state: state["endpoints"]["a|https://a.example/v1|m"]["whole"].pop(),
        lambda state: state.update(lengths={"chat": object()}),
    ],
)
def test_state_that_cannot_be_used_is_dropped_whole(
    damage: Callable[[dict[str, object]], object],
) -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", 50, rate=200.0)
    exported = json.loads(json.dumps(fleet.export_state()))
    damage(exported)
    fresh = make_fleet(*IDS, clock=clock)

    assert fresh.import_state(exported) is False
    assert fresh.snapshot().stats["a/m"].num_samples == 0


def test_breakers_and_in_flight_counts_start_afresh() -> None:
    clock, fleet = world()
    for _ in range(3):
        fail(fleet, clock, "a/m", "connect")
    fleet.started("a/m")
    fresh, _, _ = restarted(fleet, clock, 1.0)
    live = fresh.view(facts(), IDS).live["a/m"]

    assert (live.breaker, live.in_flight) == ("closed", 0)
