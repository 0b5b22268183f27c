"""Keys & budgets: what the page and the API do to keys, and that both say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.store.audit import list_events
from tests.support.dashboard_world import DashboardWorld, dashboard
from tests.support.relaying import chat

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


async def _asks(world: DashboardWorld, key: str) -> int:
    reply = await world.edge.ask(
        CHAT, chat(stream=False), headers={"authorization": f"Bearer {key}"}
    )
    return reply.status


async def test_a_key_is_created_shown_once_rotated_and_revoked(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        await browser.get("/admin/keys")
        made = await browser.post(
            "/admin/keys",
            {"name": "Ada's", "models": "chat, other", "limit_usd": "2.5", "period": "month"},
        )
        [key] = re.findall(r'<pre id="new-key">(lr-[^<]+)</pre>', made.text)
        listed = await browser.get("/admin/keys")
        [key_id] = re.findall(r'/admin/keys/(\w+)\?tenant=default">Ada', listed.text)
        first = await _asks(world, key)
        rotated = await browser.post(f"/admin/keys/{key_id}/rotate", {"overlap": "0s"})
        [new_key] = re.findall(r'<pre id="new-key">(lr-[^<]+)</pre>', rotated.text)
        after_rotation = (await _asks(world, key), await _asks(world, new_key))
        revoked = await browser.post(f"/admin/keys/{key_id}/revoke")
        after_revocation = await _asks(world, new_key)
        again = await browser.post(f"/admin/keys/{key_id}/rotate")
        audit = await browser.send("GET", "/admin/api/keys/" + key_id)

    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert key not in listed.text
    assert "Ada&#39;s" in listed.text
    assert "$2.50" in listed.text
    assert first == 200
    assert after_rotation == (401, 200)
    assert revoked.status_code == 303
    assert after_revocation == 401
    assert again.status_code == 400
    assert "was revoked" in again.text
    assert audit.json()["state"] == "revoked"


async def test_what_a_form_gets_wrong_is_said_and_kept(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        await browser.get("/admin/keys")
        wrong = await browser.post("/admin/keys", {"name": "kept", "requests_per_minute": "many"})
        day = await browser.post("/admin/keys", {"name": "kept", "expires": "tomorrow"})
        money = await browser.post("/admin/keys", {"name": "kept", "limit_usd": "-1"})
        far = await browser.post("/admin/keys", {"name": "kept", "expires": "9999-12-31"})
        beyond = await browser.send(
            "POST", "/admin/api/keys", {"name": "kept", "expires_at": 1e300}
        )
        keys = (await browser.send("GET", "/admin/api/keys")).json()["keys"]

    for answer, said in (
        (wrong, "whole number"),
        (day, "no day"),
        (money, "amount of dollars"),
        (far, "beyond the year 9999"),
    ):
        assert answer.status_code == 400
        assert said in answer.text
        assert 'value="kept"' in answer.text
    assert (beyond.status_code, "beyond the year 9999" in beyond.text) == (400, True)
    assert [key["name"] for key in keys] == ["test"]


async def test_scopes_and_limits_change_at_once_and_are_audited(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        made = await browser.send(
            "POST", "/admin/api/keys", {"name": "one", "requests_per_minute": 60}
        )
        key, key_id = made.json()["key"], made.json()["id"]
        open_to_all = await _asks(world, key)
        changed = await browser.send(
            "PATCH", f"/admin/api/keys/{key_id}", {"name": "one", "models": ["elsewhere"]}
        )
        bound = await _asks(world, key)
        async with world.gateway.store.read() as connection:
            tenant = (await browser.send("GET", "/admin/api/keys")).json()["teams"][0]["tenant_id"]
            events = await list_events(connection, tenant)

    assert made.status_code == 201
    assert open_to_all == 200
    assert changed.json()["models"] == ["elsewhere"]
    assert bound == 403
    [change] = [event for event in events if event.action == "key.change"]
    assert change.actor == "admin:operator"
    assert change.detail == {
        "before": {"models": [], "requests_per_minute": 60},
        "after": {"models": ["elsewhere"], "requests_per_minute": None},
    }
    assert key not in repr(events)
    assert key.rpartition("-")[2] not in repr(events)


async def test_budgets_of_team_and_key_are_set_shown_and_ended(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        found = (await browser.send("GET", "/admin/api/keys")).json()
        [team], [key] = found["teams"], found["keys"]
        await browser.get("/admin/keys")
        await browser.post(
            "/admin/budgets",
            {"scope": f"team:{team['id']}", "limit_usd": "10", "period": "day"},
        )
        own = await browser.send(
            "PUT",
            "/admin/api/budgets",
            {"scope_kind": "key", "scope_id": key["id"], "limit_usd": "0.00002"},
        )
        paid = await _asks(world, world.edge.key)
        await world.gateway.ledger.flush()
        after = (await browser.send("GET", "/admin/api/keys")).json()
        shown = await browser.get(f"/admin/keys/{key['id']}")
        [budget] = after["keys"][0]["budgets"]
        ended = await browser.send("DELETE", f"/admin/api/budgets/{budget['id']}")
        gone = await browser.send("DELETE", f"/admin/api/budgets/{budget['id']}")

    assert own.status_code == 204
    assert paid == 429  # its hold does not fit into 0.00002 dollars
    assert [(row["scope_kind"], row["limit_usd"]) for row in after["budgets"]] == [
        ("team", "10.00")
    ]
    assert (budget["limit_usd"], budget["spent_usd"]) == ("0.00002", "0.00")
    assert "$0.00002" in shown.text
    assert (ended.status_code, gone.status_code) == (204, 404)
