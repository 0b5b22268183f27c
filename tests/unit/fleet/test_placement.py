"""Where the fleet says that a prefix or session belongs."""

from __future__ import annotations

from gateway.wire.usage import Usage
from tests.support.fleet_world import (
    IDS,
    facts,
    fail,
    serve,
    world,
)


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
