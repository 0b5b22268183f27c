"""Roll-ups of the request log say what its rows say, also when a batch is written twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.store.engine import Store
from gateway.store.requests import RequestRow, insert_requests
from gateway.store.rollup_tables import GRAINS_S, REQUEST_SUMS, request_rollups
from gateway.store.tables import requests
from tests.support.databases import postgres_store, sqlite_store

pytestmark = pytest.mark.anyio
AT = 1_700_000_000.0


def rows(first: int, num: int) -> list[RequestRow]:
    return [
        RequestRow(
            id=f"req-{i}", tenant_id="tu"[i % 2], team_id="m", key_id="k", created_at=AT + 40.0 * i,
            surface="chat", model="chat", lane="interactive", stream=i % 3 == 0,
            status=(200, 200, 429, 502)[i % 4], error=("", "cut", "limit", "down")[i % 4],
            endpoint_id=("a/x", "b/y", "")[i % 3], ttft_any_ms=10.5 * i if i % 3 == 0 else None,
            duration_ms=100.0 + i,
        )
        for i in range(first, first + num)
    ]  # fmt: skip


async def check(store: Store) -> None:
    r, c = requests.c, request_rollups.c
    by_row = sa.select(
        sa.func.count(),
        sa.func.sum(sa.case((r.status.between(400, 499), 1), else_=0)),
        sa.func.sum(sa.case((r.status >= 500, 1), (r.status + 0 > 299, 0), (r.error != "", 1),
                            else_=0)),
        sa.func.count(r.ttft_any_ms),
        sa.func.sum(r.ttft_any_ms * 1000),
        sa.func.sum(r.duration_ms * 1000),
    )  # fmt: skip
    async with store.read() as connection:
        expected = [int(each) for each in (await connection.execute(by_row)).one()]
        for grain in GRAINS_S:
            sums = sa.select(*(sa.func.sum(c[name]) for name in REQUEST_SUMS))
            found = (await connection.execute(sums.where(c.grain == grain))).one()
            assert [int(each) for each in found] == expected
    assert all(expected)


async def write_and_die(store: Store) -> None:
    async with store.begin() as connection:
        await insert_requests(connection, rows(700, 50))
        raise RuntimeError("killed")


async def write_and_check(store: Store) -> None:
    async with store.begin() as connection:
        await insert_requests(connection, rows(0, 600))
    await check(store)
    # The answer to a commit was lost: the same rows come again, some new ones with them.
    async with store.begin() as connection:
        await insert_requests(connection, rows(500, 200))
    await check(store)
    with pytest.raises(RuntimeError, match="killed"):
        await write_and_die(store)
    await check(store)
    async with store.read() as connection:
        assert await connection.scalar(sa.select(sa.func.count()).select_from(requests)) == 700


async def test_roll_ups_and_rows_agree(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        await write_and_check(store)


@pytest.mark.postgres
async def test_roll_ups_and_rows_agree_on_postgresql() -> None:
    async with postgres_store() as store:
        await write_and_check(store)
