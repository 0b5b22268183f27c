"""Probe, pause, drain and resume: what the buttons and the API do to real requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.dashboard.app import desk_of
from gateway.dashboard.board import Estimate, board_of
from gateway.dashboard.catalogue import over
from gateway.dashboard.endpoints_page import endpoint_events
from gateway.dashboard.holding import NOTE_CHARS_MAX
from gateway.dashboard.look import Look
from gateway.dashboard.payer import OWN_TENANT, PROBES
from gateway.dashboard.probing import PROBES_AT_ONCE, Prober
from gateway.errors import PolicyError
from gateway.keys.service import list_all_keys, revoke_key
from gateway.keys.tenants import tenant_id_of
from gateway.pipeline import Gateway
from gateway.store.audit import AuditEvent, list_all_events
from gateway.store.holds import list_holds
from tests.support.dashboard_world import Browser, DashboardWorld, dashboard
from tests.support.deciding import policy_of
from tests.support.relaying import GOOD, answers, chat, streams, token
from tests.support.scripted_server import Connection

pytestmark = pytest.mark.anyio
TWO = (GOOD, GOOD)


async def served_by(world: DashboardWorld) -> str:
    reply = await world.edge.ask("/v1/chat/completions", chat(), {"x-looprouter-explain": "1"})
    assert reply.status == 200, reply.body
    return reply.headers["x-looprouter-endpoint"]


async def act(browser: Browser, verb: str, endpoint: str = "a/m", **more: str) -> Any:
    answer = await browser.send(
        "POST", f"/admin/api/endpoints/{verb}", {"endpoint": endpoint, **more}
    )
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


async def events_of(gateway: Gateway, action: str) -> list[AuditEvent]:
    async with gateway.store.read() as connection:
        return await list_all_events(connection, action=action)


@pytest.mark.parametrize("verb", ["pause", "drain"])
async def test_held_endpoint_gets_no_request_until_it_is_resumed(tmp_path: Path, verb: str) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        browser = await world.logged_in("operator")
        shown = await act(browser, verb, note="new  <b>cable</b> ")
        during = {await served_by(world) for _ in range(8)}
        reply = await world.edge.ask(
            "/v1/chat/completions", chat(), {"x-looprouter-explain": "only"}
        )
        page = await browser.get("/admin/endpoints")
        now = board_of(world.gateway)
        only = await world.edge.ask("/v1/chat/completions", chat(model="a/m"))
        await act(browser, "resume")
        after = await world.edge.ask("/v1/chat/completions", chat(model="a/m"))
        audited = await events_of(world.gateway, "endpoint.")

    assert during == {"b/m"}
    reasons = {each["endpoint"]: each["reason"] for each in reply.json["candidates"]}
    assert reasons["a/m"].startswith("held: an operator ")
    assert (only.status, only.json["error"]["code"]) == (503, "endpoint_held")
    assert after.status == 200
    state = {"pause": "paused", "drain": "drained"}[verb]  # nothing runs there
    assert (shown["standing"]["state"], shown["standing"]["note"]) == (state, "new  <b>cable</b>")
    assert f">{state}</span>" in page.text
    assert "&lt;b&gt;cable&lt;/b&gt;" in page.text
    assert "by admin:operator" in page.text
    assert [each.standing.state for each in now.endpoints] == [state, "routed"]
    assert [(each.action, each.actor, each.subject) for each in audited] == [
        ("endpoint.resume", "admin:operator", "a/m"),
        (f"endpoint.{verb}", "admin:operator", "a/m"),
    ]


async def test_drain_lets_a_running_stream_finish_and_counts_it_down(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await connection.begin_stream()
        await connection.send_chunk(token("first"))
        await goes_on.wait()
        await connection.send_chunk(token(" last"))
        await connection.send_chunk(b"data: [DONE]\n\n")
        await connection.end_stream()

    async with dashboard(tmp_path, scripts=(slow, GOOD)) as world:
        browser = await world.logged_in("operator")
        running = asyncio.create_task(world.edge.ask("/v1/chat/completions", chat(model="a/m")))
        while world.gateway.fleet.metrics("a/m")["in_flight"] == 0:
            await asyncio.sleep(0.005)
        draining = await act(browser, "drain")
        goes_on.set()
        reply = await running
        [_, drained] = [
            each["standing"]
            for each in (await browser.http.get("/admin/api/endpoints")).json()["models"][0][
                "endpoints"
            ][::-1]
        ]

    assert (draining["standing"]["state"], draining["standing"]["in_flight"]) == ("draining", 1)
    assert b" last" in reply.body
    assert reply.body.rstrip().endswith(b"[DONE]")
    assert (drained["state"], drained["in_flight"]) == ("drained", 0)


async def test_hold_is_kept_in_the_store_and_taken_over_at_the_start(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        await act(await world.logged_in("operator"), "pause", "b/m", note="over night")
        async with world.gateway.store.read() as connection:
            rows = await list_holds(connection)
    async with dashboard(tmp_path, scripts=TWO, roles=()) as again:
        held = again.gateway.fleet.metrics("b/m")["held"]
        served = {await served_by(again) for _ in range(5)}

    assert [(row.endpoint_id, row.mode, row.note) for row in rows.values()] == [
        ("b/m", "paused", "over night")
    ]
    assert held == "paused"
    assert served == {"a/m"}


async def test_probe_is_sent_paid_recorded_and_learned_though_the_endpoint_is_held(
    tmp_path: Path,
) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        browser = await world.logged_in("operator")
        await act(browser, "pause")
        result = await act(browser, "probe")
        gateway = world.gateway
        await gateway.ledger.flush()
        async with asyncio.timeout(10):
            while True:
                opened = await browser.get(f"/admin/requests/{result['request_id']}")
                if opened.status_code != 404:  # else it is not written yet
                    break
                await asyncio.sleep(0.05)
        page = await browser.get("/admin/endpoints")
        tenant_id = await tenant_id_of(gateway.store, OWN_TENANT)
        keys = await list_all_keys(gateway.store, tenant_id)
        row = gateway.recorder.recent(result["request_id"])
        live = gateway.fleet.live("a/m")
        samples = gateway.fleet.metrics("a/m")["n"]
        audited = await events_of(gateway, "endpoint.probe")

    [sent] = world.edge.servers[0].requests
    asked = json.loads(sent.body)
    assert (asked["stream"], asked["max_tokens"]) == (True, 8)
    assert (result["ok"], result["status"], result["output_tokens"]) == (True, 200, 2)
    assert result["cost_usd"] == "0.000015"  # 11 tokens at $1, 2 at $2 a million
    assert samples == 1
    assert live is not None
    assert live.was_probed
    assert row is not None
    assert [(key.name, key.id) for key in keys] == [(PROBES, row.key_id)]
    assert row.facts is not None
    assert row.facts.tags == {"dashboard", "probe"}
    assert opened.status_code == 200
    assert "answered: first token" in page.text
    assert [each.detail["ok"] for each in audited] == [True]


async def test_failed_probe_tells_what_the_endpoint_said(tmp_path: Path) -> None:
    said = {"error": {"message": "no such <model> here", "type": "invalid_request_error"}}
    async with dashboard(tmp_path, scripts=(answers(said, 400),)) as world:
        browser = await world.logged_in("operator")
        result = await act(browser, "probe")
        page = await browser.get("/admin/endpoints")

    assert not result["ok"]
    assert "no such <model> here" in result["error"]
    assert "no such &lt;model&gt; here" in page.text
    assert result["cost_usd"] == "0.00"


async def test_probes_are_limited_and_a_revoked_key_stops_them(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        browser = await world.logged_in("operator")
        await act(browser, "probe")
        # The very object that pages and API share.
        tenant_id = await tenant_id_of(world.gateway.store, OWN_TENANT)
        [key] = await list_all_keys(world.gateway.store, tenant_id)
        await revoke_key(world.gateway.store, tenant_id, key.id, now=world.now[0])
        world.gateway.authenticator.invalidate()
        refused = await browser.send("POST", "/admin/api/endpoints/probe", {"endpoint": "a/m"})
        prober = Prober(desk_of(world.gateway))
        prober.running.add("a/m")
        with pytest.raises(Exception, match="a probe of a/m is under way"):
            await prober.probe("a/m", actor="test")
        prober.running = {f"x{idx}" for idx in range(PROBES_AT_ONCE)}
        with pytest.raises(Exception, match=f"{PROBES_AT_ONCE} probes are under way"):
            await prober.probe("a/m", actor="test")

    assert refused.status_code == 400
    assert "was revoked" in refused.json()["error"]["message"]


async def test_viewers_and_strangers_change_nothing(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        viewer, operator = await world.logged_in("viewer"), await world.logged_in("operator")
        body = {"endpoint": "a/m"}
        verbs = ("probe", "pause", "drain", "resume")
        by_viewer = [
            (await viewer.send("POST", f"/admin/api/endpoints/{verb}", body)).status_code
            for verb in verbs
        ]
        form = await viewer.post("/admin/endpoints/act", {**body, "verb": "pause"})
        page = await viewer.get("/admin/endpoints")
        operator.csrf = "0" * 64
        forged = await operator.send("POST", "/admin/api/endpoints/pause", body)
        held = world.gateway.holds.rows

    assert by_viewer == [403] * 4
    assert (form.status_code, forged.status_code) == (403, 403)
    assert "controls-" not in page.text
    assert not held


async def test_forms_do_the_same_and_show_what_is_wrong(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        browser = await world.logged_in("operator")
        page = await browser.get("/admin/endpoints")
        done = await browser.post(
            "/admin/endpoints/act", {"endpoint": "a/m", "verb": "pause", "note": "x"}
        )
        held = dict(world.gateway.holds.rows)
        strange = await browser.post("/admin/endpoints/act", {"endpoint": "z/z", "verb": "drain"})
        wrong = await browser.post("/admin/endpoints/act", {"endpoint": "a/m", "verb": "<i>"})
        long = await browser.send(
            "POST",
            "/admin/api/endpoints/pause",
            {"endpoint": "a/m", "note": "x" * (NOTE_CHARS_MAX + 1)},
        )

    assert 'name="verb" value="pause"' in page.text
    assert (done.status_code, list(held)) == (303, ["a/m"])
    assert (strange.status_code, wrong.status_code, long.status_code) == (404, 400, 400)
    assert "the policy has no endpoint &#39;z/z&#39;" in strange.text
    assert "&lt;i&gt;" in wrong.text
    assert "at most 200" in long.json()["error"]["message"]


async def test_stream_sends_the_cells_that_changed(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=TWO) as world:
        browser = await world.logged_in("operator")
        desk = desk_of(world.gateway)
        look = Look(language="en", theme="auto", here="/endpoints", csrf="")
        events = endpoint_events(desk, look)
        assert await anext(events) == b"retry: 2000\n\n"
        first = await anext(events)
        await act(browser, "drain", "b/m")
        second = await anext(events)
        world.gateway.is_draining = True
        rest = [event async for event in events]

    assert json.loads(first.split(b"data: ")[1]).keys() == {"standing-0-0", "standing-0-1"}
    changed = json.loads(second.split(b"data: ")[1])
    assert changed.keys() == {"standing-0-1"}
    assert "drained" in changed["standing-0-1"]
    assert rest == []


async def test_measured_speed_stands_beside_the_listed_one(tmp_path: Path) -> None:
    async with dashboard(tmp_path, scripts=(streams(),)) as world:
        policy = world.gateway.policy()
        policy.endpoints["a/m"] = msgspec.structs.replace(
            policy.endpoints["a/m"], listed_tok_s=80.0
        )
        world.gateway.policy = lambda: policy  # also once the file has been looked at again
        browser = await world.logged_in("viewer")
        page = await browser.get("/admin/endpoints")
        [model] = (await browser.http.get("/admin/api/endpoints")).json()["models"]

    assert model["endpoints"][0]["listed_tokens_per_s"] == 80.0
    assert model["endpoints"][0]["speed_of_listed"] is None  # nothing was measured
    assert "listed 80.0" in page.text


def test_share_of_the_listed_speed_keeps_interval_and_samples() -> None:
    measured = Estimate(value=60.0, low=50.0, high=None, n=12.0)

    assert over(measured, 80.0) == Estimate(value=0.75, low=0.625, high=None, n=12.0)
    assert over(measured, None) is None
    assert over(None, 80.0) is None


def test_listed_speed_is_what_the_policy_states() -> None:
    policy = policy_of("a, listed_tok_s: 80", "b")

    assert policy.endpoints["a/x"].listed_tok_s == 80.0
    assert policy.endpoints["b/x"].listed_tok_s is None
    with pytest.raises(PolicyError, match="listed_tok_s"):
        policy_of("a, listed_tok_s: 0")
