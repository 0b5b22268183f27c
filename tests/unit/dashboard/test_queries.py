"""Queries on a generated log of 100,000: every page says what a plain count of the rows says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.dashboard import queries_requests as q
from gateway.dashboard.queries_requests import Filters, list_page, place_of
from gateway.dashboard.queries_spend import COLUMNS, asked_of, export_rows, spans, spend
from gateway.ledger.report import attempts_of, report
from gateway.ledger.verify_rollups import rollup_problems
from gateway.store.engine import Store, open_store
from gateway.store.rollup_tables import REQUEST_SUMS, request_rollups
from gateway.store.tables import requests
from tests.bench.make_request_rows import RARE, fill
from tests.support.databases import postgres_schema

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
UNTIL = 1_700_050_000.0  # in the afternoon
DATABASES = [
    ("sqlite", 100_000),
    pytest.param(("postgres", 20_000), marks=pytest.mark.postgres),
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=DATABASES, ids=lambda each: each[0])
async def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Store]:
    database, num_rows = request.param
    if database == "sqlite":
        async for each in _filled(f"sqlite:///{_path(tmp_path_factory)}/d.db", num_rows):
            yield each
        return
    async with postgres_schema() as url:
        async for each in _filled(url, num_rows):
            yield each


def _path(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("rows")


async def _filled(url: str, num_rows: int) -> AsyncIterator[Store]:
    await asyncio.to_thread(
        fill, url, num_rows=num_rows, num_attempts=num_rows, days=2, until=UNTIL
    )
    store = await open_store(url)
    yield store
    await store.close()


async def test_the_generated_roll_ups_are_those_of_the_rows(store: Store) -> None:
    async with store.read() as connection:
        assert await rollup_problems(connection) == []
        r, c = requests.c, request_rollups.c
        sums = sa.select(*(sa.func.sum(c[name]) for name in REQUEST_SUMS[:4]))
        for grain in ("hour", "day"):
            found = (await connection.execute(sums.where(c.grain == grain))).one()
            counts = sa.select(
                sa.func.count(),
                sa.func.sum(sa.case((r.status.between(400, 499), 1), else_=0)),
                sa.func.sum(sa.case((r.status >= 500, 1), else_=0)),
                sa.func.count(r.ttft_any_ms),
            )
            assert [int(n) for n in found] == list((await connection.execute(counts)).one())


@pytest.mark.parametrize(
    "filters",
    [
        Filters(model=RARE),
        Filters(tenant_id="tenant2", model="code", outcome="failed"),
        Filters(tenant_id="tenant1", key_id="key1", outcome="refused"),
        Filters(tenant_id="tenant3", since=UNTIL - 9_000.0, until=UNTIL - 5_000.0),
        Filters(endpoint_id="openai/gpt-5-mini", lane="batch", since=UNTIL - 40_000.0),
        Filters(model="none"),
        Filters(endpoint_id="fireworks/qwen3-32b", outcome="failed"),
        Filters(tenant_id="tenant4", model=RARE, lane="batch"),
        Filters(tenant_id="tenant3", key_id="key3", outcome="failed"),
        Filters(outcome="refused", until=UNTIL - 80_000.0),
    ],
)
async def test_all_pages_together_are_all_rows_that_fit(store: Store, filters: Filters) -> None:
    r = requests.c
    conditions = [
        column == wanted
        for column, wanted in (
            (r.tenant_id, filters.tenant_id), (r.key_id, filters.key_id), (r.model, filters.model),
            (r.endpoint_id, filters.endpoint_id), (r.lane, filters.lane),
        )
        if wanted
    ]  # fmt: skip
    if filters.outcome:
        low = 400 if filters.outcome == "refused" else 500
        conditions.append(r.status.between(low, low + 99))
    if filters.since:
        conditions.append(r.created_at >= filters.since)
    if filters.until:
        conditions.append(r.created_at < filters.until)
    query = sa.select(r.id).where(*conditions).order_by(r.created_at.desc(), r.id.desc())
    async with store.read() as connection:
        expected = list((await connection.execute(query)).scalars())
        assert await all_pages(connection, filters) == expected


async def all_pages(connection: AsyncConnection, filters: Filters) -> list[str]:
    found: list[str] = []
    before: str | None = ""
    while before is not None:
        page = await list_page(connection, filters, before=place_of(before))
        assert len(page.lines) <= q.PAGE_ROWS
        found += [line.id for line in page.lines]
        before = page.next
    return found


async def test_rows_that_are_older_than_the_hours_kept_are_found(store: Store) -> None:
    day_ago = UNTIL - 86_400.0
    filters = Filters(
        model="chat", lane="interactive", since=day_ago - 6_000.0, until=day_ago + 3_000.0
    )
    async with store.read() as connection:
        expected = await all_pages(connection, filters)
    async with store.engine.connect() as connection, connection.begin() as transaction:
        c = request_rollups.c
        old = c.bucket_start < day_ago
        await connection.execute(sa.delete(request_rollups).where(c.grain == "hour", old))
        found = await all_pages(connection, filters)
        await transaction.rollback()
    assert len(expected) > 100
    assert found == expected


async def test_a_look_that_is_cut_off_says_so_and_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(q, "LOOK_ROWS", 100)
    monkeypatch.setattr(q, "WHOLE_LOOK_ROWS", 10)
    monkeypatch.setattr(q, "LOOK_S", 0.0)
    filters = Filters(tenant_id="tenant1", model="code", outcome="failed")
    num_cut, found, before = 0, [], ""
    async with store.read() as connection:
        for _ in range(400):
            page = await list_page(connection, filters, before=place_of(before))
            num_cut += page.looked_back_to is not None
            found += [line.id for line in page.lines]
            if page.next is None:
                break
            before = page.next
        expected = sa.select(sa.func.count()).where(
            requests.c.tenant_id == "tenant1", requests.c.model == "code", requests.c.status >= 500
        )
        whole = await connection.scalar(expected)
    assert num_cut > 0
    if page.next is None:
        assert len(found) == len(set(found)) == whole


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        (Filters(outcome="failed", lane="batch"), "errors"),
        (Filters(model=RARE, lane="batch"), "model"),
        (Filters(endpoint_id="fireworks/qwen3-32b", lane="batch"), "endpoint"),
    ],
)
async def test_each_way_goes_by_its_index(store: Store, filters: Filters, index: str) -> None:
    if not store.is_sqlite:  # PostgreSQL counts costs: at so few rows another way is as good
        return

    async def look() -> None:
        async with store.read() as connection:
            await list_page(connection, filters, before=None)

    plans = await plans_of(store, look, "SELECT requests.created_at, requests.id")
    assert any(f"COVERING INDEX ix_requests_{index}" in plan for plan in plans), plans


async def test_attempts_of_a_request_are_not_sought_among_all_of_its_tenant(store: Store) -> None:
    if not store.is_sqlite:
        return
    plans = await plans_of(store, lambda: attempts_of(store, "tenant1", "r"), "SELECT attempts.")
    assert len(plans) == 1
    assert "INDEX ix_attempts_request_id" in plans[0]


async def plans_of(store: Store, run: Callable[[], Awaitable[object]], start: str) -> list[str]:
    """SQLite's plan of each statement of `run` that starts so."""
    statements: list[str] = []

    def note(_: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    engine = store.engine.sync_engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        await run()
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    async with store.read() as connection:
        return [
            str((await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {each}", values)).all())
            for each in statements
            if each.startswith(start)
            for values in [("x",) * each.count("?")]
        ]


async def test_spend_says_what_the_ledger_report_says(store: Store) -> None:
    asked = asked_of("", "", now=UNTIL, tenant_id="", days_max=92)
    async with store.read() as connection:
        for by in ("model", "key", "endpoint", "day"):
            found = await spend(connection, asked, by=by)
            reported = await report(store, by=by)
            theirs = {row[by]: (row["cost_usd"], row["attempts"]) for row in reported}
            assert {row.group: (row.cost, row.num_attempts) for row in found.rows} == theirs
        parts = await spans(connection, asked)
        total = (await spend(connection, asked, by="lane")).total
        assert sum(part.cost_nanos for part in parts) == round(float(total.cost) * 1e9)
        rows = [row async for some in export_rows(connection, asked) for row in some]
        assert sum(int(row["num_attempts"]) for row in rows) == total.num_attempts


async def test_a_tenant_sees_its_own_spend_only(store: Store) -> None:
    async with store.read() as connection:
        sums = 0
        for tenant in range(5):
            asked = asked_of("", "", now=UNTIL, tenant_id=f"tenant{tenant}", days_max=92)
            found = await spend(connection, asked, by="key")
            assert {int(row.group[3:]) % 5 for row in found.rows} == {tenant}
            sums += found.total.num_attempts
        whole = asked_of("", "", now=UNTIL, tenant_id="", days_max=92)
        assert sums == (await spend(connection, whole, by="key")).total.num_attempts
    assert set(COLUMNS) == {"day", "key", "team", "model", "endpoint", "lane"}
