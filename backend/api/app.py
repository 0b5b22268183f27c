"""The whole server as one raw ASGI callable: route, check, hand on, map every error."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping

from backend.api.auth import check_local
from backend.api.chat import chat_completions
from backend.api.completions import completions
from backend.api.context import Asked, Server
from backend.api.exchange import ClientLeft, Exchange, HttpProblem, Receive, Scope, Send
from backend.api.pages import (
    health,
    list_models,
    not_found,
    show_load,
    show_metrics,
    show_model,
)
from backend.api.problems import problem_answer

CLIENT_LEFT_STATUS = 499  # nginx's, in metrics only

Page = Callable[[Server, Exchange], Awaitable[None]]
Handler = Callable[[Asked], Awaitable[None]]

PAGES: Mapping[str, Page] = {
    "/health": health,
    "/metrics": show_metrics,
    "/v1/models": list_models,
    "/v1/load": show_load,
}
OPEN_PAGES = frozenset({"/health"})  # a supervisor has no key
HANDLERS: Mapping[str, Handler] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
}


class BackendApp:
    """The ASGI callable."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._metrics = server.service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        exchange = Exchange(scope, receive, send)
        request_id = uuid.uuid4().hex
        exchange.extra_headers.append((b"x-request-id", request_id.encode()))
        began_at_s = time.monotonic()
        self._metrics.in_flight.inc()
        try:
            await self._answer(exchange, request_id)
        except ClientLeft:
            exchange.status = CLIENT_LEFT_STATUS
        finally:
            exchange.close()
            self._metrics.in_flight.dec()
            route = _route_name(exchange.path)
            self._metrics.requests.labels(route, str(exchange.status)).inc()
            self._metrics.request_s.labels(route).observe(time.monotonic() - began_at_s)

    async def _answer(self, exchange: Exchange, request_id: str) -> None:
        try:
            await self._route(exchange, request_id)
        except (ClientLeft, asyncio.CancelledError):
            raise
        except Exception as error:
            if exchange.is_started:
                raise
            await exchange.answer(*problem_answer(error))

    async def _route(self, exchange: Exchange, request_id: str) -> None:
        if self._server.local_names is not None:
            check_local(exchange.headers, self._server.local_names)
        handler = HANDLERS.get(exchange.path)
        if handler is None:
            await self._page(exchange)
            return
        _check_method(exchange, "POST")
        key_digest = self._server.keys.check(exchange.headers)
        # Before the body is read: it may be megabytes.
        self._server.service.check_open()
        body = await exchange.read_body(self._server.body_bytes_max)
        asked = Asked(
            server=self._server,
            exchange=exchange,
            request_id=request_id,
            key_digest=key_digest,
            body=body,
        )
        await handler(asked)

    async def _page(self, exchange: Exchange) -> None:
        page = PAGES.get(exchange.path)
        if page is None:
            page = show_model if exchange.path.startswith("/v1/models/") else not_found
        else:
            _check_method(exchange, "GET", "HEAD")
        if exchange.path not in OPEN_PAGES:
            self._server.keys.check(exchange.headers)
        await page(self._server, exchange)


def _check_method(exchange: Exchange, *wanted: str) -> None:
    if exchange.method not in wanted:
        raise HttpProblem(
            405,
            f"{exchange.path} takes {' and '.join(wanted)}, not {exchange.method[:20]}",
            code="method_not_allowed",
            headers=[(b"allow", ", ".join(wanted).encode())],
        )


def _route_name(path: str) -> str:
    """A label of bounded number."""
    return path if path in HANDLERS or path in PAGES else "other"
