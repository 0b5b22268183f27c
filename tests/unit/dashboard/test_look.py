"""Theme, language and files: what a browser is given, and what it may not ask for."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from gateway.dashboard import look
from gateway.dashboard.look import served_files, static_url
from gateway.dashboard.look_routes import safe_next
from tests.support.dashboard_world import dashboard

pytestmark = pytest.mark.anyio
INLINE = re.compile(r"<style|\sstyle=|\son[a-z]+=|<script>|javascript:|\|\s*safe")
FILES = {
    "app.css",
    "app.js",
    "board.js",
    "htmx.min.js",
    "uplot.min.js",
    "uplot.min.css",
    "mark.svg",
}


async def test_theme_and_language_are_kept_in_a_cookie_and_drawn_by_the_server(
    tmp_path: Path,
) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("viewer")
        await browser.get("/admin/now")
        chosen = await browser.post("/admin/look", {"theme": "dark", "next": "/admin/now"})
        dark = await browser.get("/admin/now")
        await browser.post("/admin/look", {"language": "zh", "next": "/admin/now"})
        chinese = await browser.get("/admin/now")

    assert (chosen.status_code, chosen.headers["location"]) == (303, "/admin/now")
    [cookie] = chosen.headers.get_list("set-cookie")
    assert cookie.startswith("looprouter_theme=dark;")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert '<html lang="en" data-theme="dark">' in dark.text
    assert '<html lang="zh-Hans" data-theme="dark">' in chinese.text
    assert "谁胜出" in chinese.text


async def test_unknown_theme_changes_nothing_and_a_foreign_form_is_refused(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("viewer")
        await browser.get("/admin/now")
        unknown = await browser.post("/admin/look", {"theme": "<script>", "next": "//evil.example"})
        browser.csrf = "0" * 64
        foreign = await browser.post("/admin/look", {"theme": "dark"})

    assert unknown.headers["location"] == "/admin/"
    assert "set-cookie" not in unknown.headers
    assert foreign.status_code == 403


@pytest.mark.parametrize(
    ("wanted", "goes_to"),
    [
        ("/admin/now", "/admin/now"),
        ("/admin/requests?model=a&after=1", "/admin/requests?model=a&after=1"),
        ("//evil.example/admin/", "/admin/"),
        ("https://evil.example/admin/", "/admin/"),
        ("/\\evil.example", "/admin/"),
        ("/adminx", "/admin/"),
        ("/admin/../v1", "/admin/"),
        ("/admin/\r\nset-cookie: a=b", "/admin/"),
        ("", "/admin/"),
    ],
)
def test_next_stays_in_the_dashboard(wanted: str, goes_to: str) -> None:
    assert safe_next(wanted) == goes_to


async def test_files_are_open_packed_and_kept_by_the_name_of_their_content(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        browser = world.browser()
        named = await browser.http.get(static_url("app.css"))
        bare = await browser.http.get("/admin/static/app.css")
        plain = await browser.http.get(
            "/admin/static/app.css", headers={"accept-encoding": "identity"}
        )
        missing = [
            (await browser.http.get(path)).status_code
            for path in ("/admin/static/look.py", "/admin/static/..%2Flook.py", "/admin/static/x")
        ]

    assert named.headers["content-encoding"] == "gzip"
    assert named.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert named.headers["content-type"] == "text/css; charset=utf-8"
    assert bare.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in plain.headers
    assert plain.content == named.content == served_files()["app.css"].read_bytes()
    assert missing == [404, 404, 404]


async def test_without_the_browser_libraries_pages_are_readable_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {name: path for name, path in served_files().items() if path.parent.name == "static"}
    monkeypatch.setattr(look, "served_files", lambda: own)
    monkeypatch.setitem(look.templates().globals, "has_file", own.__contains__)
    async with dashboard(tmp_path) as world:
        browser = await world.logged_in("viewer")
        page = await browser.get("/admin/now")

    assert page.status_code == 200
    assert "The browser libraries are not built" in page.text
    assert "htmx.min.js" not in page.text
    assert 'id="endpoint-0"' in page.text


def test_our_own_files_need_no_inline_style_or_script() -> None:
    folder = Path(look.__file__).parent
    for path in folder.glob("templates/**/*.html"):
        source = path.read_text()
        assert not re.search(
            r"<style|\sstyle=|\son[a-z]+=|<script>|javascript:|\|\s*safe", source
        ), path


def test_page_fits_its_weight() -> None:
    weights = {name: len(gzip.compress(served_files()[name].read_bytes(), 9)) for name in FILES}

    assert sum(weights.values()) < 60_000, weights
