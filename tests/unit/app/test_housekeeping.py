"""What is kept for a time is gone after it: by slices, with room for others in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.app import retention_job
from gateway.app.housekeeping import Housekeeping
from gateway.app.load_polling import LoadPoller
from gateway.app.policy_source import FilePolicySource
from gateway.app.retention_job import SLICE_ROWS_MAX, SLICE_ROWS_MIN, SLICE_S, RetentionJob
from gateway.prices.book import PriceBook
from gateway.providers.httpx_transport import HttpxTransport
from gateway.store.audit import AuditEvent, append_events
from gateway.store.engine import Store
from gateway.store.requests import RequestRow, insert_requests
from gateway.store.retention import take_turn
from gateway.store.tables import audit_events, requests
from tests.support.databases import postgres_store, sqlite_store
from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, answers

pytestmark = pytest.mark.anyio
DAY_S = 86_400.0
NOW = 1_000 * DAY_S


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[Store]:
    async with sqlite_store(tmp_path) if request.param == "sqlite" else postgres_store() as found:
        yield found


async def log(store: Store, num_old: int, *, now: float = NOW) -> None:
    """So many requests of eight days ago, and one of this instant."""
    row = RequestRow(
        id="fresh", tenant_id="t", team_id="m", key_id="k", created_at=now, surface="chat",
        model="m", lane="interactive", stream=False,
    )  # fmt: skip
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    old = [
        RequestRow(**{**values, "id": f"old{i}", "created_at": now - 8 * DAY_S - i})
        for i in range(num_old)
    ]
    async with store.begin() as connection:
        await insert_requests(connection, [*old, row])


async def left(store: Store) -> list[str]:
    async with store.read() as connection:
        return list((await connection.execute(sa.select(requests.c.id))).scalars())


class Naps:
    """Counts the pauses and does in each what another writer would."""

    def __init__(self, store: Store, *, at_most: int = 1_000) -> None:
        self._store = store
        self._at_most = at_most
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        if len(self.taken) > self._at_most:
            raise asyncio.CancelledError
        async with self._store.begin() as connection:
            event = AuditEvent(tenant_id="t", at=NOW, actor="a", action="x", subject="y")
            await append_events(connection, [event])


def job_of(store: Store, naps: Naps, **given: int) -> RetentionJob:
    return RetentionJob(store, given, wall_clock=lambda: NOW, clock=lambda: 0.0, sleep=naps)


async def test_old_rows_go_by_slices_and_others_write_in_between(store: Store) -> None:
    await log(store, 2 * SLICE_ROWS_MAX + 7)
    naps = Naps(store)
    gone = await job_of(store, naps).run()
    async with store.read() as connection:
        events = await connection.scalar(sa.select(sa.func.count()).select_from(audit_events))

    # Eight days ago are gone from the log, and so are their minutes; their hours stay.
    assert gone["requests"] == 2 * SLICE_ROWS_MAX + 7
    assert set(gone) == {"requests", "minutes"}
    assert await left(store) == ["fresh"]
    assert len(naps.taken) == events == 3 + 1
    assert min(naps.taken) >= retention_job.PAUSE_S


async def test_a_job_that_is_stopped_goes_on_where_it_was(store: Store) -> None:
    await log(store, 2 * SLICE_ROWS_MAX + 7)
    with pytest.raises(asyncio.CancelledError):
        await job_of(store, Naps(store, at_most=1)).run()
    halfway = len(await left(store))
    gone = await job_of(store, Naps(store)).run()

    assert halfway == 8
    assert gone["requests"] == 7
    assert await left(store) == ["fresh"]
    assert await job_of(store, Naps(store)).run() == {}


async def test_slices_shrink_where_they_take_long_and_grow_again(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        await log(store, SLICE_ROWS_MAX)
        ticks = iter([0.0, 2 * SLICE_S, 2 * SLICE_S, 3 * SLICE_S] + [9.0] * 100)
        naps = Naps(store)
        job = RetentionJob(store, {}, wall_clock=lambda: NOW, clock=lambda: next(ticks), sleep=naps)
        job.rows = 2 * SLICE_ROWS_MIN
        await job.run()

    # The first took too long, and it slept as long as it had worked.
    assert naps.taken[0] == 2 * SLICE_S
    assert job.rows == SLICE_ROWS_MAX
    assert len(naps.taken) > 5


@pytest.mark.postgres
async def test_one_process_deletes_at_a_time() -> None:
    async with postgres_store() as store:
        await log(store, 3)
        async with store.begin() as other:
            assert await take_turn(other)
            during = await job_of(store, Naps(store)).run()
        after = await job_of(store, Naps(store)).run()

    assert during == {}
    assert after["requests"] == 3


async def test_a_running_gateway_does_it_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.housekeeping.PURGE_EVERY_S", 0.01)
    async with edge(tmp_path, answers(COMPLETION)) as world:
        gateway = world.gateway
        await log(gateway.store, 5, now=gateway.wall_clock())
        source = FilePolicySource(tmp_path / "policy.yaml", gateway.settings.environ)
        poller = LoadPoller(gateway, HttpxTransport())
        keeping = Housekeeping(gateway, source, PriceBook(), poller)
        keeping.start()
        try:
            async with asyncio.timeout(10.0):
                while await left(gateway.store) != ["fresh"]:
                    await asyncio.sleep(0.01)
        finally:
            await keeping.stop()
