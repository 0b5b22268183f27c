"""Migration 0004 sums up what is there already, as if it had been summed from the first day."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger.verify import verify
from gateway.store import migrate
from gateway.store.engine import Store, open_store
from gateway.store.rollup_tables import GRAINS_S, request_rollups, spend_rollups
from tests.support.databases import postgres_schema

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
AT = 1_700_000_059.5


@pytest.fixture(params=DATABASES)
async def old(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[Store]:
    """A database of the revision before."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/m.db"
        await asyncio.to_thread(migrate.upgrade, url, revision="0003")
        store = await open_store(url)
        yield store
        await store.close()
        return
    async with postgres_schema() as url:
        await asyncio.to_thread(migrate.upgrade, url, revision="0003")
        store = await open_store(url)
        yield store
        await store.close()


def _attempt(name: str, cost: int, **more: Any) -> dict[str, Any]:
    return {
        "attempt_id": name, "request_id": f"r-{name}", "tenant_id": "t", "team_id": "m",
        "key_id": "k", "holder_id": "h", "endpoint_id": "acme/x", "provider": "acme",
        "model": "chat", "surface": "chat", "stream": False, "state": "settled",
        "hold_nanos": 1_000, "cost_nanos": cost, "billed_nanos": cost, "waste_nanos": 0,
        "input_tokens": 10, "output_tokens": 5, "price_source": "policy", "price_tier": "standard",
        "failure": "", "is_estimated": False, "is_simulated": False, "sent_at": AT,
    } | more  # fmt: skip


ATTEMPTS = [
    _attempt("a", 100),
    _attempt("b", 0, price_source="unpriced", sent_at=AT + 86_400),
    _attempt("c", 40, billed_nanos=0, waste_nanos=40, failure="server_error"),
    _attempt("d", 7, price_tier="batch", is_estimated=True),
    _attempt("e", 0, state="sent"),
    _attempt("f", 0, state="released", failure="refused", price_source=""),
]
CORRECTIONS = [
    ("1", "a", 10, '{"input": 70, "reasoning": 2}', 1.0),
    ("2", "a", -30, '{"input": 9}', 2.0),
    ("3", "b", 5, "", 1.0),
]
REQUESTS = [("a", 200, "", 100.25), ("b", 429, "rate_limited", None), ("c", 200, "cut", 9.0)]


async def _fill(store: Store) -> None:
    async with store.begin() as connection:
        await _insert(connection, "attempts", ATTEMPTS)
        await _insert(
            connection,
            "corrections",
            [
                {"id": i, "kind": "reconcile", "attempt_id": name, "tenant_id": "t",
                 "provider": "acme", "model": "chat", "day": "2023-11-14", "cost_nanos": nanos,
                 "billed_nanos": nanos, "usage": usage, "created_at": at}
                for i, name, nanos, usage, at in CORRECTIONS
            ],
        )  # fmt: skip
        await _insert(
            connection,
            "requests",
            [
                {"id": f"r-{name}", "tenant_id": "t", "team_id": "m", "key_id": "k",
                 "created_at": AT, "surface": "chat", "model": "chat", "lane": "batch",
                 "status": status, "error": error, "ttft_any_ms": ttft, "duration_ms": 1_000.5}
                for name, status, error, ttft in REQUESTS
            ],
        )  # fmt: skip


async def _insert(connection: Any, table: str, rows: list[dict[str, Any]]) -> None:
    names = ", ".join(rows[0])
    values = ", ".join(f":{name}" for name in rows[0])
    await connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({values})"), rows)


async def test_the_roll_ups_are_filled_from_what_is_there(old: Store) -> None:
    await _fill(old)
    url = old.url.render_as_string(hide_password=False)
    await asyncio.to_thread(migrate.upgrade, url)

    async with old.read() as connection:
        for grain in GRAINS_S:
            query = sa.select(spend_rollups).where(spend_rollups.c.grain == grain)
            rows = (await connection.execute(query)).mappings().all()
            found = {(row["lane"], row["is_wasted"], row["bucket_start"]): row for row in rows}
            size_s = GRAINS_S[grain]
            first = int(AT // size_s) * size_s
            second = int((AT + 86_400) // size_s) * size_s
            assert set(found) == {
                ("batch", False, first), ("batch", True, first), ("batch", False, second),
                ("interactive", True, first),
            }  # fmt: skip
            good, wasted = found["batch", False, first], found["batch", True, first]
            assert (good["num_attempts"], good["num_estimated"], good["cost_nanos"]) == (2, 1, 87)
            # The newest correction of "a" says 9 tokens, "d" had 10.
            assert (good["input_tokens"], good["output_tokens"]) == (19, 5)
            assert (wasted["num_attempts"], wasted["waste_nanos"]) == (1, 40)
            later = found["batch", False, second]
            assert (later["num_unpriced"], later["cost_nanos"]) == (0, 5)
        query = sa.select(request_rollups).where(request_rollups.c.grain == "hour")
        (row,) = (await connection.execute(query)).mappings().all()
    assert (row["num_requests"], row["num_refused"], row["num_failed"]) == (3, 1, 1)
    assert (row["num_ttft"], row["ttft_us"], row["duration_us"]) == (2, 109_250, 3_001_500)
    problems = [each for each in await verify(old, None) if "roll-up" in each]
    assert problems == []
