"""What stands before the dashboard: roles on every route, CSRF, Origin, expiry, the throttle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar
from litestar.routes import ASGIRoute, HTTPRoute

from gateway.dashboard.accounts import disable_admin, set_role
from gateway.dashboard.roles import ROLE
from gateway.dashboard.security import LOCAL_COOKIE, SECURE_COOKIE
from gateway.dashboard.sessions import ABSOLUTE_S, IDLE_S
from gateway.dashboard.throttle import PER_ADDRESS_MAX, PER_NAME_MAX, WINDOW_S
from gateway.settings import Settings
from gateway.store.admin_tables import admin_sessions, admins
from gateway.store.audit import list_all_events
from tests.support.dashboard_world import ORIGIN, PASSWORD, Browser, dashboard

pytestmark = pytest.mark.anyio
# A viewer may end or mend what is only their own, and choose how pages look.
FOR_ALL = {
    ("POST", "/admin/login"),
    ("POST", "/admin/logout"),
    ("POST", "/admin/look"),
    ("POST", "/admin/settings/password"),
    ("POST", "/admin/api/session"),
    ("DELETE", "/admin/api/session"),
    ("POST", "/admin/api/password"),
}


def routes_of(app: Litestar) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and opt of every route under /admin."""
    for route in app.routes:
        if isinstance(route, HTTPRoute) and route.path.startswith("/admin"):
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS", "HEAD"}:
                    yield str(method), route.path_format, handler.opt


def filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "some-id", path)


