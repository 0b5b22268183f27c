"""What one process measured reaches the others over Redis; lost Redis and garbage hurt nobody."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog.testing
from prometheus_client import CollectorRegistry, generate_latest

from gateway.app import replicas as module
from gateway.app.replicas import (
    ENDPOINTS_A_MESSAGE,
    MESSAGE_BYTES_MAX,
    NewsCarrier,
    Sealer,
    jittered,
)
from gateway.fleet.fleet import Fleet
from gateway.fleet.replicas import Replica
from gateway.fleet.sharing import SAMPLES_MAX, FleetNews
from gateway.measure import replicas as meter_module
from gateway.measure.replicas import ReplicaMeter
from gateway.store.redis import open_redis
from tests.support.databases import redis_url
from tests.support.fleet_world import Clock, endpoint, facts, make_fleet, serve, streamed
from tests.support.redis_server import OwnRedis, own_redis

pytestmark = pytest.mark.anyio

FAST, SLOW = "fast/m", "slow/m"
PEPPER = b"p" * 32


@dataclass
class Process:
    """One of several: a fleet of its own, its carrier and what that counts."""

    fleet: Fleet
    carrier: NewsCarrier
    meter: ReplicaMeter
    registry: CollectorRegistry

    def knows(self, endpoint_id: str = FAST) -> int:
        """Answers that its beliefs rest on."""
        return self.fleet.snapshot().stats[endpoint_id].num_samples

    def figure(self, name: str) -> float:
        lines = generate_latest(self.registry).decode().splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[-1])


class NoRedis:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []

    async def publish(self, channel: str, message: bytes) -> None:
        self.published.append((channel, message))


def process(redis: Any, *ids: str, clock: Any = None, pepper: bytes = PEPPER) -> Process:
    """By virtual clock, or by the machine's where there is none."""
    if clock is None:
        fleet = Fleet(
            [endpoint(each) for each in ids or (FAST,)],
            clock=time.monotonic,
            wall_clock=time.time,
            price_rows=lambda _endpoint, _at: (),
            new_id=lambda: secrets.token_hex(4),
        )
    else:
        fleet = make_fleet(*(ids or (FAST,)), clock=clock)
    registry = CollectorRegistry()
    meter = ReplicaMeter(secrets.token_hex(8), registry, clock=fleet.clock)
    carrier = NewsCarrier(fleet, redis, pepper=pepper, meter=meter)
    return Process(fleet, carrier, meter, registry)


# Without a server


async def test_a_message_teaches_what_was_measured_and_is_counted() -> None:
    clock, redis = Clock(), NoRedis()
    here, there = process(redis, clock=clock), process(redis, clock=clock)
    serve(here.fleet, clock, FAST, num=12, rate=200.0)
    here.fleet.started(FAST)

    await here.carrier.tell()
    ((channel, message),) = redis.published
    await there.carrier.hear(message)
    clock.advance(1.5)

    assert channel == here.carrier.channel != there.carrier.channel
    assert there.knows() == here.knows() == 12
    ours, theirs = here.fleet.snapshot().stats[FAST], there.fleet.snapshot().stats[FAST]
    assert theirs.rate_mu == pytest.approx(ours.rate_mu, abs=0.02)
    assert there.fleet.view(facts(), [FAST]).live[FAST].in_flight == 1
    assert there.meter.summary() == {
        "name": there.meter.name,
        "is_telling": False,
        "is_hearing": False,
        "heard_of": 1,
        "last_heard_s": 1.5,
        "others": [{"name": here.meter.name, "age_s": 1.5}],
        "messages": {"sent": 0, "heard": 1, "dropped": {}},
    }
    assert here.figure("gateway_replica_messages_sent_total") == 1
    assert here.figure("gateway_replica_sent_bytes_total") == len(message)
    assert there.figure("gateway_replica_messages_heard_total") == 1
    assert there.figure("gateway_replicas_heard ") == 1
    assert there.figure("gateway_replica_heard_age_seconds") == 1.5
    clock.advance(meter_module.FRESH_S)
    assert there.figure("gateway_replicas_heard ") == 0
    assert str(here.figure("gateway_replica_heard_age_seconds")) == "nan"


async def test_policies_need_to_share_nothing_but_the_address() -> None:
    clock, redis = Clock(), NoRedis()
    here = process(redis, FAST, "only-here/m", clock=clock)
    there = process(redis, "only-there/m", FAST, clock=clock)
    for each in (FAST, "only-here/m"):
        serve(here.fleet, clock, each, num=12)
    await here.carrier.tell()
    await there.carrier.hear(redis.published[0][1])
    clock.advance(1.5)

    assert there.knows() == 12
    assert there.knows("only-there/m") == 0
    assert set(there.fleet.snapshot().stats) == {FAST, "only-there/m"}


