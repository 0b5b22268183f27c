"""Spend and Requests as pages and as API: what traffic left is shown, hostile names as text."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
from pathlib import Path

import msgspec
import pytest

from gateway.dashboard.app import desk_of
from gateway.dashboard.look import Look
from gateway.dashboard.requests import TAILS_MAX, Tails, filters_of, tail_events
from gateway.errors import Overloaded
from gateway.ledger.report import report
from gateway.store.requests import RequestRow, insert_requests
from gateway.store.rollups import spend_sums
from gateway.wire.usage import BUCKETS, Usage
from tests.support.dashboard_world import DashboardWorld, dashboard

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CHAT = "/v1/chat/completions"
XSS = "<script>alert('x')</script>"
DAY = 86_400


async def traffic(world: DashboardWorld) -> str:
    """One real request through the gateway; its id."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
    answer = await world.edge.ask("/v1/chat/completions", body)
    assert answer.status == 200
    await world.gateway.recorder.flush()
    await world.gateway.ledger.flush()
    return world.gateway.recorder.newest(1)[0].id


async def log(world: DashboardWorld, num: int, **more: object) -> None:
    rows = [
        RequestRow(
            **{
                "id": f"req_{i:04}", "tenant_id": "t", "team_id": "m", "key_id": "k",
                "created_at": world.now[0] - 600 + i / 10, "surface": "chat", "model": "chat",
                "lane": "interactive", "stream": True, "status": 200, "duration_ms": 1_000.0,
                "ttft_any_ms": 250.0, "usage": Usage(input=10, output=50), "endpoint_id": "a/b",
            } | more
        )  # type: ignore[arg-type]  # built of a dict
        for i in range(num)
    ]  # fmt: skip
    async with world.gateway.store.begin() as connection:
        await insert_requests(connection, rows)


async def spent(world: DashboardWorld, *, model: str, cost: int, day: int = 0) -> None:
    sums = spend_sums()
    tokens = [100 if bucket == "input" else 0 for bucket in BUCKETS]
    names = ("t", "m", "k", "acme/x", model, "interactive", False)
    sums.add(world.now[0] - day * DAY, names, (1, 0, 1, cost, cost, 0, 0, *tokens))
    async with world.gateway.store.begin() as connection:
        await sums.write(connection)


