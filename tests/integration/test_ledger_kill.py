"""
kill -9 at five named points, then a restart: no attempt lost, none settled twice.

LOOPROUTER_LEDGER_KILLS says how often at each point (default 2).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.core import NANOS_PER_DOLLAR
from gateway.ledger.ledger import Ledger
from gateway.ledger.records import LedgerAlert
from gateway.ledger.verify import verify
from gateway.store.engine import Store
from gateway.store.ledger_tables import entries
from tests.support.databases import postgres_store, sqlite_store
from tests.support.ledgers import CENT, add_budget, attempt_rows, windows

KILLS = int(os.environ.get("LOOPROUTER_LEDGER_KILLS", "2"))
SECONDS_PER_KILL_MAX = 20
POINTS = ("before_hold", "after_hold", "after_sent", "mid_stream", "before_settle_commit")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120 + KILLS * SECONDS_PER_KILL_MAX)]


async def kill_and_check(store: Store, directory: Path, point: str) -> None:
    for name, kind in (("t", "tenant"), ("k", "key")):
        await add_budget(store, name, 1_000 * NANOS_PER_DOLLAR, kind=kind, period="month")
    log = directory / "log"
    url = store.url.render_as_string(hide_password=False)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.ledger_victim", url, str(directory), str(log)),
        *(point, str(KILLS), f"seed-{point}"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await child.communicate()
    assert child.returncode == 0, said.decode()[-2_000:]

    alerts: list[LedgerAlert] = []
    ledger = Ledger(store, home=directory, holder_id="victim", alert=alerts.append)
    await ledger.start()
    await check_log(store, log)
    assert {alert.kind for alert in alerts} <= {"overrun"}
    await ledger.close()
    assert await verify(store, directory / "journal") == []
    assert {window.leased for window in (await windows(store)).values()} == {0}


async def check_log(store: Store, log: Path) -> None:
    facts = [line.split() for line in log.read_text().splitlines()]
    rows = await attempt_rows(store)
    sent = {fact[1] for fact in facts if fact[0] == "sent"}
    assert sent <= set(rows), "an attempt that left is not in the books"
    # At each death at most every task had one attempt that was journaled and not yet logged.
    assert len(set(rows) - sent) <= KILLS * 4
    assert {row.state for row in rows.values()} <= {"settled", "released"}
    for fact in facts:
        row = rows[fact[1]]
        if fact[0] == "settled":
            assert (row.state, row.billed_nanos) == ("settled", int(fact[2]))
        elif fact[0] == "released":
            assert (row.state, row.billed_nanos) == ("released", 0)
    ended = {fact[1] for fact in facts if fact[0] != "sent"}
    for name in sent - ended:
        # It may have been settled a moment before its line was written; else by estimate.
        assert rows[name].state == "released" or 0 <= rows[name].billed_nanos <= CENT
    async with store.read() as connection:
        query = sa.select(entries.c.txn_id).where(entries.c.account == "provider:acme")
        credits = Counter((await connection.execute(query)).scalars())
    assert set(credits.values()) <= {1}
    paid = {f"attempt:{name}" for name, row in rows.items() if row.cost_nanos}
    assert set(credits) == paid


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_loses_nothing_and_settles_nothing_twice(tmp_path: Path, point: str) -> None:
    async with sqlite_store(tmp_path) as store:
        await kill_and_check(store, tmp_path, point)


@pytest.mark.postgres
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_loses_nothing_on_postgresql_either(tmp_path: Path, point: str) -> None:
    async with postgres_store() as store:
        await kill_and_check(store, tmp_path, point)
