"""The fleet as its users see it: snapshots, live state, credits, events, the status page."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from gateway.core import Endpoint, FleetView, MachineLoad, PriceRow
from gateway.fleet.exploration import ExplorationLimits
from gateway.fleet.fleet import EVENTS_MAX
from tests.support.fleet_world import (
    IDS,
    PRICE,
    Clock,
    facts,
    fail,
    failed,
    make_fleet,
    serve,
    whole,
    world,
)
from tests.support.fleet_world import streamed as stream


def test_snapshot_is_rebuilt_at_most_once_a_second_and_shared_between_views() -> None:
    num_priced = 0

    def price_rows(_endpoint: Endpoint, _at_unix_s: float) -> tuple[PriceRow, ...]:
        nonlocal num_priced
        num_priced += 1
        return (PRICE,)

    clock = Clock()
    fleet = make_fleet(*IDS, clock=clock, price_rows=price_rows)
    seen: list[FleetView] = []
    for _ in range(100):
        seen.append(fleet.view(facts(), IDS))
        fleet.observe(stream(clock(), endpoint_id="a/m"))
        clock.advance(0.0099)
    assert len({id(view.snapshot) for view in seen}) == 1
    assert num_priced == 3
    clock.advance(0.02)

    assert fleet.view(facts(), IDS).snapshot.id != seen[0].snapshot.id
    assert fleet.snapshot() is fleet.snapshot()
    assert num_priced == 6


def test_snapshot_holds_beliefs_prices_and_the_wall_clock() -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", 50, rate=150.0)
    clock.advance(1.0)
    snapshot = fleet.snapshot()

    assert set(snapshot.stats) == set(snapshot.prices) == set(IDS)
    assert snapshot.at_unix_s == clock.wall()
    assert math.exp(snapshot.stats["a/m"].rate_mu) == pytest.approx(150.0, rel=0.1)


def test_unmeasured_endpoint_starts_at_the_median_of_its_models_peers() -> None:
    clock, fleet = world("a/m", "b/m", "c/m", "d/m", "e/other")
    for endpoint_id, rate in (("a/m", 90.0), ("b/m", 120.0), ("c/m", 400.0)):
        serve(fleet, clock, endpoint_id, 100, rate=rate)
    clock.advance(1.0)
    stats = fleet.snapshot().stats

    assert math.exp(stats["d/m"].rate_mu) == pytest.approx(120.0, rel=0.1)
    assert math.exp(stats["e/other"].rate_mu) == pytest.approx(50.0)


def test_endpoint_is_not_its_own_peer() -> None:
    clock, fleet = world("a/m", "b/m")
    serve(fleet, clock, "b/m", 100, rate=400.0)
    serve(fleet, clock, "a/m", 5, rate=100.0)
    clock.advance(1.0)
    # Slow mean: five samples of 100 and five of the peer's 400; fast: five, and three of that.
    slow = (5.0 * math.log(100.0) + 5.0 * math.log(400.0)) / 10.0
    expected = math.exp((5.0 * math.log(100.0) + 3.0 * slow) / 8.0)

    assert math.exp(fleet.snapshot().stats["a/m"].rate_mu) == pytest.approx(expected, rel=0.05)


def test_in_flight_is_of_this_instant_and_never_negative() -> None:
    clock, fleet = world()
    fleet.started("a/m")
    fleet.started("a/m")
    assert fleet.view(facts(), IDS).live["a/m"].in_flight == 2
    fleet.observe(stream(clock(), endpoint_id="a/m"))
    assert fleet.view(facts(), IDS).live["a/m"].in_flight == 1
    fleet.abandoned("a/m")
    fleet.abandoned("a/m")

    assert fleet.view(facts(), IDS).live["a/m"].in_flight == 0


def test_view_holds_only_the_endpoints_asked_for_and_known() -> None:
    _, fleet = world()

    assert set(fleet.view(facts(), ("b/m", "gone/m")).live) == {"b/m"}


def test_three_failures_open_the_breaker_in_the_very_next_view() -> None:
    clock, fleet = world()
    fleet.view(facts(), IDS)
    for _ in range(3):
        fail(fleet, clock, "a/m", "server_error")
    live = fleet.view(facts(), IDS).live["a/m"]

    assert live.breaker == "open"
    assert live.reopens_in_s == pytest.approx(10.0)
    assert not fleet.may_probe("a/m")
    assert fleet.may_probe("b/m")


def test_half_open_endpoint_takes_one_probe_and_then_starts_slowly() -> None:
    clock, fleet = world()
    for _ in range(3):
        fail(fleet, clock, "a/m", "connect")
    clock.advance(10.0)
    assert fleet.view(facts(), IDS).live["a/m"].breaker == "half_open"
    assert [fleet.may_probe("a/m") for _ in range(2)] == [True, False]
    fleet.started("a/m")
    clock.advance(3.0)
    fleet.observe(stream(clock(), endpoint_id="a/m", rate=400.0))
    live = fleet.view(facts(), IDS).live["a/m"]

    assert (live.breaker, live.capacity) == ("closed", 2.0)
    assert [event.kind for event in fleet.events()] == ["breaker_opened", "breaker_closed"]


@pytest.mark.parametrize("ending", ["client", "429", "caller", "abandoned"])
def test_probe_without_a_verdict_does_not_wedge_half_open(ending: str) -> None:
    clock, fleet = world()
    for _ in range(3):
        fail(fleet, clock, "a/m", "connect")
    clock.advance(10.0)
    assert fleet.may_probe("a/m")
    fleet.started("a/m")
    clock.advance(1.0)
    if ending == "abandoned":
        fleet.abandoned("a/m")
    else:
        failure = {"client": "client_gone", "429": "rate_limited", "caller": "invalid_request"}
        fleet.observe(failed(clock(), failure[ending], endpoint_id="a/m", lasted_s=1.0))
        clock.advance(1.1)  # a 429 without a time cools down for a second

    assert fleet.view(facts(), IDS).live["a/m"].breaker == "half_open"
    assert fleet.may_probe("a/m")


def test_retry_after_is_honoured_without_counting_as_failure() -> None:
    clock, fleet = world()
    for _ in range(10):
        fail(fleet, clock, "a/m", "rate_limited", retry_after_s=20.0)
    live = fleet.view(facts(), IDS).live["a/m"]
    assert live.breaker == "open"
    assert live.reopens_in_s == pytest.approx(20.0)
    assert not fleet.may_probe("a/m")
    assert fleet.may_probe("a/m", in_panic=True)
    assert fleet.events() == ()
    clock.advance(20.0)

    assert fleet.view(facts(), IDS).live["a/m"].breaker == "closed"
    assert fleet.may_probe("a/m")
    assert fleet.snapshot().stats["a/m"].success_p == pytest.approx(0.95)


def test_overload_answers_are_failures_and_push_back_at_once() -> None:
    clock, fleet = world()
    fail(fleet, clock, "a/m", "overloaded", retry_after_s=5.0)
    clock.advance(1.0)

    assert fleet.view(facts(), IDS).live["a/m"].breaker == "open"
    assert fleet.snapshot().stats["a/m"].success_p < 0.9


def test_endpoints_own_account_of_its_load_shows_in_the_next_view() -> None:
    _, fleet = world()
    fleet.view(facts(), IDS)
    load = MachineLoad(num_running=4, num_waiting=10, kv_blocks_total=100, kv_blocks_used=20)
    fleet.started("a/m")
    fleet.report_load("a/m", load)
    fleet.report_load("no/such", load)
    seen = fleet.view(facts(), IDS).live

    assert (seen["a/m"].capacity, seen["a/m"].is_full) == (1.0, True)
    assert seen["a/m"].machine == msgspec.structs.replace(load, in_flight=1)
    assert (seen["b/m"].is_full, seen["b/m"].machine) == (False, None)


def test_account_too_old_to_be_believed_is_kept_a_minute_and_then_forgotten() -> None:
    clock, fleet = world()
    fleet.report_load("a/m", MachineLoad(num_running=1))
    assert not fleet.view(facts(), IDS).live["a/m"].is_full
    clock.advance(2.1)
    assert fleet.view(facts(), IDS).live["a/m"].is_full
    clock.advance(58.0)

    assert fleet.view(facts(), IDS).live["a/m"].machine is None
    assert not fleet.view(facts(), IDS).live["a/m"].is_full


def test_expected_length_is_that_of_key_model_and_tools() -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", 60, tokens=40, has_tools=True)
    with_tools = fleet.view(facts(needs=frozenset({"tools"})), IDS)

    assert with_tools.output_tokens_expected == pytest.approx(40.0, rel=0.2)
    assert with_tools.output_tokens_n == pytest.approx(60.0, rel=0.01)
    assert fleet.view(facts(max_tokens=10), IDS).output_tokens_expected == 10.0


def test_credits_accrue_only_on_requests_that_may_explore() -> None:
    _, fleet = world()
    for _ in range(50):
        fleet.accrue_credit(facts(no_explore=True))
    assert not fleet.spend_credit()
    for _ in range(50):
        fleet.accrue_credit(facts())
    assert fleet.view(facts(), IDS).exploration_credits == pytest.approx(1.0)

    assert fleet.spend_credit()
    assert not fleet.spend_credit()


def test_probed_endpoint_is_shown_as_such_for_ten_minutes_and_then_no_more() -> None:
    clock, fleet = world()
    fleet.view(facts(), IDS)
    fleet.spend_probe("b/m", 1_000_000)
    fleet.spend_probe("no/such", 1)

    assert [one.was_probed for one in fleet.view(facts(), IDS).live.values()] == [
        False,
        True,
        False,
    ]
    clock.advance(600.0)
    assert not any(one.was_probed for one in fleet.view(facts(), IDS).live.values())


def test_policy_says_what_exploration_may_take() -> None:
    clock, fleet = world()
    fleet.limit_exploration(
        ExplorationLimits(
            share=0.5, credits_max=1.0, probe_after_s=10.0, probe_nanos_per_hour=2_000_000
        )
    )
    for _ in range(5):
        fleet.accrue_credit(facts())
    assert fleet.view(facts(), IDS).exploration_credits == 1.0
    fleet.spend_probe("a/m", 1_000_000)
    clock.advance(10.0)
    assert not fleet.view(facts(), IDS).live["a/m"].was_probed
    fleet.spend_probe("a/m", 1_000_000)
    clock.advance(10.0)

    assert fleet.view(facts(), IDS).live["a/m"].was_probed


def test_timeouts_follow_the_kind_of_answer() -> None:
    clock, fleet = world()
    for _ in range(100):
        clock.advance(1.0)
        fleet.observe(whole(clock(), seconds=1.0 + 500 / 50.0, tokens=500, endpoint_id="a/m"))
        fleet.observe(stream(clock(), endpoint_id="a/m", tokens=500, rate=50.0))

    assert fleet.ttft_timeout_s("a/m", facts()) == 10.0
    assert 30.0 < fleet.ttft_timeout_s("a/m", facts(stream=False)) < 60.0
    assert fleet.ttft_timeout_s("a/m", facts(stream=False, max_tokens=20)) == 10.0
    assert fleet.ttft_timeout_s("no/such", facts()) == 120.0


def test_change_of_speed_is_written_once_with_its_direction() -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", 100, rate=100.0)
    serve(fleet, clock, "a/m", 10, rate=30.0)
    events = [event for event in fleet.events() if event.kind == "change_point"]

    assert events
    assert {(event.what, event.direction, event.endpoint_id) for event in events} == {
        ("rate", -1, "a/m")
    }
    assert "fell" in events[0].message
    assert fleet.events() == ()


def test_events_nobody_reads_are_bounded() -> None:
    clock, fleet = world()
    for _ in range(3 * EVENTS_MAX):
        fail(fleet, clock, "a/m", "connect")
        clock.advance(150.0)
        fleet.may_probe("a/m")

    assert len(fleet.events()) == EVENTS_MAX


def test_every_shown_estimate_carries_n_and_an_interval() -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", 60, rate=100.0)
    shown = fleet.metrics("a/m")

    for name in ("ttft_p50_s", "ttft_visible_p50_s", "decode_tokens_per_s", "success"):
        estimate = shown[name]
        assert isinstance(estimate, dict)
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
        assert estimate["n"] > 10
        assert estimate["level"] == 0.9
    assert shown["n"] == 60
    assert json.loads(json.dumps(shown)) == shown


def test_unmeasured_endpoint_shows_no_speed_rather_than_its_prior() -> None:
    _, fleet = world()
    shown = fleet.metrics("a/m")

    assert (shown["n"], shown["ttft_p50_s"], shown["decode_tokens_per_s"]) == (0, None, None)


def test_share_counts_the_last_five_minutes_of_the_whole_fleet() -> None:
    clock, fleet = world()
    for endpoint_id, num in (("a/m", 30), ("b/m", 10)):
        for _ in range(num):
            fleet.started(endpoint_id)
    assert fleet.metrics("a/m")["share"] == {"minutes": 5, "started": 30, "of": 40}
    clock.advance(360.0)

    assert fleet.metrics("a/m")["share"] == {"minutes": 5, "started": 0, "of": 0}


def test_cooling_endpoint_is_shown_as_such() -> None:
    clock, fleet = world()
    fail(fleet, clock, "a/m", "rate_limited", retry_after_s=9.0)
    shown = fleet.metrics("a/m")

    assert (shown["breaker"], shown["is_cooling"], shown["num_pushed_back"]) == ("open", True, 1)


def test_metrics_of_an_unknown_endpoint_are_a_key_error() -> None:
    _, fleet = world()
    with pytest.raises(KeyError):
        fleet.metrics("no/such")
