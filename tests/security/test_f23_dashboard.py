"""F23: the dashboard against strangers, forged writes and hostile text, by walking its routes.

Routes are read from the app and pages are found by their links, so that what is added later is
asked too. Hostile text goes in as clients and admins put it in: by the APIs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
import sqlalchemy as sa
from litestar import Litestar
from litestar.routes import HTTPRoute

from gateway.api.app import build_litestar
from gateway.app.batching import running_batches
from gateway.app.retention_job import RetentionJob
from gateway.batch.routes import serve_batch_path
from gateway.dashboard.app import dashboard_routes
from gateway.dashboard.roles import ROLE
from gateway.dashboard.security import LOCAL_COOKIE
from gateway.dashboard.sessions import ABSOLUTE_S, IDLE_S, new_token
from gateway.keys.service import create_team
from gateway.store.admin_tables import admin_sessions
from gateway.store.audit import list_all_events
from gateway.store.tables import requests
from tests.support.dashboard_world import (
    ORIGIN,
    PASSWORD,
    Browser,
    DashboardWorld,
    add_model,
    dashboard,
)
from tests.support.relaying import COMPLETION
from tests.support.scripted_server import Connection

pytestmark = pytest.mark.anyio
# Out of an attribute of either quote, of a text area and a title; and into a template.
EVIL = "\"'></textarea></title><script>evil()</script><img src=x onerror=evil()>{{7*7}}"
MODEL = EVIL.replace("/", "")  # a model of that name would be an endpoint's
MARK = "evil()"
# By their links or without a parameter; each must show the text, so that it is known to be there.
SHOWN_ON = (
    "/admin/keys",
    "/admin/keys/{key_id}",
    "/admin/policy",
    "/admin/requests",
    "/admin/requests/{request_id}",
    "/admin/settings",
    "/admin/spend",
)
QUERY = (
    *("tenant", "key", "model", "endpoint", "lane", "outcome", "since", "until", "before", "by"),
    *("first", "last", "actor", "action", "subject", "next", "version", "state", "batch", "q"),
)
PAGES_MAX = 300
STREAMS = re.compile(r"/events/|/static/|/stream")


def routes_of(app: Litestar) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and opt of every route under /admin."""
    for route in app.routes:
        if isinstance(route, HTTPRoute) and route.path.startswith("/admin"):
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS", "HEAD"}:
                    yield str(method), route.path_format, handler.opt


def filled(path: str, value: str = "some-id") -> str:
    return re.sub(r"\{[^}]+\}", value, path)