async def test_a_request_that_went_through_is_listed_opened_and_paid(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        request_id = await traffic(world)
        browser = await world.logged_in("viewer")

        listed = await browser.get("/admin/requests")
        assert (listed.status_code, listed.text.count(f'id="{request_id}"')) == (200, 1)
        opened = await browser.get(f"/admin/requests/{request_id}")
        told = (await browser.get(f"/admin/api/requests/{request_id}")).json()

        (bar,) = told["bars"]
        assert bar["attempt"]["state"] == "settled"
        assert bar["attempt"]["id"] in opened.text
        assert 0.0 <= bar["start_s"] <= bar["end_s"]
        (chosen,) = [each for each in told["candidates"] if each["outcome"] == "chosen"]
        assert chosen["terms"]["time_s"] > 0
        assert chosen["endpoint_id"] in opened.text
        amounts = [float(each["amount"]) for each in told["entries"]]
        assert sum(amounts) == pytest.approx(0.0, abs=1e-12)
        for each in told["entries"]:
            assert each["account"] in opened.text

        page = await browser.get("/admin/spend?by=endpoint")
        answer = (await browser.get("/admin/api/spend?by=endpoint")).json()
        (row,) = answer["spend"]["rows"]
        assert row["group"] == chosen["endpoint_id"]
        assert row["group"] in page.text
        (reported,) = await report(world.gateway.store, by="endpoint")
        assert (row["cost"], row["billed"]) == (reported["cost_usd"], reported["billed_usd"])


async def test_what_was_asked_and_its_tags_are_shown_with_the_way_to_its_key(
    tmp_path: Path,
) -> None:
    async with dashboard(tmp_path) as world:
        body = {
            "model": "chat", "max_tokens": 1_234, "temperature": 0.5,
            "messages": [{"role": "user", "content": "my secret wish"}],
        }  # fmt: skip
        tagged = {"x-looprouter-tags": "nightly, team.a"}
        assert (await world.edge.ask(CHAT, body, headers=tagged)).status == 200
        plain = await traffic(world)
        browser = await world.logged_in("viewer")
        lines = (await browser.send("GET", "/admin/api/requests")).json()["lines"]
        by_id = {line["id"]: line for line in lines}
        (asked,) = (each for each in by_id if each != plain)
        listed = await browser.get("/admin/requests")
        opened = await browser.get(f"/admin/requests/{asked}")
        key_id = by_id[asked]["key_id"]
        of_key = await browser.send("GET", f"/admin/api/requests?key={key_id}")

    assert (by_id[asked]["tags"], by_id[plain]["tags"]) == (["nightly", "team.a"], [])
    for page in (listed, opened):
        assert '<span class="tag">nightly</span> <span class="tag">team.a</span>' in page.text
        assert f'href="/admin/requests?key={key_id}"' in page.text
    for said in ("at most 1,234 tokens", "chat · not streamed"):
        assert said in opened.text
    assert "secret wish" not in opened.text
    assert len(of_key.json()["lines"]) == 2


async def test_pages_of_the_log_meet_without_a_gap(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        await log(world, 130)
        browser = await world.logged_in("viewer")
        ids: list[str] = []
        before = ""
        for _ in range(3):
            found = (await browser.get(f"/admin/api/requests?model=chat&before={before}")).json()
            ids += [line["id"] for line in found["lines"]]
            before = found["next"] or ""
        assert ids == [f"req_{i:04}" for i in reversed(range(130))]
        assert before == ""
        first = await browser.get("/admin/requests?model=chat&outcome=ok")
        assert "model=chat&amp;outcome=ok&amp;before=" in first.text
        wrong = await browser.get("/admin/requests?outcome=odd")
        assert (wrong.status_code, "use ok, refused, failed" in wrong.text) == (400, True)
        assert (await browser.get("/admin/requests?before=zz")).status_code == 400
        assert (await browser.get("/admin/requests/req_none")).status_code == 404


async def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        await log(world, 1, model=XSS, error=XSS, endpoint_id=XSS, status=502)
        await spent(world, model=XSS, cost=7)
        browser = await world.logged_in("viewer")
        for path in ("/admin/requests", "/admin/requests/req_0000", "/admin/spend?by=model"):
            shown = (await browser.get(path)).text
            assert "<script>alert" not in shown
            assert "&lt;script&gt;alert" in shown


async def test_the_tail_sends_what_comes_and_nothing_twice(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        desk_filters = await filters_of(desk_of(world.gateway), {"model": "chat"})
        look = Look(language="en", theme="auto", here="/requests", csrf="")
        events = tail_events(world.gateway, desk_filters, look)
        assert await anext(events) == b"retry: 2000\n\n"
        assert await anext(events) == b": still here\n\n"
        await _one(world, "req_a", "chat")
        await _one(world, "req_b", "other")
        told = await asyncio.wait_for(anext(events), 5.0)
        rows = msgspec.json.decode(told.partition(b"data: ")[2])
        assert list(rows) == ["req_a"]
        assert rows["req_a"].strip().startswith('<tr id="req_a">')
        assert await anext(events) == b": still here\n\n"
        world.pass_time(1_000.0)
        assert [each async for each in events] == []


async def _one(world: DashboardWorld, request_id: str, model: str) -> None:
    row = RequestRow(
        id=request_id, tenant_id="t", team_id="m", key_id="k", created_at=world.now[0],
        surface="chat", model=model, lane="interactive", stream=False, status=200,
    )  # fmt: skip
    async with world.gateway.store.begin() as connection:
        await insert_requests(connection, [row])


def test_tails_beyond_the_limit_are_refused() -> None:
    tails = Tails()
    for _ in range(TAILS_MAX):
        tails.enter()
    with pytest.raises(Overloaded, match="close one"):
        tails.enter()


async def test_spend_of_days_and_its_export(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        await spent(world, model="=cmd", cost=1_500_000_000)
        await spent(world, model="x", cost=2_500_000_000, day=3)
        await spent(world, model="x", cost=9, day=40)
        browser = await world.logged_in("viewer")
        answer = (await browser.get("/admin/api/spend?by=model")).json()
        groups = {row["group"]: row["cost"] for row in answer["spend"]["rows"]}
        assert groups == {"=cmd": "1.50", "x": "2.50"}
        assert answer["spend"]["total"]["num_unpriced"] == 2
        assert sum(float(usd) for _, usd in answer["spend"]["days"]) == 4.0
        assert len(answer["spend"]["days"]) == 30
        assert answer["savings"] is None

        exported = await browser.get("/admin/spend.csv?first=&last=")
        rows = list(csv.DictReader(io.StringIO(exported.text)))
        assert [(row["model"], row["cost_usd"]) for row in rows] == [
            ("x", "2.50"),
            ("'=cmd", "1.50"),
        ]
        assert exported.headers["content-disposition"].startswith("attachment")
        long = await browser.get("/admin/api/spend?first=2020-01-01&last=2026-01-01")
        assert (long.status_code, "ask for 1 to 92" in long.text) == (400, True)
        for wrong in ("by=moon", "first=x", "first=2026-01-02&last=2026-01-01"):
            assert (await browser.get(f"/admin/api/spend?{wrong}")).status_code == 400
        other = (await browser.get("/admin/api/spend?tenant=u")).json()
        assert other["spend"]["rows"] == []


@pytest.mark.parametrize("by", ["day", "key", "model", "endpoint", "lane"])
async def test_a_row_of_spend_leads_to_its_requests(tmp_path: Path, by: str) -> None:
    async with dashboard(tmp_path) as world:
        request_id = await traffic(world)
        await log(world, 2, model="other", key_id="k2", lane="batch", created_at=world.now[0] - DAY)
        await spent(world, model="other", cost=10, day=1)
        browser = await world.logged_in("viewer")
        page = await browser.get(f"/admin/spend?by={by}")
        links = [
            html.unescape(link)
            for link in re.findall(r'<th scope="row"><a href="(/admin/requests[^"]+)"', page.text)
        ]
        found = [(await browser.get(link)).text for link in links]

    assert len(links) == (1 if by == "lane" else 2)
    with_it = [f'id="{request_id}"' in text for text in found]
    assert with_it.count(True) == 1
    assert "other" not in found[with_it.index(True)].partition('id="log"')[2]


async def test_savings_are_told_once_a_baseline_is_named(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        await spent(world, model="x", cost=10)
        (endpoint, *_) = sorted(world.gateway.policy().endpoints)
        viewer = await world.logged_in("viewer")
        assert "Saved" not in (await viewer.get("/admin/spend")).text
        refused = await viewer.send("PUT", "/admin/api/spend/baseline", {"endpoint": endpoint})
        assert refused.status_code == 403
        assert (await viewer.post("/admin/spend/baseline", {"endpoint": ""})).status_code == 403

        operator = await world.logged_in("operator")
        wrong = await operator.send("PUT", "/admin/api/spend/baseline", {"endpoint": "no/such"})
        assert wrong.status_code == 400
        await operator.get("/admin/spend")
        named = await operator.post("/admin/spend/baseline", {"endpoint": endpoint})
        assert named.status_code == 303
        savings = (await operator.get("/admin/api/spend")).json()["savings"]
        assert savings["endpoint"] == endpoint
        baseline = float(savings["baseline"]) * 1e9
        assert float(savings["saved"]) * 1e9 == pytest.approx(
            baseline - float(savings["spent"]) * 1e9
        )
        assert "Saved" in (await operator.get("/admin/spend")).text
        taken = await operator.send("PUT", "/admin/api/spend/baseline", {"endpoint": ""})
        assert taken.status_code == 204
        assert (await operator.get("/admin/api/spend")).json()["savings"] is None
