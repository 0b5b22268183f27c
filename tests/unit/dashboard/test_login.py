"""Logging in and out: who may, what the cookie is, what an attacker learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dashboard_world import PASSWORD, dashboard

pytestmark = pytest.mark.anyio


async def test_log_in_gives_a_strict_cookie_and_log_out_ends_the_session(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = world.browser()
        sent_away = await browser.get("/admin/")
        answer = await browser.log_in("owner")
        home = await browser.http.get("/admin/keys")
        stolen = dict(browser.http.cookies)
        gone = await browser.post("/admin/logout")
        browser.http.cookies.update(stolen)
        after = await browser.http.get("/admin/")

    assert (sent_away.status_code, sent_away.headers["location"]) == (
        303,
        "/admin/login?next=/admin",
    )
    assert answer.status_code == 303
    [cookie] = answer.headers.get_list("set-cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert home.status_code == 200
    assert "owner" in home.text
    assert gone.status_code == 303
    assert after.headers["location"].startswith("/admin/login")


async def test_right_after_wrong_is_let_in(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = world.browser()
        wrong = await browser.log_in("owner", "not this one")
        right = await browser.log_in("owner", PASSWORD)

    assert wrong.status_code == 401
    assert "Name or password is wrong" in wrong.text
    assert right.status_code == 303
