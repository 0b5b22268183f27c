"""The status page and its data, also while the database is away."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import httpx
import pytest
import structlog.testing

from gateway.api.app import build_litestar
from gateway.api.status import SpendCache, status_summary
from tests.support.edge_world import edge
from tests.support.relaying import COMPLETION, answers, chat

pytestmark = pytest.mark.anyio


def rename(home: Path, old: str, new: str) -> None:
    with contextlib.closing(sqlite3.connect(home / "looprouter.db", timeout=20)) as connection:
        connection.execute(f"ALTER TABLE {old} RENAME TO {new}")


async def test_page_shows_what_memory_knows_while_the_database_is_away(tmp_path: Path) -> None:
    async with edge(tmp_path, answers(COMPLETION)) as world:
        await world.ask("/v1/chat/completions", chat(stream=False))
        await world.gateway.ledger.flush()
        spend = SpendCache()
        await asyncio.to_thread(rename, tmp_path, "attempts", "away")
        transport = httpx.ASGITransport(build_litestar(world.gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            page = await client.get("/")
        before = await status_summary(world.gateway, spend, "1")
        await asyncio.to_thread(rename, tmp_path, "away", "attempts")
        spend = SpendCache()
        after = await status_summary(world.gateway, spend, "1")

    assert page.status_code == 200
    assert "spend is not up to date" in page.text
    assert (before.spend_usd, before.requests_total) == ("?", 1)
    assert "does not answer" in before.problem
    assert (after.spend_usd, after.problem) == ("0.000015", "")


async def test_unexpected_error_outside_the_api_is_logged_and_not_told(tmp_path: Path) -> None:
    async with edge(tmp_path, answers(COMPLETION)) as world:

        def broken() -> str:
            raise RuntimeError("the secret cause")

        world.gateway.policy_error = broken
        transport = httpx.ASGITransport(build_litestar(world.gateway))
        with structlog.testing.capture_logs() as logged:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as ask:
                answer = await ask.get("/status.json")

    assert answer.status_code == 500
    assert "its log has the cause" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert [entry["path"] for entry in logged if entry["event"] == "unexpected error"] == [
        "/status.json"
    ]
