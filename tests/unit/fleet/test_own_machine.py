"""The product's own router and an own machine, on virtual time: idle it attracts batch work, full
it repels it to a paid endpoint, and the two do not take turns."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core import Lane
from tests.support.gpu_world import GPU, PAID, GpuWorld

ON_DEMAND = "{usd_per_hour: 2.10}"
OWNED = "{billing: owned, watts: 700, usd_per_kwh: 0.20}"
DEAR = "{input: 1, output: 3}"  # $0.0012 a request, at the machine's idle price $0.0007
CHEAP = "{input: 0.1, output: 0.4}"  # $0.00014
SLOTS = 32  # of the engine; it serves about eleven such requests a second


@pytest.mark.parametrize(("self_hosted", "price"), [(ON_DEMAND, DEAR), (OWNED, CHEAP)])
@pytest.mark.parametrize("per_s", [0.2, 2.0, 6.0])
def test_machine_with_room_attracts_all_batch_work(
    self_hosted: str, price: str, per_s: float
) -> None:
    world = GpuWorld(self_hosted=self_hosted, price=price)
    world.offer(per_s, 60.0)
    world.run(60.0)

    assert {each.endpoint for each in world.decisions} == {GPU}


@pytest.mark.parametrize("per_s", [14.0, 20.0, 26.0])
@pytest.mark.parametrize(
    "bound",
    [{}, {"tells_places": False}, {"kv_blocks_total": 600}],
    ids=["slots", "queue", "cache"],
)
def test_full_machine_repels_what_is_too_much_and_stays_evenly_full(
    per_s: float, bound: dict[str, Any]
) -> None:
    world = GpuWorld(self_hosted=ON_DEMAND, price=DEAR, **bound)
    world.offer(per_s, 60.0)
    world.run(60.0)
    crowd = world.crowd(10.0, 60.0)
    evenly = sum(crowd) / len(crowd)
    of_ten_s = [world.share(float(at), at + 10.0) for at in range(10, 60, 10)]

    assert {each.endpoint for each in world.decisions} == {GPU, PAID}
    assert world.num_turns(10.0, 60.0) <= 1
    assert min(crowd) >= 0.5 * evenly
    assert max(crowd) <= 1.5 * evenly
    assert max(of_ten_s) - min(of_ten_s) <= 0.25
    if not bound:
        assert SLOTS - 4 <= evenly <= SLOTS + 5  # all slots busy, hardly anybody waits


def test_load_that_rises_and_falls_turns_the_router_once_each_way() -> None:
    world = GpuWorld(self_hosted=ON_DEMAND, price=DEAR)
    for per_s in (3.0, 25.0, 3.0):
        world.offer(per_s, 40.0)
        world.run(40.0)

    assert world.share(0.0, 40.0) == world.share(85.0, 120.0) == 1.0
    assert 0.3 < world.share(45.0, 80.0) < 0.6
    assert world.num_turns(0.0, 120.0) <= 2


def test_idle_machine_that_is_dearer_for_one_request_is_joined_while_others_keep_it_busy() -> None:
    alone = GpuWorld(self_hosted=ON_DEMAND, price=CHEAP)
    alone.offer(1.0, 60.0)
    alone.run(60.0)
    beside = GpuWorld(self_hosted=ON_DEMAND, price=CHEAP)
    beside.offer(3.0, 60.0, Lane.INTERACTIVE)
    beside.offer(1.0, 60.0)
    beside.run(60.0)

    assert {each.endpoint for each in alone.decisions} == {PAID}
    assert beside.share(5.0, 60.0) > 0.95


def test_burst_does_not_take_the_machines_last_account_for_room_without_end() -> None:
    world = GpuWorld(self_hosted=ON_DEMAND, price=DEAR)
    world.run(1.5)
    world.burst(90)
    num_sent = sum(each.endpoint == GPU for each in world.decisions)
    world.run(1.0)  # now it has told how many wait
    world.burst(20)

    assert num_sent == SLOTS + 5 - 1  # a few that wait are not full, a place is kept free of batch
    assert {each.endpoint for each in world.decisions[90:]} <= {PAID, ""}
    world.run(30.0)
    world.burst(1)
    assert world.decisions[-1].endpoint == GPU


def test_machine_that_falls_silent_repels_batch_until_it_tells_again() -> None:
    world = GpuWorld(self_hosted=ON_DEMAND, price=DEAR)
    world.offer(4.0, 40.0)
    world.run(10.5)
    world.is_telling = False
    world.run(10.0)
    world.is_telling = True
    world.run(20.0)

    assert world.share(0.0, 12.0) == 1.0
    assert world.share(12.6, 20.0) == 0.0
    assert world.share(21.5, 40.0) == 1.0
    candidates = next(each.candidates for each in world.decisions if each.endpoint == PAID)
    assert "it is silent of late" in candidates[-1].reason


def test_routing_by_the_marginal_price_costs_less_than_either_endpoint_would_alone() -> None:
    world = GpuWorld(self_hosted=ON_DEMAND, price=DEAR)
    world.offer(14.0, 60.0)
    world.run(90.0)
    all_paid = GpuWorld(self_hosted=ON_DEMAND, price=DEAR)
    all_paid.is_telling = False
    all_paid.fleet.report_load(GPU, all_paid.gpu.load(0.0))
    all_paid.run(5.0)  # silent for longer than it is believed
    all_paid.offer(14.0, 50.0)
    all_paid.run(50.0)

    assert {each.endpoint for each in all_paid.decisions} == {PAID}
    per_request = world.spent_usd() / len(world.decisions)
    assert per_request < 0.5 * all_paid.spent_usd() / len(all_paid.decisions)
    # No machine serves fourteen a second: whoever comes is served here.
    assert all(each.endpoint for each in world.decisions)
