"""The page Playground race: choose who runs, start, watch; its API is one call that streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.dashboard.look import look_of, page
from gateway.dashboard.now import STREAM_HEADERS
from gateway.dashboard.page import AnyRequest, Desk, Page, actor_of, session_of
from gateway.dashboard.payer import Payer, newest_payers
from gateway.dashboard.playground_race import (
    LANES_MAX,
    OUTPUT_TOKENS_MAX,
    PROMPT_CHARS_MAX,
    TEMPERATURE_MAX,
    RaceWanted,
)
from gateway.dashboard.playground_stream import RACES_AT_ONCE, Races
from gateway.dashboard.roles import OPERATOR, VIEWER, has_role

TAGS = ["race"]


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of a model that may be in a race."""

    endpoint: str
    is_simulated: bool
    held: str  # "" | "paused" | "draining": it would refuse
    breaker: str
    has_key: bool  # of its provider


class RaceModel(msgspec.Struct, frozen=True, kw_only=True):
    """A public model and who can run for it."""

    model: str
    endpoints: list[Runner]


class RaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a race can be made of, its limits, and keys that can pay (the newest)."""

    models: list[RaceModel]
    payers: list[Payer]
    lanes_max: int = LANES_MAX
    prompt_chars_max: int = PROMPT_CHARS_MAX
    output_tokens_max: int = OUTPUT_TOKENS_MAX
    temperature_max: float = TEMPERATURE_MAX
    races_at_once: int = RACES_AT_ONCE


async def options_of(desk: Desk) -> RaceOptions:
    policy = desk.gateway.policy()
    runners = {each: _runner(desk, each) for each in policy.endpoints}
    return RaceOptions(
        models=[
            RaceModel(model=name, endpoints=[runners[each] for each in ids])
            for name, ids in policy.models.items()
            if any("chat" in policy.pools[each][0].serves for each in ids)
        ],
        payers=await newest_payers(desk),
    )


def _runner(desk: Desk, endpoint_id: str) -> Runner:
    gateway = desk.gateway
    endpoint, live = gateway.policy().endpoints[endpoint_id], gateway.fleet.live(endpoint_id)
    return Runner(
        endpoint=endpoint_id,
        is_simulated=endpoint.is_simulated,
        held=live.held if live is not None else "",
        breaker=live.breaker if live is not None else "closed",
        has_key=gateway.policy().providers[endpoint.provider].has_key,
    )


def routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/race", opt=VIEWER)
    async def race_page(request: AnyRequest) -> Response[bytes]:
        look = look_of(request, desk)
        may_write = has_role(session_of(request).admin.role, "operator")
        return page("playground.html", look, options=await options_of(desk), may_write=may_write)

    return [race_page]


def api_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/race", opt=VIEWER, tags=TAGS)
    async def read_race_options() -> RaceOptions:
        """Models, endpoints, limits and paying keys of a race."""
        return await options_of(desk)

    @post(
        "/race",
        opt=OPERATOR,
        tags=TAGS,
        status_code=200,
        media_type="text/event-stream",
    )
    async def start_race(request: AnyRequest, data: JSONBody[RaceWanted]) -> Stream:
        """
        Send one prompt to up to four endpoints and stream what comes, as server-sent events.

        `start` names the lanes and their request ids; `lane` (LaneNews) brings text and figures of
        one; `marks` (Marks) says who leads; `end` is the last. Closing the answer stops the race:
        upstream is closed, and what was generated is paid.
        """
        admin = session_of(request).admin.id
        race = await desk.only(Races).begin(data, admin=admin, actor=actor_of(request))
        events: AsyncIterator[bytes] = race.events()
        return Stream(events, media_type="text/event-stream", headers=STREAM_HEADERS)

    return [read_race_options, start_race]


PAGE = Page("/race", "race.title", "viewer", routes, api_routes)
