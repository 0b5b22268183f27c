"""Audit & settings, the first admin, and the admin API's own description."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gateway.app.housekeeping import as_audit
from gateway.dashboard.accounts import create_admin, first_admin
from gateway.dashboard.settings_data import detail_shown
from gateway.errors import InvalidRequest
from gateway.fleet.events import breaker_moved, change_points
from gateway.keys.service import create_team
from gateway.store.audit import AuditEvent, append_events
from tests.support.dashboard_world import PASSWORD, dashboard
from tests.support.databases import sqlite_store

pytestmark = pytest.mark.anyio


class Elements(HTMLParser):
    """Finds what only an attacker would have put there, as a browser would read the page."""

    def __init__(self) -> None:
        super().__init__()
        self.strange: list[object] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag in ("img", "iframe", "object", "style") or (tag == "script" and "src" not in names):
            self.strange.append((tag, attrs))
        self.strange += [(tag, name) for name in names if name.startswith("on") or "<" in name]


XSS = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}"


async def test_owner_makes_admins_on_the_page_and_the_audit_says_so(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        owner = await world.logged_in("owner")
        await owner.get("/admin/settings")
        made = await owner.post("/admin/settings/admins", {"name": "Grace", "role": "operator"})
        [password] = re.findall(r'<pre id="new-password">([^<]+)</pre>', made.text)
        inside = await world.browser().log_in("grace", html.unescape(password))
        await owner.post("/admin/settings/admins/grace", {"role": "viewer"})
        await owner.post("/admin/settings/admins/grace", {"turn": "disable"})
        outside = await world.browser().log_in("grace", html.unescape(password))
        alone = await owner.post("/admin/settings/admins/owner", {"role": "viewer"})
        page = await owner.get("/admin/settings?actor=admin:owner&action=admin.")
        listed = await owner.send("GET", "/admin/api/audit?subject=grace&action=admin.")
        seen = await (await world.logged_in("viewer")).get("/admin/settings")

    assert inside.status_code == 303
    assert outside.status_code == 401
    assert alone.status_code == 400
    assert "only owner" in alone.text
    events = listed.json()["events"]
    assert [event["action"] for event in events] == ["admin.disable", "admin.role", "admin.create"]
    assert events[1]["detail"] == {
        "before": {"role": "operator", "is_disabled": False},
        "after": {"role": "viewer", "is_disabled": False},
    }
    assert "<del>operator</del> → viewer" in page.text
    assert password not in page.text
    assert seen.status_code == 200
    assert "/settings/admins" not in seen.text  # no forms that would be refused


async def test_the_audit_is_paged_by_key(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        async with world.gateway.store.begin() as connection:
            await append_events(
                connection,
                [
                    AuditEvent(tenant_id="t", at=1.0, actor="test", action="x.y", subject=str(n))
                    for n in range(120)
                ],
            )
        browser = await world.logged_in("viewer")
        seen: list[str] = []
        path = "/admin/api/audit?action=x."
        while True:
            found = (await browser.send("GET", path)).json()
            seen += [event["subject"] for event in found["events"]]
            if found["next"] is None:
                break
            path = f"/admin/api/audit?action=x.&before={found['next']}"
        page = await browser.get("/admin/settings?action=x.")

    assert seen == [str(n) for n in reversed(range(120))]
    assert "action=x.&amp;before=" in page.text


async def test_stored_scripts_are_shown_as_text_in_every_field(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        store, now = world.gateway.store, world.now[0]
        browser = await world.logged_in("owner")
        tenant = (await browser.send("GET", "/admin/api/keys")).json()["teams"][0]["tenant_id"]
        team = await create_team(store, tenant, XSS, now=now)
        made = await browser.send(
            "POST",
            "/admin/api/keys",
            {"name": XSS, "team": team.id, "models": [XSS], "budgets": [{"limit_usd": "1"}]},
        )
        async with store.begin() as connection:
            event = AuditEvent(
                tenant_id=XSS,
                at=now,
                actor=XSS,
                action=XSS,
                subject=XSS,
                detail={XSS: XSS, "before": {XSS: [XSS]}, "after": {XSS: {XSS: XSS}}},
            )
            await append_events(connection, [event])
        await browser.get("/admin/keys")
        bodies = [
            (await browser.get("/admin/keys")).text,
            (await browser.get(f"/admin/keys/{made.json()['id']}")).text,
            (await browser.get("/admin/settings")).text,
            (await browser.get("/admin/settings", params={"actor": XSS})).text,
            (await browser.post("/admin/keys", {"name": XSS, "expires": XSS})).text,
            (await browser.post("/admin/settings/admins", {"name": XSS, "role": XSS})).text,
            (await browser.get("/admin/keys", params={"tenant": XSS})).text,
            (await world.browser().log_in(XSS[:64], PASSWORD)).text,
            (await world.browser().get("/admin/login", params={"next": XSS})).text,
        ]

    assert made.status_code == 201
    for body in bodies:
        elements = Elements()
        elements.feed(body)
        assert elements.strange == []
        assert "<script>alert" not in body
        assert "alert(1)" in body  # it is there, as text
        assert "onerror=alert(2)&gt;&#39;{{7*7}}" in body or "{{7*7}}" not in body
        assert "&#39;49" not in body


async def test_links_after_the_log_in_stay_in_the_dashboard(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        locations = []
        for target in ("//evil.example", "https://evil.example/admin/", "/admin/../v1", "/v1",
                       "/admin/\\evil.example", "/admin/keys?tenant=default"):  # fmt: skip
            browser = world.browser()
            await browser.get("/admin/login")
            answer = await browser.post(
                "/admin/login", {"name": "viewer", "password": PASSWORD, "next": target}
            )
            locations.append(answer.headers["location"])

    assert locations == ["/admin/"] * 5 + ["/admin/keys?tenant=default"]


async def test_the_api_describes_itself(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("viewer")
        answer = await browser.send("GET", "/admin/api/openapi.json")
        served = {
            route.path_format
            for route in world.app.routes
            if route.path.startswith("/admin/api/") and not route.path.endswith("openapi.json")
        }

    document = answer.json()
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == served
    create = document["paths"]["/admin/api/keys"]["post"]
    assert create["description"].startswith("Make a key.")
    schema = document["components"]["schemas"]
    assert "limit_usd" in schema["BudgetWanted"]["properties"]
    assert PASSWORD not in answer.text


async def test_the_first_admin_is_made_once(tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        first = await first_admin(store, now=1.0)
        second = await first_admin(store, now=2.0)
        with pytest.raises(InvalidRequest, match="already"):
            await create_admin(store, "ADMIN ", "owner", now=3.0, actor="test")

    assert first is not None
    assert (first.row.name, first.row.role) == ("admin", "owner")
    assert len(first.password) == 20
    assert first.password not in repr(first)
    assert second is None


def test_a_change_is_told_in_the_units_that_people_read() -> None:
    def told(**detail: object) -> list[tuple[str, object, object]]:
        event = AuditEvent(tenant_id="", at=0.0, actor="a", action="b", subject="c", detail=detail)
        return detail_shown(event)

    changed = told(
        before={"role": "viewer", "limit_nanos": 1_500_000_000, "expires_at": None},
        after={"role": "viewer", "limit_nanos": 100, "expires_at": 1_796_059_534.2},
    )
    made = told(after={"budgets": [{"limit_nanos": 5_000_000_000, "period": "month"}], "name": ""})

    assert changed == [
        ("limit", "$1.50", "$0.0000001"),
        ("expires_at", None, "2026-11-30 17:25 UTC"),
    ]
    assert made == [("budgets", None, [{"limit": "$5.00", "period": "month"}])]
    assert told(overlap_s=0.0, revoked_at=1e300, is_new=True) == [
        ("overlap_s", None, 0.0), ("revoked_at", None, 1e300), ("is_new", None, True),
    ]  # fmt: skip


def test_a_change_of_a_word_is_told_and_what_was_empty_is_not() -> None:
    def told(action: str, **detail: object) -> list[tuple[str, object, object]]:
        event = AuditEvent(
            tenant_id="", at=0.0, actor="a", action=action, subject="c", detail=detail
        )
        return detail_shown(event)

    assert told("baseline.change", before="", after="a/x") == [("baseline", None, "a/x")]
    assert told("baseline.change", before="a/x", after="b/y") == [("baseline", "a/x", "b/y")]
    assert told("baseline.change", before="a/x", after="") == [("baseline", "a/x", "–")]
    assert told("policy.file", note="", before={"version": ""}, after={"version": "28"}) == [
        ("version", None, "28")
    ]


def test_of_what_the_fleet_saw_only_the_message_is_told() -> None:
    opened = as_audit(breaker_moved("groq/llama", "opened", "server_error", 1_796_059_534.2))
    slower = as_audit(next(change_points("groq/llama", [("rate", -1)], 1_796_059_534.2)))

    assert detail_shown(opened) == [("message", None, "breaker opened after server_error")]
    assert detail_shown(slower) == [("message", None, "rate fell for good; its belief is widened")]
