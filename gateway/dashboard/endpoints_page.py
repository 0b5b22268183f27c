"""The page Models & endpoints: probe, pause, drain and resume, with what moves by one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody, URLEncodedBody
from litestar.response import Redirect, Stream
from litestar.types import ControllerRouterHandler

from gateway.dashboard import forms, holding
from gateway.dashboard.catalogue import Catalogue, ListedEndpoint, catalogue_of, listed_endpoint
from gateway.dashboard.holding import NOTE_CHARS_MAX
from gateway.dashboard.look import ROOT, Look, look_of, page, templates
from gateway.dashboard.now import STREAM_HEADERS, STREAM_S_MAX, TICK_S, Watchers, counted
from gateway.dashboard.page import AnyRequest, Desk, Page, actor_of
from gateway.dashboard.probing import Prober, ProbeResult
from gateway.dashboard.roles import OPERATOR, VIEWER, has_role
from gateway.errors import ApiError

Form = URLEncodedBody[dict[str, str]]
TAGS = ["endpoints"]


class EndpointNamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One endpoint by its id, which has slashes and so does not stand in a path."""

    endpoint: str


class HoldWanted(EndpointNamed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That an endpoint shall get nothing new. The note is shown beside it."""

    note: str = ""


def routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    watchers = Watchers()

    @get("/endpoints", opt=VIEWER)
    async def endpoints_page(request: AnyRequest) -> Response[bytes]:
        return _page(request, desk)

    @post("/endpoints/act", opt=OPERATOR, status_code=200)
    async def act(request: AnyRequest, data: Form) -> Response[Any]:
        try:
            await _act(desk, data, actor=actor_of(request))
        except ApiError as error:
            return _page(request, desk, error)
        return Redirect(f"{ROOT}/endpoints", status_code=303)

    @get("/events/endpoints", opt=VIEWER)
    async def events(request: AnyRequest) -> Stream:
        watchers.enter()
        stream = endpoint_events(desk, look_of(request, desk))
        return Stream(
            counted(stream, watchers), media_type="text/event-stream", headers=STREAM_HEADERS
        )

    return [endpoints_page, act, events]


def api_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/endpoints", opt=VIEWER, tags=TAGS)
    async def read_endpoints() -> Catalogue:
        """Models, their endpoints, prices in force with their source, and what was measured."""
        return catalogue_of(desk)

    @post("/endpoints/probe", opt=OPERATOR, tags=TAGS, status_code=200)
    async def probe_endpoint(request: AnyRequest, data: JSONBody[EndpointNamed]) -> ProbeResult:
        """Send one small request there now, held or not; the dashboard's own key pays for it."""
        return await desk.only(Prober).probe(data.endpoint, actor=actor_of(request))

    @post("/endpoints/pause", opt=OPERATOR, tags=TAGS, status_code=200)
    async def pause_endpoint(request: AnyRequest, data: JSONBody[HoldWanted]) -> ListedEndpoint:
        """Route no new request there until it is resumed; what runs goes on."""
        await holding.hold(desk, data.endpoint, "pause", data.note, actor=actor_of(request))
        return _one(desk, data.endpoint)

    @post("/endpoints/drain", opt=OPERATOR, tags=TAGS, status_code=200)
    async def drain_endpoint(request: AnyRequest, data: JSONBody[HoldWanted]) -> ListedEndpoint:
        """A pause before an endpoint goes: `standing` says when nothing runs there any more."""
        await holding.hold(desk, data.endpoint, "drain", data.note, actor=actor_of(request))
        return _one(desk, data.endpoint)

    @post("/endpoints/resume", opt=OPERATOR, tags=TAGS, status_code=204)
    async def resume_endpoint(request: AnyRequest, data: JSONBody[EndpointNamed]) -> None:
        """Route requests there again."""
        await holding.resume(desk, data.endpoint, actor=actor_of(request))

    return [read_endpoints, probe_endpoint, pause_endpoint, drain_endpoint, resume_endpoint]


async def _act(desk: Desk, fields: dict[str, str], *, actor: str) -> None:
    """What a button of a row asks for. A probe that failed is a result, not a problem."""
    endpoint_id, verb = fields.get("endpoint", ""), fields.get("verb", "")
    if verb == "probe":
        await desk.only(Prober).probe(endpoint_id, actor=actor)
    elif verb == "resume":
        await holding.resume(desk, endpoint_id, actor=actor)
    else:
        await holding.hold(desk, endpoint_id, verb, fields.get("note", ""), actor=actor)


def _one(desk: Desk, endpoint_id: str) -> ListedEndpoint:
    endpoint = desk.gateway.policy().endpoints[endpoint_id]
    return listed_endpoint(desk.gateway, endpoint, desk.only(Prober))


def _page(request: AnyRequest, desk: Desk, error: ApiError | None = None) -> Response[bytes]:
    look = look_of(request, desk)
    return page(
        "endpoints.html",
        look,
        status=error.status if error is not None else 200,
        catalogue=catalogue_of(desk),
        problem=error.message if error is not None else "",
        may_write=_may_write(look),
        moment=forms.moment,
        note_chars_max=NOTE_CHARS_MAX,
    )


def _may_write(look: Look) -> bool:
    return look.me is not None and has_role(look.me.role, "operator")


async def endpoint_events(desk: Desk, look: Look) -> AsyncIterator[bytes]:
    """
    Every second the cells that changed, as HTML by element id (`event: board`, as on Now).

    Rows are named when the stream begins: after another policy it says `reload` and ends.
    """
    gateway = desk.gateway
    version, sent = gateway.policy().version, dict[str, str]()
    ends_at_s = gateway.clock() + STREAM_S_MAX
    yield b"retry: 2000\n\n"
    while gateway.clock() < ends_at_s and not gateway.is_draining:
        if gateway.policy().version != version:
            yield b"event: reload\ndata: {}\n\n"
            return
        parts = parts_of(catalogue_of(desk), look)
        changed = {part: html for part, html in parts.items() if sent.get(part) != html}
        sent = parts
        if changed:
            yield b"event: board\ndata: " + msgspec.json.encode(changed) + b"\n\n"
        else:
            yield b": still here\n\n"  # else a client that left would never be noticed
        await asyncio.sleep(TICK_S)


def parts_of(catalogue: Catalogue, look: Look) -> dict[str, str]:
    """The moving cells by the id of their element, rendered by the page's own macros."""
    macros = templates().get_template("endpoints_parts.html").module
    may_write, parts = _may_write(look), dict[str, str]()
    for at, model in enumerate(catalogue.models):
        for idx, each in enumerate(model.endpoints):
            place = f"{at}-{idx}"
            parts[f"standing-{place}"] = str(macros.standing(look.t, each, place, forms.moment))
            if may_write:
                controls = macros.controls(look.t, each, place, look.csrf, ROOT, NOTE_CHARS_MAX)
                parts[f"controls-{place}"] = str(controls)
    return parts


PAGE = Page("/endpoints", "nav.endpoints", "viewer", routes, api_routes)
