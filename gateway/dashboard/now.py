"""The page Now: the live board, drawn by the server and moved by one event stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import structlog
from litestar import Response, get
from litestar.response import Stream
from litestar.types import ControllerRouterHandler
from sqlalchemy.exc import SQLAlchemyError

from gateway.dashboard.board import Board, BoardMaker
from gateway.dashboard.look import Look, look_of, page, templates
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.page import Page as NavPage
from gateway.dashboard.roles import VIEWER
from gateway.dashboard.spend import SpendAnswer, SpendDesk
from gateway.errors import Overloaded
from gateway.ledger.windows import day_of
from gateway.pipeline import Gateway

log = structlog.get_logger()

TICK_S = 1.0
# The browser opens it again by itself, and then its session is asked for again.
STREAM_S_MAX = 300.0
WATCHERS_MAX = 64
SPEND_EVERY_S = 5.0
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class SpendToday:
    """What providers charge since midnight UTC, asked for at most every SPEND_EVERY_S."""

    def __init__(self, desk: Desk) -> None:
        self._gateway = desk.gateway
        self._spend = SpendDesk(desk)
        self._at_s = float("-inf")
        self._known: SpendAnswer | None = None

    async def answer(self) -> SpendAnswer | None:
        """The last that could be read, None before there is any."""
        if self._gateway.clock() - self._at_s < SPEND_EVERY_S:
            return self._known
        self._at_s = self._gateway.clock()
        today = day_of(self._gateway.wall_clock())
        try:
            self._known = await self._spend.answer(self._spend.asked(today, today, ""), "day")
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            log.warning("spend of today not read", error=error)
        return self._known


class Watchers:
    """How many event streams are open; beyond WATCHERS_MAX there is no more."""

    def __init__(self) -> None:
        self.num = 0

    def enter(self) -> None:
        if self.num >= WATCHERS_MAX:
            raise Overloaded(
                f"{WATCHERS_MAX} pages watch the board already; close one and load this again",
                retry_after_s=STREAM_S_MAX,
            )
        self.num += 1

    def leave(self) -> None:
        self.num -= 1


def routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    maker, spend, watchers = BoardMaker(desk.gateway), SpendToday(desk), Watchers()

    @get("/now", opt=VIEWER)
    async def now_page(request: AnyRequest) -> Response[bytes]:
        board = maker.now()
        return page("now.html", look_of(request, desk), **shown(board, await spend.answer()))

    @get("/events/now", opt=VIEWER)
    async def events(request: AnyRequest) -> Stream:
        watchers.enter()
        stream = board_events(desk.gateway, maker, spend, look_of(request, desk))
        return Stream(
            counted(stream, watchers), media_type="text/event-stream", headers=STREAM_HEADERS
        )

    return [now_page, events]


def api_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    maker = BoardMaker(desk.gateway)

    @get("/board", opt=VIEWER, tags=["now"])
    async def read_board() -> Board:
        """Every endpoint as it is now, and who wins streams and batch; at most a second old."""
        return maker.now()

    return [read_board]


def shown(board: Board, today: SpendAnswer | None) -> dict[str, Any]:
    """What the templates of the board are given."""
    wins = {
        kind: [each.winner.endpoint for each in board.wins if each.kind == kind and each.winner]
        for kind in ("stream", "batch")
    }
    models = list(dict.fromkeys(each.model for each in board.wins))
    by_place = {(each.model, each.kind): each for each in board.wins}
    return {
        "board": board,
        "today": today,
        "wins": wins,
        "won": [(model, by_place[model, "stream"], by_place[model, "batch"]) for model in models],
    }


async def board_events(
    gateway: Gateway, maker: BoardMaker, spend: SpendToday, look: Look
) -> AsyncIterator[bytes]:
    """
    Every second the parts of the page that changed, as HTML by element id (`event: board`).

    Rows are named when the stream begins: after another policy it says `reload` and ends, as it
    does without a word when the gateway drains and after STREAM_S_MAX.
    """
    sent: dict[str, str] = {}
    first = maker.now()
    ids = [each.id for each in first.endpoints]
    models = [each.model for each in first.wins]
    ends_at_s = gateway.clock() + STREAM_S_MAX
    yield b"retry: 2000\n\n"
    while gateway.clock() < ends_at_s and not gateway.is_draining:
        board = maker.now()
        if [each.id for each in board.endpoints] != ids or [
            each.model for each in board.wins
        ] != models:
            yield b"event: reload\ndata: {}\n\n"
            return
        parts = parts_of(board, await spend.answer(), look)
        changed = {part: html for part, html in parts.items() if sent.get(part) != html}
        sent = parts
        if changed:
            yield b"event: board\ndata: " + msgspec.json.encode(changed) + b"\n\n"
        else:
            yield b": still here\n\n"  # else a client that left would never be noticed
        await asyncio.sleep(TICK_S)


def parts_of(board: Board, today: SpendAnswer | None, look: Look) -> dict[str, str]:
    """The moving parts by the id of their element, rendered by the page's own macros."""
    macros = templates().get_template("now_parts.html").module
    given = shown(board, today)
    parts = {"figures": str(macros.figures(look.t, board, today))}
    for idx, endpoint in enumerate(board.endpoints):
        parts[f"endpoint-{idx}"] = str(macros.endpoint(look.t, endpoint, idx, given["wins"]))
    for idx, (model, stream, batch) in enumerate(given["won"]):
        parts[f"win-{idx}"] = str(macros.win(look.t, model, stream, batch, idx))
    return parts


async def counted(events: AsyncIterator[bytes], watchers: Watchers) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield event
    finally:
        watchers.leave()


PAGE = NavPage("/now", "nav.now", "viewer", routes, api_routes)
