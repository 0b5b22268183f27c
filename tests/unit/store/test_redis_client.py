"""What the Redis client needs around it."""

from __future__ import annotations

import asyncio

import pytest

from gateway.store.redis import end_if_cancelled

pytestmark = pytest.mark.anyio


async def test_a_cancellation_that_a_client_swallowed_ends_the_task_all_the_same() -> None:
    began, num_rounds = asyncio.Event(), 0

    async def work() -> None:
        nonlocal num_rounds
        while True:
            end_if_cancelled()
            num_rounds += 1
            try:
                began.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue  # as redis-py does when it comes at the wrong moment

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=5)

    assert not pending
    assert task.cancelled()
    assert num_rounds == 1
