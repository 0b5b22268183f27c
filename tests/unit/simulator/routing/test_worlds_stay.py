"""Worlds stay as they are at their seeds, so that published figures can be had again."""

from __future__ import annotations

import hashlib

import pytest

from gateway.simulator.routing.bench import factory_of
from gateway.simulator.routing.episode import play
from gateway.simulator.routing.records import EventLog
from gateway.simulator.routing.workloads.registry import workload
from gateway.simulator.routing.worlds import make_world

# Of two rules that learn little, so that only a change of the world or of its engine shows.
ROUTERS = ("round_robin", "cheapest_listed")
DIGESTS = {
    "calm": "ac8265b776b1ddd1",
    "drift": "f98ab0068e0abec9",
    "regime": "9df952312bc01752",
    "outage": "e76d2958e01da6a2",
    "dies-error": "624b491a30711778",
    "dies-hang": "adac90a8ef6b6330",
    "dies-half": "86d623aa60917466",
    "slows": "6b57791b2f28670e",
    "correlated": "e5e694453518988d",
    "limits": "d5d3d75f44958a03",
    "prices": "1319cd84ae8b4fe0",
    "newcomer": "46410a0d8b1aef26",
    "improves": "0926fb451e6d6151",
    "liar": "08f8dbe07159a82e",
    "burst": "8846f284275d855d",
    "tokenizer": "54b6ab61c44cdb2c",
    "caching": "84ac8a0f442ddf85",
}


@pytest.mark.parametrize("name", list(DIGESTS))
def test_a_published_world_plays_as_it_did_when_its_figures_were_taken(name: str) -> None:
    assert _digest(name) == DIGESTS[name]


def _digest(name: str) -> str:
    """Of every event of two minutes, to the microsecond: the last bit of a float is no matter."""
    world = make_world(name, seed=1, duration_s=120.0)
    traffic = "synthetic-multi-turn" if name == "caching" else "synthetic-conversation"
    load = workload(traffic, seed=1, duration_s=120.0)
    digest = hashlib.blake2b(digest_size=8)
    for router in ROUTERS:
        log = EventLog(keep_lines=True)
        served = play(world, load, factory_of(router), seed=1, log=log).served
        for line in log.lines or ():
            at_s, what = line.split(" ", 1)
            digest.update(f"{float(at_s):.6f} {what}".encode())
        digest.update(str(sum(one.cost_nanos for one in served)).encode())
    return digest.hexdigest()
