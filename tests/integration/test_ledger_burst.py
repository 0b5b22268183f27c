"""Many requests at once cannot pass a budget: one holder on SQLite, four on PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.errors import BudgetExhausted
from gateway.ledger.ledger import Ledger
from gateway.ledger.options import LedgerOptions
from gateway.ledger.records import Hold
from gateway.ledger.verify import verify
from gateway.store.engine import Store, open_store
from gateway.store.ledger_tables import attempts, entries
from tests.support.databases import postgres_store, sqlite_store
from tests.support.ledgers import (
    CENT,
    DOLLAR,
    add_budget,
    attempt_rows,
    cost_of,
    lease_states,
    only_window,
    request_of,
)

PATIENT = LedgerOptions(sql_wait_s=30.0)  # a slow machine is not what is tested here

pytestmark = pytest.mark.anyio


async def spend(ledger: Ledger, attempt_id: str) -> bool:
    try:
        hold = await ledger.reserve(request_of(attempt_id, CENT, "b"))
    except BudgetExhausted:
        return False
    await asyncio.sleep(random.random() * 0.02)
    ledger.settle(hold, cost_of(CENT))
    return True


async def billed_in_all(store: Store) -> int:
    async with store.read() as connection:
        total = await connection.execute(sa.select(sa.func.sum(attempts.c.billed_nanos)))
        return int(total.scalar_one())


async def test_a_thousand_requests_on_one_dollar_get_a_hundred_cents(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        await add_budget(store, "b", DOLLAR)
        ledger = Ledger(store, home=tmp_path, options=PATIENT)
        await ledger.start()

        served = await asyncio.gather(*(spend(ledger, f"a{i}") for i in range(1_000)))
        await ledger.close()
        assert sum(served) == 100
        assert await billed_in_all(store) == DOLLAR
        assert (await only_window(store, "b")).spent == DOLLAR
        assert await verify(store, tmp_path / "journal") == []


@pytest.mark.postgres
async def test_four_holders_together_stay_within_one_dollar(tmp_path: Path) -> None:
    async with postgres_store() as store, AsyncExitStack() as stack:
        await add_budget(store, "b", DOLLAR)
        ledgers: list[Ledger] = []
        for i in range(4):
            own = await open_store(store.url.render_as_string(hide_password=False))
            stack.push_async_callback(own.close)
            ledgers.append(Ledger(own, home=tmp_path / f"home-{i}", options=PATIENT))
        await asyncio.gather(*(ledger.start() for ledger in ledgers))

        served = await asyncio.gather(
            *(spend(ledgers[i % 4], f"a{i}") for i in range(1_000)),
        )
        assert sum(served) <= 100
        await asyncio.gather(*(ledger.flush() for ledger in ledgers))
        assert await billed_in_all(store) == sum(served) * CENT <= DOLLAR
        window = await only_window(store, "b")
        assert window.spent + window.leased <= DOLLAR
        await asyncio.gather(*(ledger.close() for ledger in ledgers))

        # What idle leases kept from others is there for the next one.
        last = Ledger(store, home=tmp_path / "last", options=PATIENT)
        await last.start()
        more = [await spend(last, f"z{i}") for i in range(101)]
        await last.close()
        assert sum(served) + sum(more) == 100
        assert await billed_in_all(store) == DOLLAR
        assert await verify(store, tmp_path / "last" / "journal") == []


@pytest.mark.postgres
async def test_holders_with_three_budgets_each_do_not_deadlock(tmp_path: Path) -> None:
    async with postgres_store() as store, AsyncExitStack() as stack:
        for name, kind in (("t", "tenant"), ("m", "team"), ("k", "key")):
            await add_budget(store, name, 20 * DOLLAR, kind=kind, period="day")
        ledgers: list[Ledger] = []
        for i in range(3):
            own = await open_store(store.url.render_as_string(hide_password=False))
            stack.push_async_callback(own.close)
            ledgers.append(
                Ledger(
                    own,
                    home=tmp_path / f"home-{i}",
                    options=LedgerOptions(
                        commit_interval_s=0.001, records_per_commit=10, sql_wait_s=30.0
                    ),
                )
            )
        await asyncio.gather(*(ledger.start() for ledger in ledgers))

        async def serve(i: int) -> None:
            names = random.Random(i).sample("tmk", 3)
            hold = await ledgers[i % 3].reserve(request_of(f"a{i}", CENT, *names))
            await asyncio.sleep(0)
            ledgers[i % 3].settle(hold, cost_of(i % 7))

        async with asyncio.timeout(60):
            for start in range(0, 600, 60):
                await asyncio.gather(*(serve(i) for i in range(start, start + 60)))
                await asyncio.gather(*(ledger.tend() for ledger in ledgers))
        await asyncio.gather(*(ledger.close() for ledger in ledgers))
        assert (await only_window(store, "t")).spent == sum(i % 7 for i in range(600))
        assert await verify(store, None) == []


@pytest.mark.parametrize("seed", [1, 2])
async def test_settles_delivered_up_to_five_times_in_any_order_count_once(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with sqlite_store(tmp_path) as store:
        await add_budget(store, "b", 100 * DOLLAR)
        ledger = Ledger(store, home=tmp_path)
        await ledger.start()
        costs = {f"a{i}": rng.randint(0, CENT) for i in range(100)}
        holds: dict[str, Hold] = {}
        for name in costs:
            holds[name] = await ledger.reserve(request_of(name, CENT, "b"))
        deliveries = [name for name in costs for _ in range(rng.randint(1, 5))]
        rng.shuffle(deliveries)

        for name in deliveries:
            assert ledger.settle(holds[name], cost_of(costs[name])).billed_nanos == costs[name]
            if rng.random() < 0.1:
                await ledger.flush()
        await ledger.close()
        rows = await attempt_rows(store)
        assert {name: row.billed_nanos for name, row in rows.items()} == costs
        assert (await only_window(store, "b")).spent == sum(costs.values())
        async with store.read() as connection:
            query = sa.select(sa.func.count()).where(entries.c.account == "provider:acme")
            num_credits = (await connection.execute(query)).scalar_one()
        assert num_credits == sum(cost > 0 for cost in costs.values())
        assert await verify(store, tmp_path / "journal") == []


@pytest.mark.postgres
async def test_a_holder_that_vanishes_is_expired_by_another(tmp_path: Path) -> None:
    async with postgres_store() as store:
        await add_budget(store, "b", DOLLAR)
        options = LedgerOptions(heartbeat_s=0.1, lease_ttl_s=0.5)
        other = await open_store(store.url.render_as_string(hide_password=False))
        vanished = Ledger(other, home=tmp_path / "gone", holder_id="gone", options=options)
        await vanished.start()
        await vanished.reserve(request_of("a1", 60 * CENT, "b"))
        await vanished.flush()
        await other.close()
        vanished._stopping.set()  # no heartbeat any more
        watcher = Ledger(store, home=tmp_path / "here", options=options)
        await watcher.start()

        async with asyncio.timeout(20):
            while await lease_states(store) != ["expired"]:
                await asyncio.sleep(0.05)
        window = await only_window(store, "b")
        assert window.leased == 0
        assert window.unattributed == window.spent - 100_000  # its prompt, by estimate
        assert (await attempt_rows(store))["a1"].is_estimated
        await watcher.close()
        await vanished.close()
        assert await verify(store, tmp_path / "here" / "journal") == []