async def test_garbage_is_dropped_counted_and_leaves_no_trace() -> None:
    clock = Clock()
    there = process(NoRedis(), clock=clock)
    news = FleetNews(replica="x", at_unix_s=clock.wall(), endpoints={})
    ours, foreign = Sealer(PEPPER), Sealer(b"q" * 32)
    good = ours.seal(news)
    wrong_type = msgspec.msgpack.encode({"replica": 1, "at_unix_s": 0.0, "endpoints": {}})
    for message, reason in (
        (b"", "foreign"),
        (b"\x00" * 500, "foreign"),
        (b'{"replica": "x"}', "foreign"),
        (foreign.seal(news), "foreign"),
        (good[:-1] + b"\xff", "foreign"),
        (ours._tag(b"\xc1") + b"\xc1", "malformed"),
        (ours._tag(b"") + b"", "malformed"),
        (ours._tag(wrong_type) + wrong_type, "malformed"),
        (good + b"x" * MESSAGE_BYTES_MAX, "too_large"),
        (ours.seal(msgspec.structs.replace(news, at_unix_s=clock.wall() - 600.0)), "old"),
    ):
        before = there.meter.num_dropped.get(reason, 0)
        await there.carrier.hear(message)
        assert there.meter.num_dropped.get(reason, 0) == before + 1, (message[:40], reason)

    assert there.meter.num_heard == 0
    assert there.meter.summary()["heard_of"] == 0
    assert there.figure('gateway_replica_messages_dropped_total{reason="foreign"}') == 5
    await there.carrier.hear(good)
    assert there.meter.num_heard == 1


async def test_news_that_cannot_be_learned_from_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, redis = Clock(), NoRedis()
    here, there = process(redis, clock=clock), process(redis, clock=clock)
    await here.carrier.tell()

    def of_the_next_release(*_: object) -> bool:
        raise KeyError("a failure that is not known here")

    monkeypatch.setattr(Replica, "hear", of_the_next_release)
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            await there.carrier.hear(redis.published[0][1])

    assert there.meter.num_dropped == {"failed": 3}
    assert len(logged) == 1


async def test_a_large_fleet_is_told_in_parts_of_bounded_size() -> None:
    clock, redis = Clock(), NoRedis()
    ids = [f"p{idx}/m" for idx in range(2 * ENDPOINTS_A_MESSAGE + 3)]
    here, there = process(redis, *ids, clock=clock), process(redis, *ids, clock=clock)
    for _ in range(20):
        clock.advance(1.0)
        for each in ids:
            here.fleet.started(each)
            here.fleet.observe(streamed(clock(), endpoint_id=each))
    await here.carrier.tell()
    assert len(redis.published) == 3
    assert here.meter.num_dropped == {}
    assert max(len(message) for _, message in redis.published) < MESSAGE_BYTES_MAX / 2
    for _, message in redis.published:
        await there.carrier.hear(message)
    clock.advance(1.5)

    assert {there.knows(each) for each in ids} == {SAMPLES_MAX}


async def test_a_long_message_lets_others_run_between_endpoints() -> None:
    clock, redis = Clock(), NoRedis()
    ids = [f"p{idx}/m" for idx in range(8)]
    here, there = process(redis, *ids, clock=clock), process(redis, *ids, clock=clock)
    for each in ids:
        serve(here.fleet, clock, each)
    await here.carrier.tell()
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(another())
    await there.carrier.hear(redis.published[0][1])
    task.cancel()

    assert turns >= len(ids)


def test_channel_names_the_deployment_and_not_its_secret() -> None:
    ours, theirs = Sealer(PEPPER), Sealer(b"q" * 32)
    assert ours.deployment == Sealer(PEPPER).deployment != theirs.deployment
    assert ours._key.hex()[:16] not in ours.deployment
    periods = [jittered(1.0) for _ in range(200)]
    assert 0.8 <= min(periods) < 0.9 < 1.1 < max(periods) <= 1.2


# With one


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE_EVERY_S", 0.05)
    monkeypatch.setattr(module, "SILENT_S", 0.5)
    monkeypatch.setattr(module, "BACK_OFF_S_MAX", 0.2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnRedis]:
    with own_redis(tmp_path) as running:
        yield running