class Page(HTMLParser):
    """What a browser makes of a page: links, text, and all that only an attacker puts there."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.strange: list[object] = []
        self.text = ""
        self._island = False
        self.feed(body)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self._island = tag == "script" and names.get("type") == "application/json"
        if tag in ("iframe", "object", "embed", "style", "base") or (
            tag == "script" and "src" not in names and not self._island
        ):
            self.strange.append((tag, attrs))
        if tag == "img" and not (names.get("src") or "").startswith("/admin/static/"):
            self.strange.append((tag, attrs))
        self.strange += [
            (tag, name) for name in names if name.startswith("on") or set(name) & set("<>\"'{(")
        ]
        for name, value in attrs:
            if name in ("href", "src", "action", "formaction") and value is not None:
                self.links.append(value)
                if re.match(r"\s*(javascript|data|vbscript):", value, re.IGNORECASE):
                    self.strange.append((tag, name, value))
            if value and MARK in value:
                self.text += value

    def handle_data(self, data: str) -> None:
        if self._island:
            json.loads(data)
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._island = False


async def provider(connection: Connection) -> None:
    """Answers, or refuses with hostile words where it is asked to."""
    refusal = {"error": {"message": EVIL, "type": EVIL, "code": EVIL, "param": EVIL}}
    while (request := await connection.read_request()) is not None:
        is_refused = b"please refuse" in request.body
        answer = refusal if is_refused else COMPLETION
        await connection.send_answer(json.dumps(answer).encode(), 400 if is_refused else 200)


@asynccontextmanager
async def hostile_world(home: Path) -> AsyncIterator[tuple[DashboardWorld, Browser]]:
    """A gateway with batch lane, into which hostile text went by every door; and its owner."""
    async with dashboard(home, scripts=[provider]) as world, running_batches(world.gateway) as lane:
        beside = partial(serve_batch_path, lane)
        world.app = build_litestar(world.gateway, beside, dashboard_routes(world.gateway, lane))
        owner = await world.logged_in("owner")
        owner.http.headers["user-agent"] = EVIL
        await in_by_admins(world, owner)
        add_model(world.gateway, MODEL)
        policy = world.gateway.policy()
        policy.pools[MODEL] = policy.pools["chat"]
        await in_by_clients(world)
        yield world, owner


async def in_by_admins(world: DashboardWorld, owner: Browser) -> None:
    """Policy comment and note, team, key, budgets, admins, searches."""
    shown = (await owner.send("GET", "/admin/api/policy")).json()
    text = shown["text"] + f"# {EVIL}\n"
    wanted = {"text": text, "base": shown["version"], "note": EVIL}
    published = await owner.send("POST", "/admin/api/policy/publish", wanted)
    assert published.status_code == 200, published.text
    tenant = (await owner.send("GET", "/admin/api/keys")).json()["teams"][0]["tenant_id"]
    team = await create_team(world.gateway.store, tenant, EVIL, now=world.now[0])
    key = {"name": EVIL, "team": team.id, "models": [MODEL], "budgets": [{"limit_usd": "1"}]}
    made = await owner.send("POST", "/admin/api/keys", key)
    assert made.status_code == 201, made.text
    for body in ({"name": EVIL, "role": EVIL}, {"name": "ada", "role": "viewer"}):
        await owner.send("POST", "/admin/api/admins", body)
    await world.browser().log_in(EVIL, EVIL)


async def in_by_clients(world: DashboardWorld) -> None:
    """Model, prompt, tags, user, an error's words; file name, ids and tags of a batch."""
    chat = {"messages": [{"role": "user", "content": EVIL}], "user": EVIL, "metadata": {"t": EVIL}}
    refused = [{"role": "user", "content": f"please refuse {EVIL}"}]
    transport = httpx.ASGITransport(world.app, client=("127.0.0.1", 4712))
    headers = {"authorization": f"Bearer {world.edge.key}"}
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers=headers) as client:
        for body, status in (
            ({**chat, "model": MODEL}, 200),
            ({**chat, "model": "chat", "messages": refused}, 400),
            ({**chat, "model": f"{MODEL}-2"}, 404),
        ):
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == status, answer.text
        line = {"custom_id": EVIL, "method": "POST", "url": "/v1/chat/completions"}
        content = json.dumps({**line, "body": {**chat, "model": "chat"}}).encode()
        sent = {"file": (f"{EVIL}.jsonl".replace('"', ""), content, "application/jsonl")}
        file = await client.post("/v1/files", files=sent, data={"purpose": "batch"})
        assert file.status_code == 200, file.text
        batch = {
            "input_file_id": file.json()["id"], "endpoint": line["url"],
            "completion_window": "24h", "metadata": {"note": EVIL},
        }  # fmt: skip
        made = await client.post("/v1/batches", json=batch)
        assert made.status_code == 200, made.text
    # The log is written by a task of the gateway's own.
    async with asyncio.timeout(20.0):
        while await num_logged(world) < 2:
            await asyncio.sleep(0.05)


async def num_logged(world: DashboardWorld) -> int:
    async with world.gateway.store.read() as connection:
        query = sa.select(sa.func.count()).where(requests.c.lane == "interactive")
        return int(await connection.scalar(query) or 0)


