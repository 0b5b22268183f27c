"""Endings that are not the endpoint's: a client that leaves or stalls, a shutdown, a cut task."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.relay.dispatch import RelayLimits
from tests.support.relaying import (
    DONE,
    GOOD,
    ROLE,
    STOP,
    WAIT_S,
    Client,
    relay_world,
    token,
)
from tests.support.scripted_server import Connection

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_client_that_leaves_closes_upstream_and_pays_for_what_was_generated(
    tmp_path: Path,
) -> None:
    closed_at_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(ROLE + token("Eight ch"))
        await connection.until_peer_closes()
        closed_at_s.set_result(asyncio.get_running_loop().time())

    async with relay_world(tmp_path, script, GOOD) as world:
        client = Client()
        task = asyncio.create_task(world.run(client))
        await asyncio.wait_for(client.has_data.wait(), WAIT_S)
        left_at_s = asyncio.get_running_loop().time()
        client.gone.set()
        result, _ = await task
        took_s = await asyncio.wait_for(closed_at_s, WAIT_S) - left_at_s
        rows = await world.booked()

    assert took_s <= 0.25
    assert result.status == 499
    assert result.outcomes[0].client_gone
    assert result.usage is not None
    assert result.usage.output == 2
    assert result.is_estimated
    assert rows[0].billed_nanos == result.billed_nanos > 0
    assert len(world.servers[1].requests) == 0


async def test_client_that_leaves_before_the_first_token_closes_upstream(tmp_path: Path) -> None:
    has_request, is_closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        has_request.set()
        await connection.until_peer_closes()
        is_closed.set()

    async with relay_world(tmp_path, script) as world:
        client = Client()
        task = asyncio.create_task(world.run(client))
        await asyncio.wait_for(has_request.wait(), WAIT_S)
        client.gone.set()
        result, _ = await task
        await asyncio.wait_for(is_closed.wait(), 0.25)

    assert result.outcomes[0].failure == "client_gone"
    assert not client.is_started


async def test_slow_client_stops_the_reading_of_upstream(tmp_path: Path) -> None:
    num_sent = 0

    async def script(connection: Connection) -> None:
        nonlocal num_sent
        await connection.read_request()
        await connection.begin_stream()
        for _ in range(4_000):
            await connection.send_chunk(token("x" * 16_000))
            num_sent += 1
        await connection.send_chunk(STOP + DONE)
        await connection.end_stream()

    async with relay_world(tmp_path, script) as world:
        client = Client(blocks=asyncio.Event())
        task = asyncio.create_task(world.run(client))
        before = -1
        while before != num_sent or num_sent == 0:  # until the sender stands still
            before = num_sent
            await asyncio.sleep(0.1)
        assert num_sent < 2_000
        client.gone.set()
        result, _ = await task

    assert result.outcomes[0].reading_paused_s > 0.0


async def test_client_that_takes_nothing_for_too_long_is_cut_off(tmp_path: Path) -> None:
    limits = RelayLimits(stalled_s_max=0.1)
    async with relay_world(tmp_path, GOOD, limits=limits) as world:
        result, _ = await world.run(Client(blocks=asyncio.Event()))

    assert result.status == 499


async def test_shutdown_ends_a_stream_with_an_error_in_band(tmp_path: Path) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(token("Hi"))
        await connection.until_peer_closes()

    async with relay_world(tmp_path, script) as world:
        client = Client()
        task = asyncio.create_task(world.run(client))
        await asyncio.wait_for(client.has_data.wait(), WAIT_S)
        world.relay.stop_all()
        result, _ = await task

    assert json.loads(client.frames[-1])["error"]["code"] == "shutting_down"
    assert result.billed_nanos > 0


async def test_task_cancelled_from_outside_still_settles(tmp_path: Path) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(token("Hi there"))
        await connection.until_peer_closes()

    async with relay_world(tmp_path, script) as world:
        client = Client()
        task = asyncio.create_task(world.run(client))
        await asyncio.wait_for(client.has_data.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rows = await world.booked()

    assert [(row.state, row.billed_nanos > 0) for row in rows] == [("settled", True)]
