"""The page Backend: our own servers, what they do now, how they draft, and why so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Response, get
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.dashboard.backend_view import Backends, BackendServer, server_of
from gateway.dashboard.backend_watch import BackendWatch
from gateway.dashboard.look import Look, look_of, page, templates
from gateway.dashboard.messages import CATALOGUES, ENGLISH
from gateway.dashboard.now import STREAM_HEADERS, STREAM_S_MAX, TICK_S, Watchers, counted
from gateway.dashboard.page import AnyRequest, Desk, Page
from gateway.dashboard.roles import VIEWER
from gateway.pipeline import Gateway


def watch_of(desk: Desk) -> BackendWatch:
    return BackendWatch(desk.gateway)


def routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    watch, watchers = desk.only(watch_of), Watchers()

    @get("/backend", opt=VIEWER)
    async def backend_page(request: AnyRequest) -> Response[bytes]:
        found = await backends(desk.gateway, watch)
        return page("backend.html", look_of(request, desk), servers=found.servers, **WORDS)

    @get("/events/backend", opt=VIEWER)
    async def events(request: AnyRequest) -> Stream:
        watchers.enter()
        stream = backend_events(desk.gateway, watch, look_of(request, desk))
        return Stream(
            counted(stream, watchers), media_type="text/event-stream", headers=STREAM_HEADERS
        )

    return [backend_page, events]


def api_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    watch = desk.only(watch_of)

    @get("/backends", opt=VIEWER, tags=["backend"])
    async def read_backends() -> Backends:
        """Our own backend servers of the policy: load, speculation and health as they tell them,
        at most a second old, or the problem that there is with one."""
        return await backends(desk.gateway, watch)

    return [read_backends]


async def backends(gateway: Gateway, watch: BackendWatch) -> Backends:
    answers = await watch.answers()
    return Backends(
        at_unix_s=gateway.wall_clock(), servers=[server_of(answer) for answer in answers]
    )


async def backend_events(gateway: Gateway, watch: BackendWatch, look: Look) -> AsyncIterator[bytes]:
    """
    Every second the parts of the page that changed, as the page Now does (`event: board`).

    Where a server came, went, failed or has other tables, the page is to be drawn anew.
    """
    sent: dict[str, str] = {}
    first = shape_of((await backends(gateway, watch)).servers)
    ends_at_s = gateway.clock() + STREAM_S_MAX
    yield b"retry: 2000\n\n"
    while gateway.clock() < ends_at_s and not gateway.is_draining:
        servers = (await backends(gateway, watch)).servers
        if shape_of(servers) != first:
            yield b"event: reload\ndata: {}\n\n"
            return
        parts = parts_of(servers, look)
        changed = {part: html for part, html in parts.items() if sent.get(part) != html}
        sent = parts
        if changed:
            yield b"event: board\ndata: " + msgspec.json.encode(changed) + b"\n\n"
        else:
            yield b": still here\n\n"
        await asyncio.sleep(TICK_S)


def shape_of(servers: Sequence[BackendServer]) -> list[tuple[object, ...]]:
    """What the frame of the page rests on; within it only parts change."""
    return [
        (
            each.address,
            each.endpoints,
            each.problem.code if each.problem is not None else "",
            each.is_old,
            each.load.speculation.method if each.load and each.load.speculation else "",
            bool(each.worth),
            each.costs.drafts if each.costs is not None else [],
        )
        for each in servers
    ]


def parts_of(servers: Sequence[BackendServer], look: Look) -> dict[str, str]:
    """The moving parts by the id of their element, rendered by the page's own macros."""
    macros = templates().get_template("backend_parts.html").make_module(WORDS)
    found = {}
    for idx, server in enumerate(servers):
        if server.problem is not None or server.load is None:
            found[f"problem-{idx}"] = str(macros.problem(look.t, server, idx))
            continue
        for name in ("figures", "why", "places", "costs", "reasons", "decisions"):
            found[f"{name}-{idx}"] = str(getattr(macros, name)(look.t, server, idx))
    return found


def known_word(key: str) -> bool:
    """Whether there is a word for what a server of another version says."""
    return key in CATALOGUES[ENGLISH]


def clock_time(at_unix_s: float) -> str:
    """In UTC, as everywhere in the dashboard."""
    return datetime.fromtimestamp(min(at_unix_s, 253e9), UTC).strftime("%Y-%m-%d %H:%M:%S")


def lasting(seconds: float) -> str:
    """`12 min`, `5.3 h`, `8 d`."""
    if seconds < 5_400.0:
        return f"{seconds / 60:.0f} min" if seconds >= 60.0 else f"{seconds:.0f} s"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800.0 else f"{seconds / 86_400:.0f} d"


WORDS: dict[str, Any] = {"known_word": known_word, "clock_time": clock_time, "lasting": lasting}


PAGE = Page("/backend", "nav.backend", "viewer", routes, api_routes)
