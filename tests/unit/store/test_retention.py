"""Which rows outlive their age: none but those that are too old, and never the bill."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger.report import report
from gateway.ledger.verify import verify
from gateway.retention import AGES, FOREVER, checked_days, parse_retention
from gateway.store import retention
from gateway.store.audit import AuditEvent, append_events, list_all_events
from gateway.store.engine import Store
from gateway.store.ledger_tables import attempts
from gateway.store.rollup_tables import request_rollups
from gateway.store.rollups import request_sums
from gateway.wire.usage import Usage
from tests.support.ledgers import CENT, Bench, cost_of, die, request_of
from tests.support.reconciling import ledger_bench

pytestmark = pytest.mark.anyio
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
DAY_S = 86_400.0
NOW = 1_000 * DAY_S


def kept(name: str, days: int) -> retention.Kept:
    return retention.kept_of({}, {name: days})[name]


async def purged(store: Store, name: str, days: int, *, rows: int = 100) -> int:
    async with store.begin() as connection:
        return await retention.purge_aged(connection, kept(name, days), now=NOW, rows=rows)


def test_what_is_said_last_counts() -> None:
    found = retention.kept_of({"requests": 14, "hours": 30}, {"requests": 21})

    said = {name: (each.days, each.said_by) for name, each in found.items()}
    assert said["requests"] == (21, "dashboard")
    assert found["requests"].default_days == 14
    assert said["hours"] == (30, "variable")
    assert said["audit"] == (FOREVER, "default")
    assert list(found) == list(AGES)


@pytest.mark.parametrize("name", AGES)
def test_every_age_has_a_least_and_a_most(name: str) -> None:
    age = AGES[name]
    assert checked_days(name, age.least) == age.least
    assert checked_days(name, age.most) == age.most
    for days in (age.least - 1, age.most + 1, -1):
        if days != FOREVER or not age.may_stay:
            with pytest.raises(ValueError, match=f"{name} can be kept {age.least} to {age.most}"):
                checked_days(name, days)


def test_the_variable_takes_days_with_and_without_their_unit() -> None:
    assert parse_retention(" requests=3d , hours = 30,attempts=forever,") == {
        "requests": 3,
        "hours": 30,
        "attempts": FOREVER,
    }


async def test_the_choice_is_kept_and_taken_back(store: Store) -> None:
    async with store.begin() as connection:
        await retention.choose_days(connection, {"requests": 30, "audit": FOREVER})
        chosen = await retention.chosen_days(connection)
        with pytest.raises(ValueError, match="1 to 3650"):
            await retention.choose_days(connection, {"requests": 4_000})
        await retention.choose_days(connection, {})
        after = await retention.chosen_days(connection)

    assert chosen == {"requests": 30, "audit": FOREVER}
    assert after == {}


async def test_old_events_go_and_for_ever_keeps_them(store: Store) -> None:
    async with store.begin() as connection:
        await append_events(
            connection,
            [
                AuditEvent(tenant_id="", at=NOW - age * DAY_S, actor="a", action="x", subject="s")
                for age in (50, 40, 31, 29, 0)
            ],
        )
    stayed = await purged(store, "audit", FOREVER)
    gone = [await purged(store, "audit", 30, rows=2) for _ in range(3)]
    async with store.read() as connection:
        left = [event.at for event in await list_all_events(connection)]

    assert (stayed, gone) == (0, [2, 1, 0])
    assert left == [NOW, NOW - 29 * DAY_S]


async def test_figures_go_by_their_own_age_and_days_stay(store: Store) -> None:
    sums = request_sums()
    for age in (200, 50, 3, 0):
        sums.add(NOW - age * DAY_S, ("t", "e", "m", "interactive"), (1,) * 6)
    async with store.begin() as connection:
        await sums.write(connection)
    gone = (await purged(store, "minutes", 2), await purged(store, "hours", 100))
    c = request_rollups.c
    async with store.read() as connection:
        counts = sa.select(c.grain, sa.func.count()).group_by(c.grain)
        left = {row[0]: row[1] for row in await connection.execute(counts)}

    assert gone == (3, 1)
    assert left == {"minute": 1, "hour": 3, "day": 4}


@asynccontextmanager
async def spent(home: Path, database: str) -> AsyncIterator[Bench]:
    """Paid and released attempts over some days."""
    rng = random.Random(8)
    async with ledger_bench(database, home) as at:
        ledger = at.ledger()
        await ledger.start()
        for number in range(40):
            hold = await ledger.reserve(request_of(f"a{number}", CENT))
            at.clock.turn(3 * 3_600.0)
            if number % 2:
                ledger.release(hold, "refused")
            else:
                ledger.settle(hold, cost_of(rng.randrange(CENT), usage=Usage(input=9)))
        await ledger.flush()
        die(ledger)
        yield at


async def rows_of(store: Store) -> list[Any]:
    c = attempts.c
    query = sa.select(c.attempt_id, c.state, c.sent_at).order_by(c.sent_at)
    async with store.read() as connection:
        return list(await connection.execute(query))


@pytest.mark.parametrize("database", DATABASES)
async def test_attempts_without_money_go_and_the_books_stay_right(
    tmp_path: Path, database: str
) -> None:
    async with spent(tmp_path, database) as at:
        before = await rows_of(at.store)
        money = [row["cost_usd"] for row in await report(at.store, by="day")]
        released = [row for row in before if row.state == "released"]
        limit = released[-1].sent_at
        gone = []
        for _ in range(3):
            async with at.store.begin() as connection:
                gone.append(
                    await retention.purge_free_attempts(connection, older_than=limit, rows=15)
                )
        after = await rows_of(at.store)
        problems = await verify(at.store, None)
        then = [row["cost_usd"] for row in await report(at.store, by="day")]
        # What was paid is still missed.
        async with at.store.begin() as connection:
            paid = next(row for row in after if row.state == "settled")
            await connection.execute(
                sa.update(attempts)
                .where(attempts.c.attempt_id == paid.attempt_id)
                .values(sent_at=paid.sent_at + 400 * DAY_S)
            )
        missed = await verify(at.store, None)

    # All but the one of the last instant.
    assert gone == [15, len(released) - 1 - 15, 0]
    assert {row.attempt_id for row in before} - {row.attempt_id for row in after} == {
        row.attempt_id for row in released[:-1]
    }
    assert problems == []
    assert then == money
    assert any("roll-up of" in each for each in missed)
