"""The engine: determinism, the product's failover, and the books of every attempt."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from gateway.core import AttemptOutcome
from gateway.prices.rows import cost_nanos
from gateway.simulator.routing.arrivals import Arrival, Workload
from gateway.simulator.routing.bench import factory_of
from gateway.simulator.routing.episode import Episode, play
from gateway.simulator.routing.records import EventLog, Served
from gateway.simulator.routing.router import Ask, Listing, Setting
from gateway.simulator.routing.workloads.registry import workload
from gateway.simulator.routing.world import World
from gateway.simulator.routing.worlds import WORLDS, make_world

ALL = ("fastest", "balanced", "cheapest", "litellm_lowest_latency", "clairvoyant_greedy")


class Fixed:
    """Sends everything to one endpoint first, and remembers what it heard."""

    name = "fixed"
    explored = False

    def __init__(self, first: str, setting: Setting, timeout_s: float = 5.0) -> None:
        ids = [listing.endpoint_id for listing in setting.listings]
        self._order = [first, *(each for each in ids if each != first)]
        self._timeout_s = timeout_s
        self.outcomes: list[AttemptOutcome] = []
        self.num_started = 0

    def order(self, ask: Ask, now_s: float) -> Sequence[str]:
        return self._order

    def may_send(self, endpoint_id: str, now_s: float) -> bool:
        return True

    def started(self, endpoint_id: str, now_s: float) -> int:
        self.num_started += 1
        return 1

    def first_token(self, endpoint_id: str, now_s: float) -> None:
        pass

    def ended(self, outcome: AttemptOutcome, now_s: float) -> None:
        self.outcomes.append(outcome)

    def listed(self, listings: tuple[Listing, ...], now_s: float) -> None:
        pass

    def first_token_timeout_s(self, endpoint_id: str, ask: Ask) -> float:
        return self._timeout_s


@pytest.mark.parametrize("router", ALL)
def test_the_same_seed_gives_the_same_events_byte_for_byte(router: str) -> None:
    logs = [EventLog(keep_lines=True) for _ in range(2)]
    episodes = [_play("outage", router, seed=3, log=log) for log in logs]
    assert logs[0].lines == logs[1].lines
    assert episodes[0].digest == episodes[1].digest
    assert _play("outage", router, seed=4).digest != episodes[0].digest


def test_every_request_ends_once_and_every_attempt_is_told() -> None:
    episode, router = _fixed("outage")
    assert len(episode.served) == len(episode.workload.arrivals)
    assert [one.idx for one in episode.served] == list(range(len(episode.served)))
    assert router.num_started == len(router.outcomes)
    assert sum(one.num_attempts for one in episode.served) == router.num_started


def test_a_request_falls_over_from_a_dead_endpoint_and_pays_nothing_there() -> None:
    episode, router = _fixed("dies-error")
    during = _during(episode)
    assert during
    assert all(one.num_attempts >= 2 for one in during if not one.has_failed)
    assert any(one.num_attempts >= 2 for one in during)  # the retry budget ends the others
    refused = [each for each in router.outcomes if each.failure == "server_error"]
    assert all(each.usage is None for each in refused)


def test_a_hang_ends_with_the_routers_own_time_out() -> None:
    episode, router = _fixed("dies-hang")
    hung = [each for each in router.outcomes if each.failure == "timeout_first_token"]
    assert hung
    assert all(
        each.ended_at_s is not None and 4.99 < each.ended_at_s - each.dispatched_at_s < 5.01
        for each in hung
    )
    assert _during(episode)


def test_a_broken_stream_is_paid_for_what_came_and_never_glued_to_another() -> None:
    episode, router = _fixed("dies-half")
    broken = [each for each in router.outcomes if each.failure == "stream_broken"]
    assert broken
    assert all(each.usage is not None for each in broken)
    by_request = {str(one.idx): one for one in episode.served}
    assert all(by_request[each.request_id].has_failed for each in broken)
    assert all(by_request[each.request_id].cost_nanos > 0 for each in broken)


def test_costs_are_those_of_the_price_in_force() -> None:
    changed = make_world("prices", seed=1, duration_s=600.0).event_ids[0]
    episode, router = _fixed("prices", first=changed, duration_s=600.0)
    arrivals = episode.workload.arrivals
    places = {place.spec.id: place for place in episode.world.places(arrivals, 1)}
    before, after = places[changed].price(0.0), places[changed].price(599.0)
    assert after.output == pytest.approx(2 * before.output, rel=1e-5)
    at = [(each, places[each.endpoint_id].price(each.dispatched_at_s)) for each in router.outcomes]
    assert {row.output for each, row in at if each.endpoint_id == changed} == {
        before.output,
        after.output,
    }
    assert sum(one.cost_nanos for one in episode.served) == sum(
        cost_nanos(row, each.usage) for each, row in at if each.usage is not None
    )


def test_an_hour_of_traffic_takes_less_than_half_a_minute() -> None:
    """Ten minutes of it in a sixth of that, of a processor's own time."""
    load = workload("synthetic-conversation", seed=1, duration_s=600.0)
    world = make_world("drift", seed=1, duration_s=600.0)
    began_s = time.process_time()
    play(world, load, factory_of("fastest"), seed=1)
    assert time.process_time() - began_s < 5.0


@pytest.mark.parametrize("name", list(WORLDS))
def test_every_world_can_be_played_with_two_endpoints_and_with_eight(name: str) -> None:
    for num in (2, 8):
        world = make_world(name, seed=2, duration_s=60.0, num_endpoints=num)
        load = workload("synthetic-multi-turn", seed=2, duration_s=60.0)
        served = play(world, load, factory_of("fastest"), seed=2).served
        assert len(served) == len(load.arrivals)


def test_unknown_worlds_and_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="there is no world 'mars'; there are calm"):
        make_world("mars", seed=1, duration_s=60.0)
    with pytest.raises(ValueError, match="2 to 8 endpoints, not 9"):
        make_world("calm", seed=1, duration_s=60.0, num_endpoints=9)


def _play(name: str, router: str, *, seed: int, log: EventLog | None = None) -> Episode:
    world = make_world(name, seed=seed, duration_s=120.0)
    load = workload("synthetic-conversation", seed=seed, duration_s=120.0)
    return play(world, load, factory_of(router), seed=seed, log=log)


def _fixed(name: str, first: str = "", duration_s: float = 300.0) -> tuple[Episode, Fixed]:
    world = make_world(name, seed=1, duration_s=duration_s)
    routers: list[Fixed] = []

    def make(setting: Setting, seed: int) -> Fixed:
        router = Fixed(first or _first(world), setting)
        routers.append(router)
        return router

    load = workload("synthetic-conversation", seed=1, duration_s=duration_s)
    thin = Workload(name="thin", arrivals=_thinned(load.arrivals), duration_s=duration_s)
    return play(world, thin, make, seed=1), routers[0]


def _first(world: World) -> str:
    return world.event_ids[0] if world.event_ids else world.specs[0].id


def _thinned(arrivals: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
    """Every fourth: few enough that load is no matter."""
    return arrivals[::4]


def _during(episode: Episode) -> list[Served]:
    world = episode.world
    assert world.event_s is not None
    assert world.event_end_s is not None
    return [one for one in episode.served if world.event_s <= one.at_s < world.event_end_s - 10.0]
