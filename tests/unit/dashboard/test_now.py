"""The page Now: its figures are the gateway's own, and its stream sends what changed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.core import PriceRow
from gateway.dashboard.app import desk_of
from gateway.dashboard.board import (
    RECENT_ROWS_MAX,
    arrivals_of,
    board_of,
    price_now,
    requests_per_s,
    speed_of,
)
from gateway.dashboard.look import Look
from gateway.dashboard.now import (
    SPEND_EVERY_S,
    WATCHERS_MAX,
    BoardMaker,
    SpendToday,
    Watchers,
    board_events,
)
from gateway.errors import Overloaded
from gateway.store.requests import RequestRow
from gateway.wire.usage import Usage
from tests.support.dashboard_world import DashboardWorld, add_model, dashboard
from tests.support.relaying import chat

pytestmark = pytest.mark.anyio
LOOK = Look(language="en", theme="auto", here="/now", csrf="")


def row(created_at: float, **more: Any) -> RequestRow:
    return RequestRow(
        id=f"req_{created_at}", tenant_id="t", team_id="t", key_id="k", created_at=created_at,
        surface="chat", model="chat", lane="interactive", stream=True, **more,
    )  # fmt: skip


async def test_board_is_what_the_gateway_knows(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        for _ in range(3):
            await world.edge.ask("/v1/chat/completions", chat(stream=False))
        board = board_of(world.gateway)
        by_api = await (await world.logged_in("viewer")).http.get("/admin/api/board")
        await world.gateway.ledger.flush()
        spend = await SpendToday(desk_of(world.gateway)).answer()

    [endpoint] = board.endpoints
    assert endpoint.id == "a/m"
    assert endpoint.models == ["chat"]
    assert (endpoint.breaker, endpoint.in_flight) == ("closed", 0)
    assert (endpoint.share, endpoint.started) == (1.0, 3)
    assert endpoint.success is not None
    assert 0.0 < endpoint.success.value <= 1.0
    assert endpoint.success.n >= 3
    assert endpoint.ttft_p50_s is None  # no stream came: nothing may be shown
    assert endpoint.price is not None
    assert (endpoint.price.source, endpoint.price.input, endpoint.price.output) == (
        "policy",
        "1",
        "2",
    )
    assert (board.num_requests, board.num_failed) == (3, 0)
    assert board.requests_per_s == pytest.approx(0.3)
    assert by_api.json()["endpoints"][0]["id"] == "a/m"
    assert spend is not None
    assert spend.spend.total.cost == "0.000045"  # three answers of 15 micro-dollars
    assert spend.savings is None  # no baseline was named


async def test_winner_is_the_policys_own_decision_with_its_numbers(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        before = board_of(world.gateway).wins
        await world.edge.ask("/v1/chat/completions", chat(stream=False))
        decided = world.gateway.recorder.newest(1)[0]

    assert [(each.model, each.kind) for each in before] == [("chat", "stream"), ("chat", "batch")]
    stream = before[0]
    assert stream.winner is not None
    assert stream.winner.endpoint == decided.endpoint_id == "a/m"
    assert (stream.next, stream.why_word) == (None, "only_one")
    assert stream.why == decided.candidates[0].reason
    assert (stream.prompt_tokens, stream.is_observed) == (1_000, False)
    assert stream.share_of_draws == 1.0


async def test_page_shows_each_part_and_needs_a_log_in(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        stranger = world.browser()
        refused = [
            (await stranger.http.get(path)).status_code
            for path in ("/admin/now", "/admin/events/now", "/admin/api/board")
        ]
        page = await (await world.logged_in("viewer")).get("/admin/now")

    assert refused == [303, 303, 401]
    assert page.status_code == 200
    for part in (
        'id="figures"',
        'id="endpoint-0"',
        'id="win-0"',
        'data-events="/admin/events/now"',
    ):
        assert part in page.text
    assert len(re.findall(r"<script|<link", page.text)) <= 8


async def _events(world: DashboardWorld, num: int) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []
    maker = BoardMaker(world.gateway, every_s=0.0)
    async for event in board_events(world.gateway, maker, SpendToday(desk_of(world.gateway)), LOOK):
        name = re.match(rb"event: (\w+)\ndata: (.*)\n\n", event)
        if name is not None:
            found.append((name[1].decode(), json.loads(name[2])))
            if len(found) == num:
                break
            await world.edge.ask("/v1/chat/completions", chat(stream=False))
    return found


@pytest.mark.slow
async def test_stream_sends_all_parts_first_and_then_only_what_changed(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        (_, first), (_, second) = await asyncio.wait_for(_events(world, 2), 20)

    assert first.keys() == {"figures", "endpoint-0", "win-0"}
    assert {"figures", "endpoint-0"} <= second.keys()
    assert "1 since start" in second["figures"]


@pytest.mark.slow
async def test_stream_asks_for_a_new_page_after_another_policy_and_ends_with_the_gateway(
    tmp_path: Path,
) -> None:
    async with dashboard(tmp_path) as world:
        gateway = world.gateway
        maker = BoardMaker(gateway, every_s=0.0)
        events = board_events(gateway, maker, SpendToday(desk_of(gateway)), LOOK)
        assert await anext(events) == b"retry: 2000\n\n"
        assert (await anext(events)).startswith(b"event: board\n")
        add_model(gateway, "another")
        assert await anext(events) == b"event: reload\ndata: {}\n\n"
        gateway.is_draining = True
        ended = [
            event
            async for event in board_events(gateway, maker, SpendToday(desk_of(gateway)), LOOK)
        ]

    assert ended == [b"retry: 2000\n\n"]


def test_more_watchers_than_the_limit_are_refused() -> None:
    watchers = Watchers()
    for _ in range(WATCHERS_MAX):
        watchers.enter()

    with pytest.raises(Overloaded, match="close one"):
        watchers.enter()
    watchers.leave()
    watchers.enter()


async def test_names_with_markup_are_shown_as_text(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">'
    async with dashboard(tmp_path) as world:
        add_model(world.gateway, evil)
        browser = await world.logged_in("viewer")
        page = await browser.get("/admin/now")
        [(_, parts)] = await _events(world, 1)

    for html in (page.text, *parts.values()):
        assert "<img" not in html
    assert "&lt;img src=x" in page.text
    assert "&lt;img src=x" in parts["win-1"]


def test_rate_is_over_ten_seconds_or_as_far_as_the_rows_reach() -> None:
    sparse = [row(100.0 - idx) for idx in range(20)]
    dense = [row(100.0 - idx * 0.004) for idx in range(RECENT_ROWS_MAX)]

    assert requests_per_s(sparse, 100.0) == pytest.approx(1.0)
    assert requests_per_s(dense, 100.0) == pytest.approx(250.0, rel=0.01)
    assert requests_per_s([], 100.0) == 0.0
    assert sum(arrivals_of(sparse, 100.0)) * 2.0 == 20
    assert len(arrivals_of([], 5.0)) == 30


def test_speed_needs_enough_tokens_over_enough_time() -> None:
    usage = Usage(input=10, output=50)
    good = row(1.0, usage=usage, ttft_any_ms=200.0, duration_ms=1_200.0)

    assert speed_of(good) == pytest.approx(50.0)
    assert speed_of(row(1.0, usage=usage, ttft_any_ms=200.0, duration_ms=300.0)) is None
    assert speed_of(row(1.0, usage=None, ttft_any_ms=200.0, duration_ms=1_200.0)) is None
    assert speed_of(row(1.0, usage=usage, duration_ms=1_200.0)) is None


def test_price_is_of_the_first_context_step_with_the_batch_tier_beside_it() -> None:
    rows = [
        PriceRow(source="policy", context_tokens_min=200_000, input=9_000_000, output=9_000_000),
        PriceRow(source="policy", input=3_000_000, output=15_000_000, cached_read=300_000),
        PriceRow(source="policy", tier="batch", input=1_500_000, output=7_500_000),
    ]
    shown = price_now(rows)

    assert shown is not None
    assert (shown.input, shown.output, shown.cached) == ("3", "15", "0.3")
    assert (shown.batch_input, shown.batch_output) == ("1.5", "7.5")
    assert price_now([PriceRow(source="unpriced")]) is None
    assert price_now([]) is None


async def test_saved_is_hidden_until_a_baseline_is_named(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        await world.edge.ask("/v1/chat/completions", chat(stream=False))
        await world.gateway.ledger.flush()
        browser = await world.logged_in("operator")
        before = await browser.get("/admin/now")
        named = await browser.send("PUT", "/admin/api/spend/baseline", {"endpoint": "a/m"})
        world.pass_time(SPEND_EVERY_S)
        after = await browser.get("/admin/now")

    assert "Saved today" not in before.text
    assert named.status_code < 300, named.text
    assert "Saved today" in after.text
    assert "0.0 % against a/m" in after.text  # the only endpoint is its own baseline
