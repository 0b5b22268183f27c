"""Results that wait for a database which is away, and those that it will never take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batch import keeper
from gateway.batch.keeper import Keeper
from gateway.store.batch_work import LineCost, LineResult, claim_lines
from gateway.store.batches import BatchRow, NewLine, insert_batch, insert_lines, line_counts
from gateway.store.engine import Store
from tests.support.databases import sqlite_store

pytestmark = pytest.mark.anyio

NUM_LINES = 3


class Away:
    """A store whose next `num` transactions fail as those of a database that is away."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.num = 0
        self.error: Exception = OperationalError("BEGIN", {}, Exception("away"))

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        if self.num > 0:
            self.num -= 1
            raise self.error
        async with self.store.begin() as connection:
            yield connection


@pytest.fixture
async def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Away]:
    monkeypatch.setattr(keeper, "RETRY_S", 0.01)
    async with sqlite_store(tmp_path) as store:
        row = BatchRow(
            id="b", tenant_id="t", team_id="e", key_id="k", dialect="openai", surface="chat",
            state="in_progress", input_file_id="f", deadline_at=1e12, created_at=0.0,
            num_lines=NUM_LINES,
        )  # fmt: skip
        lines = [
            NewLine(
                line_no=1 + at, custom_id=f"c{at}", offset_bytes=0, num_bytes=1, model="m",
                prompt_tokens=1, output_tokens=1, lane="l",
            )
            for at in range(NUM_LINES)
        ]  # fmt: skip
        async with store.begin() as connection:
            await insert_batch(connection, row)
            await insert_lines(connection, "b", lines)
            await claim_lines(connection, owner="o", lane="l", now=0.0, until=1.0, limit=9)
        yield Away(store)


@asynccontextmanager
async def running(away: Away) -> AsyncIterator[Keeper]:
    made = Keeper(away)  # type: ignore[arg-type]  # begins transactions as a store does
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def result(line_no: int) -> LineResult:
    return LineResult(
        batch_id="b", line_no=line_no, state="succeeded", status_code=200, body=b"{}",
        request_id=f"r{line_no}", endpoint_id="p/m", ended_at=1.0,
    )  # fmt: skip


def cost(line_no: int, nanos: int) -> LineCost:
    return LineCost(
        batch_id="b", line_no=line_no, attempt_id=f"a{line_no}", cost_nanos=nanos,
        billed_nanos=nanos, list_nanos=nanos, is_estimated=False,
    )  # fmt: skip


async def counts(away: Away) -> Any:
    async with away.store.read() as connection:
        return (await line_counts(connection, ["b"]))["b"]


async def test_results_wait_for_a_database_that_is_away_and_then_are_kept(away: Away) -> None:
    away.num = 5
    async with running(away) as made:
        kept = asyncio.gather(*(made.keep(result(1 + at)) for at in range(NUM_LINES)))
        made.note_cost(cost(1, 7))
        await asyncio.wait_for(kept, 10)
    assert away.num == 0
    assert (await counts(away)).by_state == {"succeeded": NUM_LINES}
    assert (await counts(away)).cost_nanos == 7


async def test_after_a_minute_each_is_told_and_those_that_follow_are_kept(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RETRIES_MAX", 3)
    away.num = 3
    async with running(away) as made:
        with pytest.raises(OperationalError):
            await asyncio.wait_for(made.keep(result(1)), 10)
        await asyncio.wait_for(made.keep(result(2)), 10)
    assert (await counts(away)).by_state == {"leased": 2, "succeeded": 1}


async def test_a_fault_of_our_own_does_not_stop_the_keeper(away: Away) -> None:
    away.num, away.error = 1, ValueError("a bug")
    async with running(away) as made:
        with pytest.raises(ValueError, match="a bug"):
            await asyncio.wait_for(made.keep(result(1)), 10)
        await asyncio.wait_for(made.keep(result(1)), 10)
    assert (await counts(away)).count("succeeded") == 1