@asynccontextmanager
async def running(url: str, *of: tuple[str, ...], pepper: bytes) -> AsyncIterator[list[Process]]:
    clients = [open_redis(url) for _ in of]
    processes = [
        process(client, *ids, pepper=pepper) for client, ids in zip(clients, of, strict=True)
    ]
    tasks = [asyncio.create_task(each.carrier.run()) for each in processes]
    try:
        yield processes
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.aclose()
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


def work(here: Process, endpoint_id: str = FAST, num: int = 12) -> None:
    for _ in range(num):
        here.fleet.started(endpoint_id)
        here.fleet.observe(streamed(time.monotonic(), endpoint_id=endpoint_id))


@pytest.mark.redis
@pytest.mark.usefixtures("_quick")
async def test_replicas_on_one_redis_learn_from_each_other_and_from_no_stranger() -> None:
    pepper = secrets.token_bytes(32)
    async with (
        running(redis_url(), (FAST, SLOW), (SLOW, FAST), (FAST,), pepper=pepper) as all_three,
        running(redis_url(), (FAST,), pepper=b"q" * 32) as (stranger,),
    ):
        one, two, three = all_three
        await until(lambda: all(len(each.meter.others()) == 2 for each in all_three))
        work(one)
        work(two, SLOW)
        await until(lambda: min(one.knows(SLOW), two.knows(), three.knows()) == 12)

        assert {*one.meter.others()} == {two.meter.name, three.meter.name}
        assert one.meter.is_telling
        assert one.meter.is_hearing
        assert one.meter.num_dropped == {}
        assert stranger.meter.num_heard == 0
        assert stranger.knows() == 0
        await asyncio.sleep(1.2)  # once, however many messages follow
        assert [each.knows() for each in (one, two, three)] == [12, 12, 12]


@pytest.mark.redis
@pytest.mark.usefixtures("_quick")
async def test_garbage_on_the_channel_does_not_end_the_hearing() -> None:
    pepper = secrets.token_bytes(32)
    client = open_redis(redis_url())
    async with running(redis_url(), (FAST,), (FAST,), pepper=pepper) as (one, two):
        await until(lambda: len(two.meter.others()) == 1)
        stem = two.carrier.channel.rpartition(":")[0]
        for message in (b"", b"garbage", secrets.token_bytes(2_000), b"x" * 2 * MESSAGE_BYTES_MAX):
            await client.publish(f"{stem}:somebody", message)
        await until(lambda: sum(two.meter.num_dropped.values()) == 4)
        work(one)
        await until(lambda: two.knows() > 0)

    assert two.meter.num_dropped == {"foreign": 3, "too_large": 1}
    await client.aclose()


@pytest.mark.redis
@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_lost_redis_is_told_once_and_found_again(server: OwnRedis, how: str) -> None:
    async with running(server.url, (FAST,), (FAST,), pepper=PEPPER) as (one, two):
        await until(lambda: len(two.meter.others()) == 1)
        with structlog.testing.capture_logs() as logged:
            server.kill() if how == "killed" else server.freeze()
            await until(lambda: not (one.meter.is_telling or one.meter.is_hearing))
            work(one)  # nobody will hear of these
            started_s = time.monotonic()
            await asyncio.sleep(1.0)
            assert time.monotonic() - started_s < 1.5  # the loop is not held up
            assert one.meter.num_dropped["lost"] >= 3
            heard = two.meter.num_heard
            server.start() if how == "killed" else server.thaw()
            await until(lambda: one.meter.is_telling and two.meter.num_heard > heard)
            await until(lambda: two.meter.is_hearing and one.meter.is_hearing)
            work(one, num=20)
            await until(lambda: two.knows() > 0)
            await until(lambda: two.meter.is_telling)

    events = sorted(each["event"] for each in logged)
    assert events == sorted(
        2  # processes, each once a direction however long it lasts
        * [
            "replicas are not told, going on alone",
            "replicas are not heard, going on alone",
            "replicas are told again",
            "replicas are heard again",
        ]
    )


@pytest.mark.redis
@pytest.mark.usefixtures("_quick")
async def test_a_redis_that_is_not_there_at_the_start_is_found_later(server: OwnRedis) -> None:
    server.kill()
    async with running(server.url, (FAST,), (FAST,), pepper=PEPPER) as (one, two):
        await until(lambda: one.meter.num_dropped.get("lost", 0) > 1)
        assert one.meter.summary()["last_heard_s"] is None
        server.start()
        await until(lambda: len(one.meter.others()) == len(two.meter.others()) == 1)


def test_a_replica_that_hears_itself_learns_nothing_twice() -> None:
    clock = Clock()
    fleet = make_fleet(FAST, clock=clock)
    replica = Replica(fleet, "one")
    serve(fleet, clock, FAST)
    assert not replica.hear(replica.news())
