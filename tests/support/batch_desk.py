"""The dashboard before a batch lane in this process, and batches as the worker leaves them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import sqlalchemy as sa
from litestar import Litestar

from gateway.api.app import build_litestar
from gateway.dashboard.accounts import create_admin
from gateway.dashboard.app import dashboard_routes
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from gateway.store.audit import list_all_events
from gateway.store.batch_tables import native_batches
from gateway.store.batch_work import LineCost, LineResult, keep_costs, keep_results
from gateway.store.batches import BatchRow, NewLine, insert_batch, insert_lines
from gateway.store.native_batches import NativeRow
from tests.support.batch_world import chat_line, joined_lines
from tests.support.dashboard_world import ORIGIN, PASSWORD, Browser, cheap_passwords
from tests.support.lane_world import LaneWorld, lane_world

XSS = "<script>alert('x')</script>"
BRISK: dict[str, Any] = {
    "ttft_base_s": 0.01, "ttft_sigma": 0.0, "rate_sigma": 0.0, "event_sigma": 0.0,
    "tokens_per_s": 4_000.0, "answer_tokens_median": 8,
    "price": SimulatedPrice(input=1_000_000, output=2_000_000),
}  # fmt: skip
PROFILES = (
    ProviderProfile(name="at-once", model="m", **BRISK),
    ProviderProfile(
        name="has-batch", model="n", batch=BatchProfile(turnaround_median_s=0.5), **BRISK
    ),
)
MODELS = {"chat": ("at-once",), "cheap": ("has-batch",)}


@dataclass
class World:
    lane: LaneWorld
    app: Litestar

    async def logged_in(self, role: str) -> Browser:
        transport = httpx.ASGITransport(self.app, client=("127.0.0.1", 4711))
        browser = Browser(httpx.AsyncClient(transport=transport, base_url=ORIGIN))
        assert (await browser.log_in(role)).status_code == 303
        return browser

    @property
    def key_id(self) -> str:
        return self.lane.caller.key_id

    async def events(self, batch_id: str) -> list[tuple[str, str]]:
        async with self.lane.store.read() as connection:
            found = await list_all_events(connection, subject=batch_id)
        return [(each.action, each.actor) for each in reversed(found)]


@asynccontextmanager
async def world(home: Path) -> AsyncIterator[World]:
    with cheap_passwords():
        async with lane_world(home, PROFILES, MODELS) as lane:
            for role in ("viewer", "operator"):
                await create_admin(
                    lane.store, role, role, now=time.time(), actor="test", password=PASSWORD
                )
            routes = dashboard_routes(lane.gateway, lane.lane)
            yield World(lane, build_litestar(lane.gateway, None, routes))


def questions(num: int, model: str = "chat", start: int = 0) -> bytes:
    return joined_lines([chat_line(f"q-{i}", model, f"{i}?") for i in range(start, start + num)])


async def upload(browser: Browser, key: str, body: bytes, name: str = "in.jsonl") -> httpx.Response:
    headers = {"origin": ORIGIN, "x-csrf-token": browser.csrf, "content-type": "application/jsonl"}
    return await browser.http.post(
        "/admin/api/batches/files",
        params={"key": key, "filename": name}, content=body, headers=headers,
    )  # fmt: skip


async def filled(world: World, batch_id: str, states: Sequence[str], **fields: Any) -> None:
    """A batch as the worker leaves it: a line in each of these states, hostile words everywhere."""
    now = world.lane.gateway.wall_clock()
    caller = world.lane.caller
    row = BatchRow(
        **{
            "id": batch_id, "tenant_id": caller.tenant_id, "team_id": caller.team_id,
            "key_id": caller.key_id, "dialect": "openai", "surface": "chat",
            "state": "in_progress", "input_file_id": "file-x", "completion_window": "1h",
            "deadline_at": now + 3_600.0, "created_at": now, "in_progress_at": now,
            "num_lines": len(states), **fields,
        }
    )  # fmt: skip
    lines = [
        NewLine(
            line_no=no, custom_id=f"{XSS}{no}", offset_bytes=0, num_bytes=1, model=XSS,
            lane=f"{XSS}#native" if no % 2 else "at-once/m#standard", prompt_tokens=9,
            output_tokens=9,
        )
        for no in range(1, len(states) + 1)
    ]  # fmt: skip
    ends = [
        LineResult(
            batch_id=batch_id, line_no=no, state=state, status_code=200 if state == "succeeded"
            else 400, body=msgspec.json.encode({"error": {"message": XSS}}),
            request_id=f"req_{batch_id}_{no}", endpoint_id=XSS, ended_at=now,
        )
        for no, state in enumerate(states, 1) if state in ("succeeded", "errored")
    ]  # fmt: skip
    costs = [
        LineCost(
            batch_id=batch_id, line_no=each.line_no, attempt_id="a", cost_nanos=1_000_000,
            billed_nanos=1_000_000, list_nanos=2_000_000, is_estimated=False,
        )
        for each in ends if each.state == "succeeded"
    ]  # fmt: skip
    native = NativeRow(
        id=f"nb_{batch_id}", batch_id=batch_id, endpoint_id=XSS, state="running",
        provider_batch_id=XSS, num_lines=3, error=XSS, submitted_at=now,
    )  # fmt: skip
    async with world.lane.store.begin() as connection:
        await insert_batch(connection, row)
        if lines:
            await insert_lines(connection, batch_id, lines)
        if ends:
            await keep_results(connection, ends, out_of=("open",))
        if costs:
            await keep_costs(connection, costs)
        await connection.execute(sa.insert(native_batches).values(msgspec.structs.asdict(native)))
