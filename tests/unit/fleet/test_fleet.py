"""The fleet as its users see it: views, outcomes, policy changes, restarts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from gateway.core import Endpoint, FleetView, PriceRow
from gateway.fleet.fleet import EVENTS_MAX, Fleet
from gateway.wire.usage import Usage
from tests.support.fleet_world import PRICE, Clock, endpoint, facts, failed, make_fleet, whole
from tests.support.fleet_world import streamed as stream

IDS = ("a/m", "b/m", "c/m")


def world(*ids: str) -> tuple[Clock, Fleet]:
    clock = Clock()
    return clock, make_fleet(*(ids or IDS), clock=clock)


def serve(fleet: Fleet, clock: Clock, endpoint_id: str, num: int = 1, **changes: object) -> None:
    for _ in range(num):
        clock.advance(1.0)
        fleet.started(endpoint_id)
        fleet.observe(stream(clock(), endpoint_id=endpoint_id, **changes))  # type: ignore[arg-type]


def fail(fleet: Fleet, clock: Clock, endpoint_id: str, failure: str, **changes: object) -> None:
    clock.advance(0.2)
    fleet.started(endpoint_id)
    fleet.observe(failed(clock(), failure, endpoint_id=endpoint_id, **changes))  # type: ignore[arg-type]


# Snapshots


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


# Live state


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
    fleet.report_load("a/m", queue=10.0, cache_use=0.2)

    assert fleet.view(facts(), IDS).live["a/m"].capacity == 1.0


# Affinity


def test_prefix_returns_to_the_endpoint_that_has_it_cached() -> None:
    clock, fleet = world()
    serve(fleet, clock, "b/m", affinity_key="ab" * 32, prompt=3_000)
    live = fleet.view(facts(affinity_key="ab" * 32, prompt_tokens=2_500), IDS).live

    assert live["b/m"].is_last_used
    assert live["b/m"].cached_tokens == 2_500
    assert not any(live[other].is_last_used or live[other].is_home for other in ("a/m", "c/m"))
    clock.advance(601.0)
    assert not fleet.view(facts(affinity_key="ab" * 32), IDS).live["b/m"].is_last_used


def test_session_goes_before_prefix() -> None:
    clock, fleet = world()
    serve(fleet, clock, "a/m", session_key="s", prompt=5_000)
    serve(fleet, clock, "b/m", affinity_key="ab" * 32, prompt=1_000)
    live = fleet.view(facts(affinity_key="ab" * 32, session_key="s", prompt_tokens=9_000), IDS).live

    assert live["a/m"].is_last_used
    assert (live["a/m"].cached_tokens, live["b/m"].cached_tokens) == (5_000, 1_000)


def test_new_prefix_gets_one_home_that_is_not_called_used() -> None:
    _, fleet = world()
    live = fleet.view(facts(affinity_key="cd" * 32), IDS).live

    assert sum(one.is_home for one in live.values()) == 1
    assert not any(one.is_last_used for one in live.values())


def test_home_is_never_an_open_endpoint() -> None:
    clock, fleet = world()
    key = "cd" * 32
    first = next(
        name for name, one in fleet.view(facts(affinity_key=key), IDS).live.items() if one.is_home
    )
    for _ in range(3):
        fail(fleet, clock, first, "connect")
    live = fleet.view(facts(affinity_key=key), IDS).live

    assert [name for name, one in live.items() if one.is_home] != [first]
    assert sum(one.is_home for one in live.values()) == 1


def test_hot_prefix_spreads_when_its_endpoint_holds_more_than_its_share() -> None:
    clock, fleet = world()
    serve(fleet, clock, "b/m", affinity_key="ab" * 32)
    for _ in range(4):
        fleet.started("b/m")
    live = fleet.view(facts(affinity_key="ab" * 32), IDS).live

    assert not live["b/m"].is_last_used
    assert live["b/m"].cached_tokens > 0  # still true, and in the score
    assert live["a/m"].is_home or live["c/m"].is_home


def test_endpoint_that_caches_nothing_loses_its_claim() -> None:
    clock, fleet = world()
    for _ in range(40):
        serve(fleet, clock, "b/m", affinity_key="ab" * 32, usage=Usage(input=3_000, output=200))
    live = fleet.view(facts(affinity_key="ab" * 32, prompt_tokens=3_000), IDS).live

    assert live["b/m"].cached_tokens < 300


def test_reported_cache_hit_says_how_long_the_shared_prefix_is() -> None:
    clock, fleet = world()
    serve(fleet, clock, "b/m", affinity_key="ab" * 32, usage=Usage(input=8_000, output=200))
    hit = Usage(input=1_000, cached_read=1_024, output=200)
    serve(fleet, clock, "b/m", 30, affinity_key="ab" * 32, usage=hit)
    live = fleet.view(facts(affinity_key="ab" * 32, prompt_tokens=6_000), IDS).live

    assert 800 <= live["b/m"].cached_tokens <= 1_024


def test_failed_attempt_leaves_no_trace_of_a_prefix() -> None:
    clock, fleet = world()
    fail(fleet, clock, "b/m", "connect", affinity_key="ab" * 32)

    assert not fleet.view(facts(affinity_key="ab" * 32), IDS).live["b/m"].is_last_used


# Lengths, credits, probes


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


def test_silent_endpoints_are_due_for_a_probe_and_probes_for_a_cent_an_hour() -> None:
    clock, fleet = world()
    clock.advance(500.0)
    serve(fleet, clock, "a/m")
    clock.advance(100.0)
    assert fleet.probes_due() == ("b/m", "c/m")
    assert not fleet.spend_probe("b/m", 10_000_001)
    assert fleet.spend_probe("b/m", 4_000_000)

    assert fleet.probes_due() == ("c/m",)
    assert not fleet.spend_probe("no/such", 1)


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


# Policy changes


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


# Events


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


# Restart


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


# The status page


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