async def test_a_viewer_gets_403_on_every_write_and_a_stranger_nothing(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        viewer, stranger = await world.logged_in("viewer"), world.browser()
        await stranger.get("/admin/login")
        writes = [
            (method, path)
            for method, path, _ in routes_of(world.app)
            if method != "GET" and (method, path) not in FOR_ALL
        ]
        for method, path in writes:
            answer = await viewer.send(method, filled(path), {})
            assert answer.status_code == 403, (method, path, answer.text)
            assert "this takes the role" in answer.text, (method, path)
        for method, path, opt in routes_of(world.app):
            if opt[ROLE] == "anyone":
                continue
            answer = await stranger.send(method, filled(path), {})
            assert answer.status_code in (303, 401), (method, path, answer.text)
            if answer.status_code == 303:
                assert answer.headers["location"].startswith("/admin/login"), path

    assert len(writes) >= 15
    assert {(method, path) for method, path, _ in routes_of(world.app)} >= FOR_ALL


async def test_every_route_states_its_role_and_the_hot_mount_has_no_middleware(
    tmp_path: Path,
) -> None:
    async with dashboard(tmp_path) as world:
        stated = {(method, path): opt.get(ROLE) for method, path, opt in routes_of(world.app)}
        [mount] = [route for route in world.app.routes if isinstance(route, ASGIRoute)]
        outside = [
            route
            for route in world.app.routes
            if isinstance(route, HTTPRoute) and not route.path.startswith("/admin")
        ]

    known = {"anyone", "self", "viewer", "operator", "owner"}
    assert {key for key, role in stated.items() if role not in known} == set()
    for (method, path), role in stated.items():
        if method != "GET" and (method, path) not in FOR_ALL:
            assert role in ("operator", "owner"), (method, path)
    assert mount.path == "/v1"
    assert list(world.app.middleware) == []
    assert list(mount.route_handler.resolve_middleware()) == []
    assert list(mount.route_handler.resolve_guards()) == []
    for route in outside:
        for handler in route.route_handlers:
            assert list(handler.resolve_middleware()) == [], route.path


async def test_a_write_needs_our_origin_and_this_sessions_token(tmp_path: Path) -> None:
    wanted = {"name": "k"}
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        other = await world.logged_in("operator")

        async def status(**headers: str) -> tuple[int, str]:
            answer = await browser.http.post("/admin/api/keys", json=wanted, headers=headers)
            return answer.status_code, answer.json().get("error", {}).get("code", "")

        right = {"origin": ORIGIN, "x-csrf-token": browser.csrf}
        refused = [
            await status(**{"x-csrf-token": browser.csrf}),
            await status(**{**right, "origin": "null"}),
            await status(**{**right, "origin": "http://localhost.evil.example"}),
            await status(**{**right, "origin": "https://localhost"}),
            await status(**{"origin": ORIGIN}),
            await status(**{**right, "x-csrf-token": other.csrf}),
            await status(**{**right, "x-csrf-token": "0" * 64}),
        ]
        form = await browser.http.post(
            "/admin/keys", data={"name": "k", "csrf": other.csrf}, headers={"origin": ORIGIN}
        )
        accepted = await status(**right)
        keys = (await browser.send("GET", "/admin/api/keys")).json()["keys"]

    assert refused[:4] == [(403, "foreign_origin")] * 4
    assert refused[4:] == [(403, "bad_csrf_token")] * 3
    assert form.status_code == 403
    assert accepted == (201, "")
    assert [key["name"] for key in keys] == ["test", "k"]


async def _is_in(browser: Browser) -> bool:
    return (await browser.send("GET", "/admin/api/keys")).status_code == 200


async def test_sessions_end_when_idle_and_after_their_longest_life(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        idle, busy = await world.logged_in("viewer"), await world.logged_in("viewer")
        world.pass_time(IDLE_S - 1)
        assert await _is_in(busy)
        world.pass_time(2)
        idle_after, busy_after = await _is_in(idle), await _is_in(busy)
        left_s = ABSOLUTE_S - IDLE_S - 1
        while left_s > IDLE_S / 2:
            world.pass_time(IDLE_S / 2)
            left_s -= IDLE_S / 2
            assert await _is_in(busy)
        world.pass_time(left_s - 1)
        last = await _is_in(busy)
        world.pass_time(1)
        over = await _is_in(busy)

    assert (idle_after, busy_after) == (False, True)
    assert (last, over) == (True, False)


async def test_disabling_and_demoting_work_on_the_next_request(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        store, now = world.gateway.store, world.now[0]
        before = await browser.send("POST", "/admin/api/keys", {"name": "a"})
        await set_role(store, "operator", "viewer", now=now, actor="test")
        demoted = await browser.send("POST", "/admin/api/keys", {"name": "b"})
        await disable_admin(store, "operator", now=now, actor="test")
        shut_out = await browser.send("GET", "/admin/api/keys")
        again = await world.browser().log_in("operator")

    assert (before.status_code, demoted.status_code) == (201, 403)
    assert shut_out.status_code == 401
    assert again.status_code == 401


async def test_own_password_change_ends_the_other_sessions_only(tmp_path: Path) -> None:
    new = "another horse battery"
    async with dashboard(tmp_path) as world:
        here, there = await world.logged_in("viewer"), await world.logged_in("viewer")
        wrong = await here.send("POST", "/admin/api/password", {"current": "no", "new": new})
        short = await here.send("POST", "/admin/api/password", {"current": PASSWORD, "new": "x"})
        right = await here.send("POST", "/admin/api/password", {"current": PASSWORD, "new": new})
        states = (await _is_in(here), await _is_in(there))
        old = (await world.browser().log_in("viewer", PASSWORD)).status_code
        fresh = (await world.browser().log_in("viewer", new)).status_code

    assert [each.status_code for each in (wrong, short, right)] == [403, 400, 204]
    assert states == (True, False)
    assert (old, fresh) == (401, 303)


async def test_log_ins_are_throttled_by_name_and_by_address(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        known, unknown = [], []
        for n in range(PER_NAME_MAX + 1):
            # Each from another address: the name alone counts.
            one = world.browser(client=(f"127.0.1.{n}", 1))
            known.append(await one.log_in("owner", "wrong"))
            two = world.browser(client=(f"127.0.2.{n}", 1))
            unknown.append(await two.log_in("nobody", "wrong"))
        right_but_late = await world.browser(client=("127.0.3.1", 1)).log_in("owner")
        world.pass_time(WINDOW_S + 1)
        later = await world.browser(client=("127.0.3.1", 1)).log_in("owner")
        spraying = world.browser(client=("127.0.4.1", 1))
        sprayed = [await spraying.log_in(f"name{n}", "w") for n in range(PER_ADDRESS_MAX + 1)]

    codes = [401] * PER_NAME_MAX + [429]
    assert [answer.status_code for answer in known] == codes
    assert [answer.status_code for answer in unknown] == codes
    assert right_but_late.status_code == 429
    assert "Too many tries" in right_but_late.text
    assert later.status_code == 303
    assert [answer.status_code for answer in sprayed] == [401] * PER_ADDRESS_MAX + [429]


@pytest.mark.slow
async def test_an_unknown_name_costs_a_whole_password_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    from argon2 import PasswordHasher

    real = PasswordHasher.verify

    def verify(self: PasswordHasher, hash: str, password: str) -> bool:
        checked.append(hash.rpartition("$")[0].rpartition("$")[0])
        return bool(real(self, hash, password))

    monkeypatch.setattr(PasswordHasher, "verify", verify)
    async with dashboard(tmp_path, is_cheap=False) as world:
        await disable_admin(world.gateway.store, "viewer", now=1.0, actor="test")
        answers = [
            await world.browser().log_in(name, "wrong password")
            for name in ("owner", "nobody", "viewer", "x" * 300, "")
        ]

    parameters = "$argon2id$v=19$m=65536,t=3,p=4"
    assert checked == [parameters] * 5
    assert {answer.status_code for answer in answers} == {401}
    shown = {re.sub(r'value="[^"]*"|[0-9a-f]{64}', "", answer.text) for answer in answers}
    assert len(shown) == 1  # but for the name typed and the token, the same page


async def test_cookies_are_secure_behind_tls_and_plain_http_is_only_for_this_machine(
    tmp_path: Path,
) -> None:
    proxy = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https"}
    async with dashboard(tmp_path) as world:
        trusting = Settings.from_environment(
            {"LOOPROUTER_HOME": str(tmp_path), "LOOPROUTER_TRUSTED_PROXIES": "10.0.0.0/8"}
        )
        world.gateway.settings = trusting
        local = await world.browser().get("/admin/login")
        behind = world.browser(base_url="http://gw.example", client=("10.1.1.1", 9))
        secure = await behind.http.get("/admin/login", headers=proxy)
        plain = await behind.http.get(
            "/admin/login", headers={**proxy, "x-forwarded-proto": "http"}
        )
        liar = world.browser(base_url="http://gw.example", client=("203.0.113.5", 9))
        lied = await liar.http.get("/admin/login", headers=proxy)
        remote = await liar.http.get("/admin/login")

    assert local.headers["set-cookie"].startswith(f"{LOCAL_COOKIE}=")
    assert "Secure" not in local.headers["set-cookie"]
    cookie = secure.headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    for flag in ("Secure", "HttpOnly", "SameSite=strict", "Path=/"):
        assert flag in cookie
    for answer in (plain, lied, remote):
        assert answer.status_code == 403
        assert "LOOPROUTER_TRUSTED_PROXIES" in answer.text


async def test_neither_database_nor_audit_holds_tokens_or_passwords(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        owner = await world.logged_in("owner")
        [token] = [cookie.value for cookie in owner.http.cookies.jar]
        made = (
            await owner.send("POST", "/admin/api/admins", {"name": "n", "role": "viewer"})
        ).json()
        reset = (await owner.send("POST", "/admin/api/admins/n/reset")).json()
        await owner.send("PATCH", "/admin/api/admins/n", {"role": "operator"})
        logged_in = await world.browser().log_in("n", reset["password"])
        async with world.gateway.store.read() as connection:
            rows = [
                *(await connection.execute(admins.select())),
                *(await connection.execute(admin_sessions.select())),
            ]
            events = await list_all_events(connection)

    assert logged_in.status_code == 303
    kept = repr(rows) + repr(events)
    for secret in (token, PASSWORD, made["password"], reset["password"], owner.csrf):
        assert secret is not None
        assert secret not in kept
    [role] = [event for event in events if event.action == "admin.role"]
    assert role.actor == "admin:owner"
    assert role.detail == {
        "before": {"role": "viewer", "is_disabled": False},
        "after": {"role": "operator", "is_disabled": False},
    }


async def test_pages_carry_a_policy_without_inline_code(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("owner")
        for path in ("/admin/keys", "/admin/settings", "/admin/api/keys", "/admin/nothing-here"):
            answer = await browser.get(path)
            if path != "/admin/nothing-here":
                policy = answer.headers["content-security-policy"]
                assert "unsafe" not in policy
                assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert not re.search(r"<script(?![^>]*src=)|\son\w+=|<style|\sstyle=", answer.text), (
                path
            )


async def test_a_body_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("operator")
        answer = await browser.send("POST", "/admin/api/keys", {"name": "x" * 1_100_000})
        form = await browser.post("/admin/keys", {"name": "x" * 1_100_000})

    assert (answer.status_code, form.status_code) == (413, 413)
