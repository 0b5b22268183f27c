"""Roll-ups of spend say to the nano-dollar and token what the attempts under them say."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.core import Caller
from gateway.ledger.corrections import KnownCost, correct_attempts
from gateway.ledger.records import CRASHED
from gateway.ledger.report import report
from gateway.ledger.verify import verify
from gateway.prices.rows import UNPRICED
from gateway.store.engine import Store
from gateway.store.ledger_tables import attempts
from gateway.store.rollup_tables import GRAINS_S, MONEY, SPEND_SUMS, TOKENS, spend_rollups
from gateway.store.rollups import purge_rollups, spend_sums
from gateway.wire.usage import Usage
from tests.support.ledgers import CENT, Bench, bench, cost_of, die, request_of
from tests.support.reconciling import ledger_bench

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
NUM_ATTEMPTS = 300


async def sums_of(store: Store, grain: str) -> dict[str, int]:
    c = spend_rollups.c
    query = sa.select(*(sa.func.coalesce(sa.func.sum(c[name]), 0) for name in SPEND_SUMS))
    async with store.read() as connection:
        row = (await connection.execute(query.where(c.grain == grain))).one()
    return {name: int(each) for name, each in zip(SPEND_SUMS, row, strict=True)}


async def reported(store: Store) -> dict[str, int]:
    """The same sums by `report`, which reads every attempt and correction."""
    found = dict.fromkeys(SPEND_SUMS, 0)
    for row in await report(store, by="model"):
        found["num_attempts"] += row["attempts"] - row["in_flight"]
        found["num_estimated"] += row["estimated"]
        found["num_unpriced"] += row["unpriced"]
        for name in MONEY:
            dollars = row[name.removesuffix("_nanos") + "_usd"]
            whole, _, rest = dollars.partition(".")
            found[name] += int(whole) * 10**9 + int(rest.ljust(9, "0"))
        for name in TOKENS:
            found[name] += row[name]
    return found


async def check(store: Store) -> dict[str, int]:
    expected = await reported(store)
    for grain in GRAINS_S:
        assert await sums_of(store, grain) == expected, grain
    assert await verify(store, None) == []
    return expected


def _any_end(rng: random.Random) -> Any:
    usage = Usage(input=rng.randrange(900), cached_read=rng.randrange(90), output=rng.randrange(70))
    cost = rng.choice([0, 1, rng.randrange(CENT)])
    kind = rng.choice(["", "", "", "server_error", CRASHED])
    if kind == "server_error":
        return cost_of(cost, usage=usage, failure=kind, billable_to="operator")
    if rng.random() < 0.1:
        return cost_of(0, usage=usage, price=UNPRICED)
    return cost_of(cost, usage=usage, failure=kind, is_estimated=kind == CRASHED)


async def spend(at: Bench, rng: random.Random, num: int, prefix: str) -> None:
    """Attempts of several keys over some days: settled, released, or left open."""
    ledger = at.ledger()
    await ledger.start()
    for number in range(num):
        caller = Caller(tenant_id=rng.choice("tu"), team_id="m", key_id=rng.choice("abc"))
        lane = rng.choice(["batch", "interactive"])
        request = request_of(
            f"{prefix}{number}", CENT // 2, caller=caller, model=rng.choice("xy"), lane=lane
        )
        hold = await ledger.reserve(request)
        at.clock.turn(rng.expovariate(1 / 900.0))
        ending = rng.random()
        if ending < 0.85:
            ledger.settle(hold, _any_end(rng))
        elif ending < 0.95:
            ledger.release(hold, "refused")
        if rng.random() < 0.05:
            await ledger.flush()
    await ledger.flush()
    die(ledger)


@pytest.mark.parametrize("database", DATABASES)
async def test_every_grain_says_what_the_report_says(tmp_path: Path, database: str) -> None:
    rng = random.Random(8)
    async with ledger_bench(database, tmp_path) as at:
        await spend(at, rng, NUM_ATTEMPTS, "a")
        before = await check(at.store)
        assert before["num_attempts"] > 200
        assert 0 < before["num_unpriced"] < before["num_attempts"]

        # Whoever comes after the kill settles what was left open, by estimate.
        after = at.ledger()
        await after.start()
        await after.close()
        settled = await check(at.store)
        assert settled["num_attempts"] == NUM_ATTEMPTS
        assert settled["num_estimated"] > before["num_estimated"]


@pytest.mark.parametrize("database", DATABASES)
async def test_corrections_move_the_roll_ups(tmp_path: Path, database: str) -> None:
    rng = random.Random(9)
    async with ledger_bench(database, tmp_path) as at:
        await spend(at, rng, 60, "a")
        async with at.store.read() as connection:
            query = sa.select(attempts.c.attempt_id).where(attempts.c.state == "settled")
            ids = sorted((await connection.execute(query)).scalars())
        for now in range(4):
            known = [
                KnownCost(
                    attempt_id=name,
                    cost_nanos=rng.choice([0, rng.randrange(2 * CENT)]),
                    usage=rng.choice([None, Usage(input=rng.randrange(500), output=now)]),
                )
                for name in rng.sample(ids, 20)
            ]
            await correct_attempts(at.store, known, kind="reconcile", now=float(now))
            await check(at.store)


@pytest.mark.postgres
async def test_two_processes_that_book_at_once_lose_nothing(tmp_path: Path) -> None:
    async with ledger_bench("postgres", tmp_path) as at:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        ledgers = [at.ledger(name, home=tmp_path / name) for name in ("one", "two")]

        async def book(number: int) -> None:
            for i in range(80):
                hold = await ledgers[number].reserve(request_of(f"{number}-{i}", CENT))
                ledgers[number].settle(hold, cost_of(i))
                await ledgers[number].flush()

        for each in ledgers:
            await each.start()
        await asyncio.gather(book(0), book(1))
        for each in ledgers:
            await each.close()
        assert (await check(at.store))["cost_nanos"] == 2 * sum(range(80))


async def test_a_roll_up_that_was_changed_by_hand_is_found(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        await spend(at, random.Random(1), 5, "a")
        async with at.store.begin() as connection:
            more = spend_rollups.c.cost_nanos + 1
            await connection.execute(sa.update(spend_rollups).values(cost_nanos=more))
        assert any("roll-up of 2023-11" in each for each in await verify(at.store, None))


async def test_old_minutes_and_hours_go_in_bounded_steps_and_days_stay(tmp_path: Path) -> None:
    async with bench(tmp_path) as at:
        sums = spend_sums()
        names = ("t", "m", "k", "e", "x", "interactive", False)
        rows, num_minutes = 300, 420
        for i in range(num_minutes):
            sums.add(60.0 * i, names, (1,) * len(SPEND_SUMS))
        async with at.store.begin() as connection:
            await sums.write(connection)
        days = await sums_of(at.store, "day")
        old = 60.0 * num_minutes
        gone = []
        for grain in ("minute", "minute", "minute", "hour", "hour"):
            async with at.store.begin() as connection:
                gone.append(await purge_rollups(connection, grain, older_than=old, rows=rows))
        assert gone == [rows, num_minutes - rows, 0, num_minutes // 60, 0]
        assert await sums_of(at.store, "day") == days
        assert (await sums_of(at.store, "minute"))["num_attempts"] == 0
