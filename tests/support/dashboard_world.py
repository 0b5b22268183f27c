"""The dashboard of a gateway in this process, asked as browsers and scripts ask."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from litestar import Litestar

from gateway.api.app import build_litestar
from gateway.dashboard import passwords
from gateway.dashboard.accounts import create_admin
from gateway.dashboard.app import dashboard_routes
from gateway.pipeline import Gateway
from tests.support.edge_world import Edge, edge
from tests.support.relaying import COMPLETION, answers
from tests.support.scripted_server import Script

ORIGIN = "http://localhost"
PASSWORD = "correct horse battery"
_CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


@dataclass
class Browser:
    """One browser: keeps cookies, sends Origin and the CSRF token of the page it last saw."""

    http: httpx.AsyncClient
    csrf: str = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        answer = await self.http.get(path, **options)
        found = _CSRF.search(answer.text)
        if found is not None:
            self.csrf = found[1]
        return answer

    async def post(self, path: str, fields: Mapping[str, str] | None = None) -> httpx.Response:
        """Send a form as a page of ours would."""
        answer = await self.http.post(
            path, data={"csrf": self.csrf, **(fields or {})}, headers={"origin": ORIGIN}
        )
        found = _CSRF.search(answer.text)
        if found is not None:
            self.csrf = found[1]
        return answer

    async def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Call the JSON API as a script would."""
        said = {"origin": ORIGIN, "x-csrf-token": self.csrf, **(headers or {})}
        return await self.http.request(method, path, json=body, headers=said)

    async def log_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        await self.get("/admin/login")
        answer = await self.post("/admin/login", {"name": name, "password": password})
        if answer.status_code == 303:
            self.csrf = (await self.http.get("/admin/api/session")).json()["csrf"]
        return answer


@dataclass
class DashboardWorld:
    edge: Edge
    app: Litestar
    now: list[float]  # unix seconds that the dashboard's clocks say

    @property
    def gateway(self) -> Gateway:
        return self.edge.gateway

    def browser(
        self, *, base_url: str = ORIGIN, client: tuple[str, int] = ("127.0.0.1", 4711)
    ) -> Browser:
        transport = httpx.ASGITransport(self.app, client=client)
        return Browser(httpx.AsyncClient(transport=transport, base_url=base_url))

    async def logged_in(self, role: str) -> Browser:
        """A browser in which an admin of this role, and of its name, is logged in."""
        browser = self.browser()
        answer = await browser.log_in(role)
        assert answer.status_code == 303, answer.text
        return browser

    def pass_time(self, seconds: float) -> None:
        self.now[0] += seconds


@contextmanager
def cheap_passwords() -> Iterator[None]:
    """Argon2id with the least work: at full cost a file of tests takes minutes."""

    def forget() -> None:
        passwords._hasher.cache_clear()
        passwords._nobody.cache_clear()

    full = passwords.ROUNDS, passwords.MEMORY_KIB, passwords.LANES
    passwords.ROUNDS, passwords.MEMORY_KIB, passwords.LANES = 1, 8, 1
    forget()
    try:
        yield
    finally:
        passwords.ROUNDS, passwords.MEMORY_KIB, passwords.LANES = full
        forget()


@asynccontextmanager
async def dashboard(
    home: Path,
    *,
    roles: Sequence[str] = ("owner", "operator", "viewer"),
    is_cheap: bool = True,
    scripts: Sequence[Script] = (),
) -> AsyncIterator[DashboardWorld]:
    """A running gateway with its dashboard, and an admin of each role, named after it.

    `scripts`: servers behind `chat` instead of the one that gives COMPLETION.
    """
    with cheap_passwords() if is_cheap else nullcontext():
        async with _dashboard(home, roles, scripts or [answers(COMPLETION)]) as found:
            yield found


@asynccontextmanager
async def _dashboard(
    home: Path, roles: Sequence[str], scripts: Sequence[Script]
) -> AsyncIterator[DashboardWorld]:
    async with edge(home, *scripts) as world:
        gateway = world.gateway
        now = [gateway.wall_clock()]
        gateway.wall_clock = lambda: now[0]
        gateway.clock = lambda: now[0]
        for role in roles:
            await create_admin(
                gateway.store, role, role, now=now[0], actor="test", password=PASSWORD
            )
        app = build_litestar(gateway, None, dashboard_routes(gateway))
        yield DashboardWorld(edge=world, app=app, now=now)


def add_model(gateway: Gateway, name: str) -> None:
    """One more public model of the endpoint `a/m`, whatever the policy's file says from now on."""
    policy = gateway.policy()
    policy.models[name] = ("a/m",)
    gateway.policy = lambda: policy