async def crawled(app: Litestar, browser: Browser) -> dict[str, Page]:
    """Every page without a parameter and what they link to, by path with its query."""
    found: dict[str, Page] = {}
    ahead = [path for method, path, _ in routes_of(app) if method == "GET" and "{" not in path]
    ahead += ["/admin/spend?by=model", "/admin/spend?by=key"]
    seen = set(ahead)
    while ahead and len(found) < PAGES_MAX:
        path = ahead.pop(0)
        if path.startswith("/admin/api") or STREAMS.search(path) or "logout" in path:
            continue
        answer = await browser.get(path)
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert answer.status_code in (200, 400, 404), (path, answer.status_code)
            page = found[path] = Page(answer.text)
            links = {urlsplit(link)._replace(fragment="").geturl() for link in page.links}
            fresh = sorted(link for link in links - seen if link.startswith("/admin/"))
            seen.update(fresh)
            ahead += fresh
    return found


def template_of(app: Litestar, path: str) -> str:
    bare = urlsplit(path).path
    for method, template, _ in routes_of(app):
        if method == "GET" and re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", template), bare):
            return re.sub(r":\w+", "", template)
    return bare


async def test_f23_hostile_text_is_text_on_every_page_and_json_in_every_answer(
    tmp_path: Path,
) -> None:
    async with hostile_world(tmp_path) as (world, owner):
        before = await audited(world)
        pages = await crawled(world.app, owner)
        shown = {template_of(world.app, path) for path, page in pages.items() if MARK in page.text}
        for method, path, _ in routes_of(world.app):
            if method == "GET" and not path.startswith("/admin/api") and not STREAMS.search(path):
                # With the text for what it is asked, in path and query.
                hostile = filled(path, quote(MODEL, safe=""))
                asked = await owner.get(hostile, params=dict.fromkeys(QUERY, EVIL))
                assert asked.status_code in (200, 303, 400, 404), (path, asked.text)
                if asked.headers.get("content-type", "").startswith("text/html"):
                    pages[f"{path} of hostile values"] = Page(asked.text)
        after = await audited(world)
        answers = await api_answers(world.app, owner)

    for path, page in pages.items():
        assert page.strange == [], path
        assert ">49" not in page.text, path
    assert shown >= set(SHOWN_ON), sorted(set(SHOWN_ON) - shown)
    assert len(pages) >= 20
    # Reading changes nothing, but that taking a batch's texts is told.
    assert [each for each in after if each[0] != "batch.download"] == before
    for path, answer in answers.items():
        assert answer.status_code < 500, (path, answer.text)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["cache-control"] == "no-store", path
        if answer.content:
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind == "application/json", (path, kind)
            answer.json()
    assert len(answers) >= 30


async def audited(world: DashboardWorld) -> list[tuple[str, str]]:
    async with world.gateway.store.read() as connection:
        events = await list_all_events(connection, actor="admin:", limit=1_000)
    return [(event.action, event.subject) for event in events]


async def api_answers(app: Litestar, owner: Browser) -> dict[str, httpx.Response]:
    """What every route of the admin API says to hostile values."""
    found = {}
    value = quote(MODEL, safe="")
    for method, path, _ in routes_of(app):
        if not path.startswith("/admin/api") or STREAMS.search(path):
            continue
        if method == "GET":
            found[path] = await owner.send(method, filled(path, value))
        elif not path.endswith(("/session", "/password")):  # those end what asks
            found[f"{method} {path}"] = await owner.send(method, filled(path, value), {EVIL: EVIL})
    return found


