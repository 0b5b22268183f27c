"""Limits shared through a real Redis, and what happens when it goes away."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.core import Caller
from gateway.errors import RateLimited
from gateway.keys import limits as module
from gateway.keys.limits import Limits
from gateway.store import redis as redis_module
from gateway.store.redis import load_script, open_redis
from gateway.wire.limits_headers import RateLimitState
from tests.support.databases import redis_url

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture
async def redis(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    # Patient, so that a busy machine is not taken for a lost server.
    monkeypatch.setattr(module, "REDIS_WAIT_S", 5.0)
    monkeypatch.setattr(redis_module, "SOCKET_TIMEOUT_S", 5.0)
    client = open_redis(redis_url())
    yield client
    await client.aclose()


@pytest.fixture
async def caller(redis: Any) -> AsyncIterator[Caller]:
    """A key of a tenant of its own; what it left in Redis is deleted."""
    tenant_id = f"test-{secrets.token_hex(8)}"
    yield Caller(tenant_id=tenant_id, team_id="team", key_id="k", requests_per_minute=60)
    async for key in redis.scan_iter(match=f"looprouter:{{{tenant_id}}}:*"):
        await redis.delete(key)


def _limited(
    caller: Caller, rpm: int | None, tpm: int | None = None, at_once: int | None = None
) -> Caller:
    return Caller(
        tenant_id=caller.tenant_id,
        team_id=caller.team_id,
        key_id=caller.key_id,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        concurrency_max=at_once,
    )


def _limits(redis: Any, *, replicas: int = 1) -> Limits:
    return Limits(clock=time.monotonic, wall_clock=time.time, redis=redis, replicas=replicas)


@asynccontextmanager
async def _running(limits: Limits) -> AsyncIterator[Limits]:
    task = asyncio.create_task(limits.run())
    try:
        yield limits
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _num_admitted(limits: Limits, caller: Caller, tries: int, tokens: int = 1) -> int:
    results = await asyncio.gather(
        *(limits.admit(caller, tokens) for _ in range(tries)), return_exceptions=True
    )
    assert all(isinstance(r, RateLimited) for r in results if isinstance(r, BaseException))
    return sum(not isinstance(result, BaseException) for result in results)


async def test_processes_share_one_limit(redis: Any, caller: Caller) -> None:
    caller = _limited(caller, 10)
    replicas = [_limits(redis, replicas=4) for _ in range(4)]
    admitted = await asyncio.gather(*(_num_admitted(r, caller, 10) for r in replicas))

    assert sum(admitted) == 10
    assert all(replica.is_shared for replica in replicas)


async def test_state_and_refusal_say_what_is_left_and_when(redis: Any, caller: Caller) -> None:
    limits = _limits(redis)
    caller = _limited(caller, 2, 1000)
    ticket = await limits.admit(caller, 400)
    state = ticket.state
    assert state is not None
    assert (state.limit_requests, state.remaining_requests) == (2, 1)
    assert (state.limit_tokens, state.remaining_tokens) == (1000, 600)
    assert state.reset_requests_s == pytest.approx(30.0, abs=0.01)
    assert state.reset_tokens_s == pytest.approx(24.0, abs=0.01)

    with pytest.raises(RateLimited, match="1000 tokens a minute") as caught:
        await limits.admit(caller, 700)
    assert caught.value.retry_after_s == pytest.approx(6.0, abs=1.0)
    await limits.admit(caller, 1)
    with pytest.raises(RateLimited, match="2 requests a minute") as caught:
        await limits.admit(caller, 1)
    assert caught.value.retry_after_s == pytest.approx(30.0, abs=1.0)
    refused = caught.value.limit_state
    assert isinstance(refused, RateLimitState)
    assert (refused.exceeded, refused.remaining_requests) == ("requests", 0)


async def test_tokens_settle_in_redis(redis: Any, caller: Caller) -> None:
    limits = _limits(redis)
    caller = _limited(caller, None, 1000)
    first = await limits.admit(caller, 1000)
    assert await _num_admitted(limits, caller, 1) == 0
    first.settle(400)
    first.close()
    assert await limits.flush()
    second = await limits.admit(caller, 500)
    second.settle(10_000)
    second.close()
    second.close()
    assert await limits.flush()

    with pytest.raises(RateLimited) as caught:
        await limits.admit(caller, 1)
    assert caught.value.retry_after_s == pytest.approx(564.0, abs=2.0)


async def test_places_are_shared_and_freed_once(redis: Any, caller: Caller) -> None:
    caller = _limited(caller, None, None, 3)
    async with _running(_limits(redis)) as one, _running(_limits(redis)) as two:
        tickets = [await one.admit(caller, 1) for _ in range(3)]
        with pytest.raises(RateLimited, match="3 requests at once"):
            await two.admit(caller, 1)
        for _ in range(2):
            tickets[0].close()
        async with asyncio.timeout(2.0):
            while not await _num_admitted(two, caller, 1):
                await asyncio.sleep(0.005)
        assert await _num_admitted(two, caller, 1) == 0


async def test_places_of_a_dead_process_end_and_those_of_a_live_one_are_renewed(
    redis: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_S", 0.3)
    monkeypatch.setattr(module, "RENEW_S", 0.05)
    caller = _limited(caller, None, None, 1)
    busy = msgspec.structs.replace(caller, key_id="busy", concurrency_max=5)
    live, dead, asking = _limits(redis), _limits(redis), _limits(redis)
    async with _running(live):
        ticket = await live.admit(caller, 1)
        ends = time.monotonic() + 0.6
        while time.monotonic() < ends:
            assert await _num_admitted(asking, caller, 1) == 0
            # Ends to report must not keep it from renewing.
            (await live.admit(busy, 1)).close()
            await asyncio.sleep(0.005)
        ticket.close()
        async with asyncio.timeout(2.0):
            while not await _num_admitted(dead, caller, 1):
                await asyncio.sleep(0.005)
    async with asyncio.timeout(2.0):  # `dead` renews nothing
        while not await _num_admitted(asking, caller, 1):
            await asyncio.sleep(0.02)


async def test_redis_time_and_not_ours_decides(redis: Any, caller: Caller) -> None:
    caller = _limited(caller, 1)
    assert await _num_admitted(_limits(redis), caller, 1) == 1
    fast = Limits(
        clock=lambda: time.monotonic() + 1e6, wall_clock=lambda: time.time() + 1e6, redis=redis
    )

    assert await _num_admitted(fast, caller, 1) == 0


async def test_keys_expire_and_stay_in_one_slot(redis: Any, caller: Caller) -> None:
    limits = _limits(redis)
    await limits.admit(_limited(caller, 60, 1000, 5), 10)
    found = [key.decode() async for key in redis.scan_iter(f"looprouter:{{{caller.tenant_id}}}:*")]

    assert len(found) == 3
    for key in found:
        assert 0 < await redis.ttl(key) <= 180


async def test_scripts_come_back_after_the_server_forgot_them(redis: Any, caller: Caller) -> None:
    limits = _limits(redis)
    await limits.admit(caller, 1)
    await redis.script_flush()
    await limits.admit(caller, 1)

    assert limits.is_shared


async def test_lua_and_python_windows_agree(redis: Any, caller: Caller) -> None:
    # Redis has its own clock, so only what does not depend on it is compared: what a full window
    # admits at once, of costs that fill it in different ways.
    script = load_script(redis, "limits_admit")
    stem = f"looprouter:{{{caller.tenant_id}}}:"
    local = Limits(clock=lambda: 0.0, wall_clock=lambda: 0.0)
    for limit, costs in ((7, [3, 3, 3, 1]), (1000, [999, 2, 1, 1]), (3, [1, 1, 1, 1])):
        by_lua, by_python = [], []
        one = Caller(tenant_id="t", team_id="t", key_id=f"{limit}", tokens_per_minute=limit)
        for cost in costs:
            keys = [f"{stem}r", f"{stem}{limit}", f"{stem}o"]
            answer = await script(keys=keys, args=[0, limit, cost, 0, "x", 1])
            by_lua.append(answer[0] == 0)
            by_python.append(await _num_admitted(local, one, 1, cost) == 1)

        assert by_python == by_lua


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Redis of the test's own, to be stopped at will."""
    program = shutil.which("redis-server")
    assert program is not None, "install redis-server to run the tests marked redis"
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [program, "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    for _ in range(200):
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield f"redis://127.0.0.1:{port}", process
    process.kill()
    process.wait()


async def test_lost_redis_leaves_a_tight_share_and_comes_back(
    own_server: tuple[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, process = own_server
    monkeypatch.setattr(module, "REDIS_AWAY_S", 0.05)
    client = open_redis(url)
    caller = Caller(tenant_id="t", team_id="team", key_id="k", requests_per_minute=40)
    limits = _limits(client, replicas=4)
    held = await limits.admit(caller, 1)
    assert limits.is_shared

    process.send_signal(19)  # SIGSTOP: it accepts connections and answers nothing
    started_s = time.monotonic()
    assert await _num_admitted(limits, caller, 1) == 1
    assert time.monotonic() - started_s < 2.0
    assert not limits.is_shared
    assert await _num_admitted(limits, caller, 100) == 8  # 40 / 4, less the two before
    held.close()
    assert await limits.flush()

    process.send_signal(18)  # SIGCONT
    async with asyncio.timeout(5.0):
        while not await _num_admitted(limits, caller, 1):
            await asyncio.sleep(0.02)
    assert limits.is_shared
    await client.aclose()


async def test_dead_redis_costs_one_wait_a_second_and_loses_no_ends(
    own_server: tuple[str, subprocess.Popen[bytes]],
) -> None:
    url, process = own_server
    client = open_redis(url)
    caller = Caller(tenant_id="t", team_id="team", key_id="k", concurrency_max=2)
    limits = _limits(client)
    ticket = await limits.admit(caller, 1)
    process.kill()
    process.wait()
    ticket.close()
    assert not await limits.flush()

    started_s = time.monotonic()
    for _ in range(200):
        (await limits.admit(caller, 1)).close()
    assert time.monotonic() - started_s < 1.0
    assert limits.num_unreported == 1
    await client.aclose()
