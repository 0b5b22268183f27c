"""One run: a world, a workload, a router and its replicas → rows and what is read off them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from gateway.core import PriceRow
from gateway.fleet.sharing import FleetNews
from gateway.simulator.routing.arrivals import Workload
from gateway.simulator.routing.engine import Simulation
from gateway.simulator.routing.ours import OurRouter
from gateway.simulator.routing.places import Place
from gateway.simulator.routing.records import EventLog, Served
from gateway.simulator.routing.router import Router, Setting
from gateway.simulator.routing.world import World

SHARE_EVERY_S = 1.0
RESTARTED = 500  # added to the seeds of replicas that begin anew; there are fewer replicas

RouterFactory = Callable[[Setting, int], Router]


class Episode(msgspec.Struct, kw_only=True):
    """What one router made of one workload in one world."""

    served: list[Served]
    world: World
    workload: Workload
    digest: str
    routers: list[Router]


class WorldOracle:
    """The world itself, asked. Knows the draws of every request at every endpoint."""

    def __init__(self, workload: Workload, places: Sequence[Place]) -> None:
        self._arrivals = workload.arrivals
        self._by_id = {place.spec.id: place for place in places}

    def time_s(self, idx: int, endpoint_id: str, now_s: float) -> float:
        return self._time_s(idx, endpoint_id, now_s, is_mean=False)

    def mean_time_s(self, idx: int, endpoint_id: str, now_s: float) -> float:
        return self._time_s(idx, endpoint_id, now_s, is_mean=True)

    def _time_s(self, idx: int, endpoint_id: str, now_s: float, *, is_mean: bool) -> float:
        place = self._by_id[endpoint_id]
        if now_s < place.spec.appears_at_s:
            return float("inf")
        fate = place.foresee(self._arrivals[idx], idx, now_s, is_mean=is_mean)
        return fate.whole_s if fate.failure is None else float("inf")


def play(
    world: World,
    workload: Workload,
    make: RouterFactory,
    *,
    seed: int,
    num_replicas: int = 1,
    stale_s: float | None = None,
    log: EventLog | None = None,
    has_restart: bool = True,
) -> Episode:
    """
    Play `workload` in `world`. `make(setting, seed)` builds each replica's router.

    `stale_s`: how late replicas hear of each other, once a second; None: each is alone. Only our
    own routers share: how others would is theirs to say. `has_restart=False` leaves out the
    world's, if it has one: the warm twin of a cold start.
    """
    log = log or EventLog()
    places = world.places(workload.arrivals, seed)
    oracle = WorldOracle(workload, places)
    by_id = {place.spec.id: place for place in places}
    shares = num_replicas > 1 and stale_s is not None

    def price(endpoint_id: str, now_s: float) -> PriceRow:
        return by_id[endpoint_id].price(now_s)

    def build(replica: int, now_s: float, own_seed: int) -> Router:
        setting = Setting(
            listings=world.listings(now_s),
            prices=price,
            rng=random.Random(own_seed),
            oracle=oracle,
            epoch_s=world.epoch_s,
            now_s=now_s,
        )
        router = make(setting, own_seed)
        if shares and isinstance(router, OurRouter):
            router.join(f"replica {replica}")
        return router

    routers = [build(number, 0.0, seed * 1_000 + number) for number in range(num_replicas)]
    simulation = Simulation(workload.arrivals, places, routers, log=log)

    def restart(now_s: float) -> None:
        """All forget; what is in flight ends with those who sent it."""
        for number in range(num_replicas):
            routers[number] = build(number, now_s, seed * 1_000 + RESTARTED + number)

    def relist(now_s: float) -> None:
        for router in routers:
            router.listed(world.listings(now_s), now_s)

    for at_s in sorted({spec.appears_at_s for spec in world.specs} - {0.0}):
        simulation.at(at_s, relist, at_s)
    if world.restart_s is not None and has_restart:
        simulation.at(world.restart_s, restart, world.restart_s)
    if shares and stale_s is not None:
        _share(simulation, routers, stale_s)
    served = simulation.run()
    return Episode(
        served=served, world=world, workload=workload, digest=log.digest, routers=routers
    )


def _share(simulation: Simulation, routers: Sequence[Router], stale_s: float) -> None:
    """Once a second each replica tells the others, who hear it `stale_s` later."""

    def tell() -> None:
        ours = [router for router in routers if isinstance(router, OurRouter)]
        for sender in ours:
            news = sender.news(simulation.now_s)
            for router in ours:
                if news is not None and router is not sender:
                    when_s = simulation.now_s + stale_s
                    simulation.at(when_s, _heard, router, news, when_s)

    simulation.every(SHARE_EVERY_S, tell)


def _heard(router: OurRouter, news: FleetNews, now_s: float) -> None:
    router.hear(news, now_s)