async def test_f23_no_write_without_this_sessions_token_and_our_origin(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        owner, other = await world.logged_in("owner"), await world.logged_in("owner")
        stranger = world.browser()
        forged = {
            "no token": ({"origin": ORIGIN}, "bad_csrf_token"),
            "another's token": (
                {"origin": ORIGIN, "x-csrf-token": other.csrf}, "bad_csrf_token",
            ),
            "no origin": ({"x-csrf-token": owner.csrf}, "foreign_origin"),
            "another origin": (
                {"origin": "https://evil.example", "x-csrf-token": owner.csrf}, "foreign_origin",
            ),
        }  # fmt: skip
        before = await audited(world)
        writes = [(method, path) for method, path, _ in routes_of(world.app) if method != "GET"]
        for method, path in writes:
            for how, (headers, code) in forged.items():
                answer = await owner.http.request(method, filled(path), json={}, headers=headers)
                assert answer.status_code == 403, (method, path, how, answer.text)
                if path.startswith("/admin/api"):
                    assert answer.json()["error"]["code"] == code, (method, path, how)
            answer = await stranger.http.request(
                method, filled(path), json={}, headers={"origin": ORIGIN}
            )
            assert answer.status_code == 403, (method, path, "a stranger", answer.text)
        after = await audited(world)
        still = await owner.send("GET", "/admin/api/keys")

    assert len(writes) >= 25
    assert after == before
    assert still.status_code == 200  # no forged log-out either


async def test_f23_strangers_see_nothing_and_viewers_only_what_is_theirs(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        stranger, viewer = world.browser(), await world.logged_in("viewer")
        await stranger.get("/admin/login")
        for method, path, opt in routes_of(world.app):
            if opt[ROLE] != "anyone":
                answer = await stranger.send(method, filled(path), {})
                # An API answers 401; a page sends to the log-in.
                is_api = path.startswith("/admin/api")
                assert answer.status_code == (401 if is_api else 303), (method, path)
            if opt[ROLE] in ("operator", "owner"):
                answer = await viewer.send(method, filled(path), {})
                assert answer.status_code == 403, (method, path, answer.text)


async def test_f23_a_planted_token_is_no_session(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        planted = new_token()
        victim, attacker = world.browser(), world.browser()
        for browser in (victim, attacker):
            browser.http.cookies.set(LOCAL_COOKIE, planted, domain="localhost.local")
        await attacker.get("/admin/login")
        early = attacker.csrf
        await victim.get("/admin/login")
        csrf_before = victim.csrf
        answer = await victim.log_in("owner")
        [token] = [each for each in re.findall(r"=([\w-]{43});", answer.headers["set-cookie"])]
        attackers = (await attacker.send("GET", "/admin/api/keys")).status_code
        headers = {"origin": ORIGIN, "x-csrf-token": csrf_before}
        old_csrf = await victim.http.post("/admin/api/keys", json={"name": "k"}, headers=headers)
        right = await victim.send("POST", "/admin/api/keys", {"name": "k"})

    assert early == csrf_before  # it was the planted token that both came with
    assert token != planted
    assert attackers == 401
    assert (old_csrf.status_code, right.status_code) == (403, 201)


async def test_f23_a_reset_ends_every_session_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        viewers = [await world.logged_in("viewer") for _ in range(3)]
        owner = await world.logged_in("owner")
        done = await owner.send("POST", "/admin/api/admins/viewer/reset")
        states = [
            (await each.send("GET", "/admin/api/keys")).status_code for each in (*viewers, owner)
        ]
        old = (await world.browser().log_in("viewer", PASSWORD)).status_code
        store = world.gateway.store
        job = RetentionJob(store, {}, wall_clock=world.gateway.wall_clock)

        async def num_kept() -> int:
            await job.run()
            async with store.read() as connection:
                query = sa.select(sa.func.count()).select_from(admin_sessions)
                return int(await connection.scalar(query) or 0)

        world.pass_time(IDLE_S - 1.0)
        assert (await owner.send("GET", "/admin/api/keys")).status_code == 200
        await world.logged_in("operator")
        kept = [await num_kept()]
        world.pass_time(IDLE_S - 1.0)
        kept.append(await num_kept())
        world.pass_time(2.0)
        kept.append(await num_kept())
        world.pass_time(ABSOLUTE_S)
        kept.append(await num_kept())

    assert done.status_code == 201
    assert states == [401, 401, 401, 200]
    assert old == 401
    assert kept == [2, 2, 0, 0]
