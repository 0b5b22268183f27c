"""The page Batch and its API: a batch from upload to end, and what each role may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.dashboard import batch_page, batch_queries, batch_watch, batch_work
from gateway.dashboard.app import desk_of
from gateway.dashboard.batch_page import batch_events, opened_html, rows_html
from gateway.dashboard.batch_queries import Filters
from gateway.dashboard.batch_watch import BatchDesk
from gateway.dashboard.look import Look
from tests.support.batch_desk import XSS, World, filled, questions, upload, world
from tests.support.batch_world import chat_line
from tests.support.dashboard_world import ORIGIN, Browser

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LOOK = Look(language="en", theme="auto", here="/batch", csrf="")


async def test_a_batch_is_planned_submitted_followed_and_fetched(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        browser = await here.logged_in("operator")
        taken = await upload(browser, here.key_id, questions(12), name=f"{XSS}.jsonl")
        assert taken.status_code == 201, taken.text
        file = taken.json()
        assert (file["num_lines"], file["filename"]) == (12, f"{XSS}.jsonl")

        page = await browser.get(
            f"/admin/batch/new?key={here.key_id}&file={file['id']}&window=6h&max_cost=1"
        )
        assert page.status_code == 200
        assert "at-once/m#standard" in page.text
        assert "<script>alert" not in page.text
        wanted = {"key": here.key_id, "file": file["id"], "completion_window": "6h"}
        planned = (await browser.send("POST", "/admin/api/batches/plan", wanted)).json()
        assert (planned["is_feasible"], planned["plan"]["lanes"][0]["lines"]) == (True, 12)
        assert planned["plan"]["cost_usd"] in page.text or planned["plan"]["saving"] == 0.0
        assert (await browser.get("/admin/api/batches")).json()["batches"] == []

        sent = await browser.post(
            "/admin/batch/new",
            {"key": here.key_id, "file": file["id"], "window": "6h", "max_cost": "1"},
        )
        assert sent.status_code == 303, sent.text
        batch_id = sent.headers["location"].rpartition("/")[2]
        (row,) = await here.lane.rows("SELECT * FROM batches")
        (kept,) = await here.lane.rows("SELECT * FROM files")
        assert (row["key_id"], row["max_cost_nanos"]) == (here.key_id, 1_000_000_000)
        assert kept["expires_at"] - kept["created_at"] == 30 * 86_400.0

        async with here.lane.working():
            await here.lane.ended(batch_id)
        told = (await browser.get(f"/admin/api/batches/{batch_id}")).json()
        assert told["batch"]["state"] == "completed"
        assert told["batch"]["progress"]["succeeded"] == 12
        assert told["batch"]["is_in_time"] is True
        assert [each["lane"] for each in told["batch"]["lanes"]] == ["at-once/m#standard"]
        spent = sum(
            each["cost_nanos"] for each in await here.lane.rows("SELECT * FROM batch_lines")
        )
        assert float(told["batch"]["progress"]["cost_usd"]) == pytest.approx(spent / 1e9)
        assert {each["kind"] for each in told["files"]} == {"input", "output"}
        opened = await browser.get(f"/admin/batch/{batch_id}")
        assert "&lt;script&gt;alert" in opened.text
        assert "<script>alert" not in opened.text

        answers = await browser.get(f"/admin/batch/{batch_id}/files/output")
        assert answers.headers["content-disposition"].startswith("attachment")
        assert len(answers.content.splitlines()) == 12
        assert await here.events(batch_id) == [
            ("batch.create", "admin:operator"), ("batch.download", "admin:operator"),
        ]  # fmt: skip
        assert (await browser.get(f"/admin/batch/{batch_id}/files/error")).status_code == 404
        assert (await browser.get(f"/admin/batch/{batch_id}/files/input")).status_code == 404


async def test_what_cannot_be_had_is_said_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as here:
        browser = await here.logged_in("operator")
        wrong = questions(2) + b'{"custom_id": "q-0"}\n' + questions(1, start=9)
        refused = await upload(browser, here.key_id, wrong)
        assert refused.status_code == 400
        assert "line 3" in refused.json()["error"]["message"]
        assert await here.lane.rows("SELECT * FROM files") == []

        file = (await upload(browser, here.key_id, questions(100))).json()
        fields = {"key": here.key_id, "file": file["id"], "window": "24h", "max_cost": "0.000001"}
        preview = await browser.http.get("/admin/batch/new", params=fields)
        assert "more than max_cost $0.000001" in preview.text
        assert 'id="submit-batch" disabled' in preview.text
        sent = await browser.post("/admin/batch/new", fields)
        assert sent.status_code == 400
        assert "more than max_cost $0.000001" in sent.text
        for field, value, said in (
            ("window", "5m", "from 10m to 7d"), ("max_cost", "much", "give dollars"),
            ("key", "lrk_none", "does not work"), ("file", "file-none", "there is no file"),
        ):  # fmt: skip
            answer = await browser.http.get("/admin/batch/new", params={**fields, field: value})
            assert (answer.status_code in (400, 404), said in answer.text) == (True, True), field
        assert await here.lane.rows("SELECT * FROM batches") == []

        gone = await browser.post("/admin/batch/discard", fields)
        assert gone.status_code == 303
        assert [each for each in (tmp_path / "files").rglob("*") if each.is_file()] == []
        await a_drip_is_cut(here, monkeypatch)


async def test_a_plan_beyond_the_keys_budget_is_warned_of_before_it_is_submitted(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        browser = await here.logged_in("operator")
        budgets = [{"limit_usd": "0.000001"}]
        made = await browser.send("POST", "/admin/api/keys", {"name": "k", "budgets": budgets})
        key_id = made.json()["id"]
        file = (await upload(browser, key_id, questions(12))).json()
        wanted = {"key": key_id, "file": file["id"], "completion_window": "6h"}
        planned = (await browser.send("POST", "/admin/api/batches/plan", wanted)).json()
        page = await browser.get(f"/admin/batch/new?key={key_id}&file={file['id']}&window=6h")
        other = {**wanted, "key": here.key_id}
        carried = (await browser.send("POST", "/admin/api/batches/plan", other)).json()

    said = "total budget has $0.000001 left of $0.000001, and this plan costs about"
    assert (planned["is_feasible"], planned["refusal"]) == (True, None)
    assert said in planned["warning"]
    assert said in page.text
    assert 'id="submit-batch">' in page.text
    assert carried["warning"] is None


async def test_a_batch_is_cancelled_by_an_operator_and_in_the_audit_log(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        batch_id = await here.lane.make([chat_line(f"c-{i}", "cheap", "x") for i in range(5)])
        viewer, operator = await here.logged_in("viewer"), await here.logged_in("operator")
        page = await operator.get(f"/admin/batch/{batch_id}")
        assert f"/admin/batch/{batch_id}/cancel" in page.text
        assert "/cancel" not in (await viewer.get(f"/admin/batch/{batch_id}")).text

        assert (await operator.post(f"/admin/batch/{batch_id}/cancel")).status_code == 303
        async with here.lane.working():
            await here.lane.ended(batch_id)
        told = (await viewer.get(f"/admin/api/batches/{batch_id}")).json()
        assert (told["batch"]["state"], told["batch"]["progress"]["cancelled"]) == ("cancelled", 5)
        (kind,) = told["errors"]
        assert (kind["state"], kind["num_lines"]) == ("cancelled", 5)
        assert [each["line_no"] for each in kind["lines"]] == [1, 2, 3, 4, 5]
        assert ("batch.cancel", "admin:operator") in await here.events(batch_id)
        again = await operator.send("POST", f"/admin/api/batches/{batch_id}/cancel")
        assert again.status_code == 409


async def viewer_changes_nothing(here: World) -> None:
    await filled(here, "batch_a", ["succeeded", "errored", "open"], error_file_id="file-e")
    browser = await here.logged_in("viewer")
    told = (await browser.get("/admin/api/batches/batch_a")).json()
    assert told["errors"][0]["message"] is None
    assert (await browser.get("/admin/batch/batch_a")).status_code == 200
    assert "/admin/batch/new" not in (await browser.get("/admin/batch")).text
    for path in ("/admin/batch/new", "/admin/batch/batch_a/files/error",
                 "/admin/api/batches/batch_a/files/error"):  # fmt: skip
        assert (await browser.get(path)).status_code == 403, path
    for path in ("/admin/batch/new", "/admin/batch/discard", "/admin/batch/batch_a/cancel"):
        assert (await browser.post(path)).status_code == 403, path
    wanted = {"key": here.key_id, "file": "file-x"}
    for path in ("/admin/api/batches", "/admin/api/batches/plan",
                 "/admin/api/batches/batch_a/cancel"):  # fmt: skip
        assert (await browser.send("POST", path, wanted)).status_code == 403, path
    assert (await upload(browser, here.key_id, questions(1))).status_code == 403
    assert await here.lane.rows("SELECT * FROM files") == []


async def hostile_names_are_text(here: World) -> None:
    problem = msgspec.json.encode([{"code": XSS, "message": XSS}]).decode()
    metadata = msgspec.json.encode({XSS: XSS}).decode()
    states = ["succeeded", "errored", "errored", "open"]
    await filled(here, "batch_x", states, errors=problem, metadata=metadata)
    browser = await here.logged_in("operator")
    for path in ("/admin/batch", "/admin/batch/batch_x"):
        shown = (await browser.get(path)).text
        assert "<script>alert" not in shown
        assert "&lt;script&gt;alert" in shown
    its = BatchDesk(desk_of(here.lane.gateway, here.lane.lane))
    found = await its.opened(await its.find("batch_x"), may_read=True)
    assert found.errors[0].message == XSS
    parts = opened_html(found, LOOK) | rows_html([found.batch], LOOK)
    assert len(parts) == 7
    assert not [name for name, html in parts.items() if "<script>alert" in html]


async def figures_are_those_of_the_lines(here: World) -> None:
    now = here.lane.gateway.wall_clock()
    # Four lines were planned at $0.001 each; two of them have ended at $0.001.
    plan = {
        "lanes": [{"lane": "at-once/m#standard", "kind": "sync", "lines": 4,
                   "cost_usd": "0.004", "start_at": now, "finish_at": now + 60.0}],
        "cost_usd": "0.004", "finish_at": now + 60.0, "late_lines": 0,
    }  # fmt: skip
    text = msgspec.json.encode(plan).decode()
    states = ["succeeded", "succeeded", "open", "open"]
    await filled(here, "batch_r", states, plan=text, planned_at=now)
    late = msgspec.json.encode({**plan, "late_lines": 1}).decode()
    await filled(here, "batch_l", states, plan=late, planned_at=now)
    await filled(here, "batch_n", states)
    browser = await here.logged_in("viewer")
    told = {
        each["id"]: each for each in (await browser.get("/admin/api/batches")).json()["batches"]
    }
    running = told["batch_r"]
    assert running["predicted_cost_usd"] == "0.004"
    assert running["progress"]["saving"] == 0.5
    assert running["progress"]["saved_usd"] == "0.002"
    assert (running["progress"]["succeeded"], running["progress"]["waiting"]) == (2, 2)
    assert {each["lane"]: each["lines"] for each in running["lanes"]} == {
        f"{XSS}#native": 2, "at-once/m#standard": 2,
    }  # fmt: skip
    in_time = {name: told[name]["is_in_time"] for name in ("batch_r", "batch_l", "batch_n")}
    assert in_time == {"batch_r": True, "batch_l": False, "batch_n": None}
    lines = (await browser.get("/admin/api/batches/batch_r/lines?status=open")).json()
    assert [each["line_no"] for each in lines["lines"]] == [3, 4]
    wrong = await browser.get("/admin/api/batches/batch_r/lines?status=odd")
    assert wrong.status_code == 400


async def pages_meet_without_a_gap(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queries, "LOOK_ROWS", 20)
    now = here.lane.gateway.wall_clock()
    for i in range(60):
        state = "failed" if i == 5 else "completed"
        await filled(here, f"batch_{i:02}", [], created_at=now - i, state=state)
    browser = await here.logged_in("viewer")
    assert await ids_of(browser, "") == [f"batch_{i:02}" for i in range(60)]
    assert await ids_of(browser, "status=failed") == ["batch_05"]
    first = (await browser.get("/admin/api/batches?status=failed")).json()
    assert first["looked_back_to"] == pytest.approx(now - 19)
    assert await ids_of(browser, f"status=completed&key={here.key_id}") == [
        f"batch_{i:02}" for i in range(60) if i != 5
    ]
    assert await ids_of(browser, "status=running") == []
    wrong = await browser.get("/admin/batch?status=odd")
    assert (wrong.status_code, "use running, validating" in wrong.text) == (400, True)
    assert (await browser.get("/admin/batch/batch_none")).status_code == 404


async def ids_of(browser: Browser, query: str) -> list[str]:
    ids: list[str] = []
    before: str | None = ""
    while before is not None:
        found = (await browser.get(f"/admin/api/batches?{query}&before={before}")).json()
        ids += [each["id"] for each in found["batches"]]
        before = found["next"]
    return ids


async def lines_are_counted_within_a_limit(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_watch, "LINES_A_LOOK", 5)
    clock = [1_000.0]
    here.lane.gateway.clock = lambda: clock[0]
    asked: list[list[str]] = []
    count = batch_queries.count_lanes

    async def counting(connection: Any, ids: Sequence[str]) -> Any:
        asked.append(sorted(ids))
        return await count(connection, ids)

    monkeypatch.setattr(batch_watch, "count_lanes", counting)
    ago = here.lane.gateway.wall_clock() - 10_000.0  # of no other part of this test
    await filled(here, "b1", ["succeeded"] * 4, state="completed", created_at=ago - 1.0)
    await filled(here, "b2", ["open"] * 4, created_at=ago)
    old = Filters(until=ago + 1.0)
    its = BatchDesk(desk_of(here.lane.gateway, here.lane.lane))
    _, first = await its.list_page(old, None)
    assert [each.progress is None for each in first] == [False, True]
    _, second = await its.list_page(old, None)
    assert [each.progress is None for each in second] == [False, False]
    await its.list_page(old, None)
    assert len(asked) == 2
    clock[0] += batch_watch.FRESH_S
    await its.list_page(old, None)
    assert asked == [["b2"], ["b1"], ["b2"]]


async def a_stream_sends_what_changed(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_page, "TICK_S", 0.001)
    told = [{"a": "1", "b": "1"}, {"a": "1", "b": "1"}, {"a": "2", "b": "1"}, None]

    async def parts() -> dict[str, str] | None:
        return told.pop(0)

    desk = desk_of(here.lane.gateway, here.lane.lane)
    heard = [each async for each in batch_events(desk, parts)]
    assert heard == [
        b"retry: 2000\n\n",
        b'event: board\ndata: {"a":"1","b":"1"}\n\n',
        b": still here\n\n",
        b'event: board\ndata: {"a":"2"}\n\n',
        b"event: reload\ndata: {}\n\n",
    ]


async def natives_have_the_providers_id(here: World) -> None:
    batch_id = await here.lane.make([chat_line(f"c-{i}", "cheap", "x") for i in range(60)])
    browser = await here.logged_in("viewer")
    async with here.lane.working():
        await here.lane.ended(batch_id)
    told = (await browser.get(f"/admin/api/batches/{batch_id}")).json()
    (native,) = told["natives"]
    assert (native["state"], native["num_lines"]) == ("collected", 60)
    assert native["provider_batch_id"] in (await browser.get(f"/admin/batch/{batch_id}")).text
    assert told["batch"]["lanes"][0]["lane"] == "has-batch/n#native"
    assert told["batch"]["progress"]["saving"] == pytest.approx(0.5)


async def a_drip_is_cut(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_work, "BODY_WAIT_S", 0.05)
    browser = await here.logged_in("operator")
    num_files = len(await here.lane.rows("SELECT * FROM files"))

    async def drip() -> AsyncIterator[bytes]:
        yield questions(1)
        await asyncio.sleep(0.3)
        yield questions(1, start=5)

    headers = {"origin": ORIGIN, "x-csrf-token": browser.csrf}
    answer = await browser.http.post(
        "/admin/api/batches/files",
        params={"key": here.key_id}, content=drip(), headers=headers,
    )  # fmt: skip
    assert answer.status_code == 408
    assert len(await here.lane.rows("SELECT * FROM files")) == num_files


async def test_batches_are_shown_as_they_are_and_hostile_words_as_text(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await viewer_changes_nothing(here)
        await hostile_names_are_text(here)
        await figures_are_those_of_the_lines(here)
        await natives_have_the_providers_id(here)


async def test_what_pages_and_streams_ask_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as here:
        await pages_meet_without_a_gap(here, monkeypatch)
        await lines_are_counted_within_a_limit(here, monkeypatch)
        await a_stream_sends_what_changed(here, monkeypatch)
