"""Replicas learn from each other what each would have learned alone, and survive silence."""

from __future__ import annotations

import msgspec
import pytest

from gateway.fleet.fleet import Fleet
from gateway.fleet.replicas import Replica
from gateway.fleet.sharing import IN_FLIGHT_FRESH_S, SAMPLES_MAX, FleetNews
from tests.support.fleet_world import Clock, facts, failed, make_fleet, streamed

FAST = "fast/m"


def test_a_replica_believes_what_another_measured() -> None:
    clock = Clock()
    here, there = _pair(clock)
    for _ in range(12):
        _serve(here, clock, ttft_s=0.1, tokens_per_s=200.0)
    before = there[0].snapshot().stats[FAST]
    assert there[1].hear(_carried(here[1].news()))
    clock.advance(1.5)
    ours, theirs = here[0].snapshot().stats[FAST], there[0].snapshot().stats[FAST]
    assert theirs.rate_mu > before.rate_mu
    assert theirs.rate_mu == pytest.approx(ours.rate_mu, abs=0.02)
    assert theirs.ttft_mu == pytest.approx(ours.ttft_mu, abs=0.05)


def test_requests_of_others_count_as_in_flight_until_they_are_stale() -> None:
    clock = Clock()
    here, there = _pair(clock)
    here[0].started(FAST)
    here[0].started(FAST)
    there[1].hear(_carried(here[1].news()))
    assert there[0].view(facts(), [FAST]).live[FAST].in_flight == 2
    clock.advance(IN_FLIGHT_FRESH_S + 1.0)
    assert there[0].view(facts(), [FAST]).live[FAST].in_flight == 0


def test_failures_seen_elsewhere_open_the_breaker_here() -> None:
    clock = Clock()
    here, there = _pair(clock)
    for _ in range(3):
        _serve(here, clock, failure="server_error")
    there[1].hear(_carried(here[1].news()))
    assert there[0].view(facts(), [FAST]).live[FAST].breaker == "open"


def test_one_replicas_probe_is_a_probe_for_all() -> None:
    clock = Clock()
    here, there = _pair(clock)
    for _ in range(3):
        _serve(here, clock, failure="server_error")
    there[1].hear(_carried(here[1].news()))
    here[1].hear(_carried(there[1].news()))
    clock.advance(30.0)
    assert there[0].view(facts(), [FAST]).live[FAST].breaker == "half_open"

    assert here[0].may_probe(FAST)
    _serve(here, clock, failure="server_error")
    there[1].hear(_carried(here[1].news()))
    assert there[0].view(facts(), [FAST]).live[FAST].breaker == "open"

    clock.advance(60.0)
    assert here[0].may_probe(FAST)
    _serve(here, clock, ttft_s=0.1, tokens_per_s=200.0)
    there[1].hear(_carried(here[1].news()))
    assert there[0].view(facts(), [FAST]).live[FAST].breaker == "closed"


def test_replicas_gone_silent_no_longer_have_a_turn_at_probing() -> None:
    clock = Clock()
    here, there = _pair(clock)
    there[1].hear(_carried(here[1].news()))  # with nothing in flight
    breaker = there[0].by_key[next(iter(there[0].by_key))].breaker
    assert breaker.num_others == 1
    clock.advance(IN_FLIGHT_FRESH_S + 1.0)
    there[0].view(facts(), [FAST])
    assert breaker.num_others == 0


def test_a_message_is_bounded_and_names_nobody() -> None:
    clock = Clock()
    here, _ = _pair(clock)
    for _ in range(100):
        _serve(here, clock, ttft_s=0.1, tokens_per_s=200.0)
    news = here[1].news()
    told = next(iter(news.endpoints.values())).outcomes
    assert len(told) == SAMPLES_MAX
    assert {(one.request_id, one.tenant_id, one.affinity_key) for one in told} == {("", "", "")}
    assert not next(iter(here[1].news().endpoints.values())).outcomes


def test_own_and_old_messages_teach_nothing() -> None:
    clock = Clock()
    here, there = _pair(clock)
    _serve(here, clock, ttft_s=0.1, tokens_per_s=200.0)
    news = here[1].news()
    assert not here[1].hear(news)
    clock.advance(600.0)
    assert not there[1].hear(news)


def _pair(clock: Clock) -> tuple[tuple[Fleet, Replica], tuple[Fleet, Replica]]:
    fleets = [make_fleet(FAST, clock=clock) for _ in range(2)]
    return (
        (fleets[0], Replica(fleets[0], "one")),
        (fleets[1], Replica(fleets[1], "two")),
    )


def _carried(news: FleetNews) -> FleetNews:
    """Over the wire and back."""
    return msgspec.json.decode(msgspec.json.encode(news), type=FleetNews)


def _serve(
    here: tuple[Fleet, Replica],
    clock: Clock,
    *,
    ttft_s: float = 0.1,
    tokens_per_s: float = 100.0,
    failure: str = "",
) -> None:
    fleet = here[0]
    fleet.started(FAST)
    clock.advance(1.0)
    if failure:
        fleet.observe(failed(clock(), failure))
    else:
        fleet.observe(streamed(clock(), ttft_s=ttft_s, rate=tokens_per_s))
