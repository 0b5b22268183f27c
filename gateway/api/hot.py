"""The hot surfaces as one raw ASGI callable: route, check, hand to the pipeline, map every error.

Mounted inside the Litestar app with no middleware of its own. A raw mount receives every method
and none of the framework's limits, so method, Host, framing, size and deadline are checked here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Container

import structlog

from gateway.api.answers import count_tokens, list_models, show_model, show_request
from gateway.api.exchange import ClientLeft, Exchange, Receive, Scope, Send
from gateway.api.idempotency import serve_once
from gateway.api.problems import error_answer, id_headers
from gateway.errors import Draining, InvalidRequest, MethodNotAllowed, NotFound
from gateway.pipeline import Gateway, Inbound, serve
from gateway.store.idempotency import checked_key
from gateway.wire.pieces import SURFACE_DIALECT, Dialect, Surface

log = structlog.get_logger()

POST_SURFACES: dict[str, Surface] = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/embeddings": Surface.EMBEDDINGS,
    "/v1/messages": Surface.MESSAGES,
    "/v1/messages/count_tokens": Surface.COUNT_TOKENS,
}
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::\d{1,5})?")

GetHandler = Callable[[Gateway, Exchange, str], Awaitable[None]]
# Exactly this path or, behind a slash, all below it; the rest is handed to the handler.
GET_HANDLERS: dict[str, GetHandler] = {
    "/v1/models": list_models,
    "/v1/models/": show_model,
    "/v1/requests/": show_request,
}


# Answers a path of its own and says so; False leaves it to the paths here.
Beside = Callable[[Exchange], Awaitable[bool]]


class HotApp:
    """The ASGI callable under `/v1`. `beside`: paths that are not hot but live here too."""

    def __init__(self, gateway: Gateway, beside: Beside | None = None) -> None:
        self._gateway = gateway
        self._beside = beside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        gateway = self._gateway
        exchange = Exchange(scope, receive, send)
        request_id = gateway.new_request_id()
        surface = POST_SURFACES.get(exchange.path)
        dialect = dialect_of(exchange.path, exchange.headers)
        received_at_s = gateway.clock()
        exchange.extra_headers.extend(id_headers(dialect, request_id))
        gateway.metrics.in_flight.inc()
        try:
            await self._route(exchange, surface, request_id, received_at_s)
        except ClientLeft:
            pass
        except asyncio.CancelledError:
            exchange.gone.set()
            raise
        except Exception as error:
            await _refuse(exchange, error, dialect, request_id)
        finally:
            await exchange.close()
            gateway.metrics.in_flight.dec()
            name = surface.value if surface is not None else "other"
            overhead_s = gateway.overhead_s.pop(request_id, 0.0)
            gateway.metrics.observe_request(
                name, exchange.status or 499, gateway.clock() - received_at_s, overhead_s
            )

    async def _route(
        self, exchange: Exchange, surface: Surface | None, request_id: str, received_at_s: float
    ) -> None:
        gateway = self._gateway
        check_host(exchange.headers.get("host", ""), gateway.allowed_hosts)
        exchange.refuse_ambiguous_framing()
        if surface is None:
            if self._beside is None or not await self._beside(exchange):
                await self._get(exchange, request_id)
            return
        if exchange.method != "POST":
            raise MethodNotAllowed(exchange.path, exchange.method, allow="POST")
        if gateway.is_draining:
            raise Draining("the gateway is shutting down; send the request again", retry_after_s=2)
        # Before the body is read: whoever has no key may not make us buffer megabytes.
        caller = await gateway.authenticate(exchange.headers)
        wait_from_s = gateway.clock()
        body = await exchange.read_body(gateway.policy().limits.body_bytes_max)
        inbound = Inbound(
            request_id=request_id,
            surface=surface,
            caller=caller,
            headers=exchange.headers,
            body=body,
            client=exchange,
            received_at_s=received_at_s,
            body_wait_s=gateway.clock() - wait_from_s,
        )
        key = exchange.headers.get("idempotency-key", "")
        if surface is Surface.COUNT_TOKENS:
            await count_tokens(gateway, exchange, inbound)
        elif key:
            await serve_once(gateway, exchange, inbound, checked_key(key))
        else:
            await serve(gateway, inbound)

    async def _get(self, exchange: Exchange, request_id: str) -> None:
        path = exchange.path
        # All below a slash: `/v1/models/a/b` is the model `a/b`.
        route = path if path in GET_HANDLERS else path[: path.find("/", len("/v1/")) + 1]
        handler = GET_HANDLERS.get(route)
        if handler is None:
            raise NotFound(f"there is no {exchange.method} {path}; see the API reference for paths")
        if exchange.method != "GET":
            raise MethodNotAllowed(path, exchange.method, allow="GET")
        await handler(self._gateway, exchange, path.removeprefix(route))


def check_host(host: str, allowed: frozenset[str]) -> None:
    """Refuse a malformed Host, or one that is not ours (a rebinding page in a browser)."""
    if not _HOST.fullmatch(host):
        raise InvalidRequest("the Host header is missing or malformed")
    if allowed:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if not is_allowed_host(name.lower(), allowed):
            raise InvalidRequest(
                f"this gateway does not answer for host {name!r}; "
                "add it to LOOPROUTER_ALLOWED_HOSTS"
            )


def is_allowed_host(name: str, allowed: frozenset[str]) -> bool:
    """`*.example.com` allows subdomains of any depth, not example.com itself."""
    if name in allowed:
        return True
    parts = name.split(".")
    return any("*." + ".".join(parts[idx:]) in allowed for idx in range(1, len(parts)))


def dialect_of(path: str, headers: Container[str]) -> Dialect:
    """The dialect of whoever asks for this path; `headers`: their names in lower case."""
    surface = POST_SURFACES.get(path)
    if surface is not None:
        return SURFACE_DIALECT[surface]
    # /v1/models and unknown paths are shared: the Anthropic SDKs always send their version.
    if "anthropic-version" in headers or path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI


async def _refuse(exchange: Exchange, error: Exception, dialect: Dialect, request_id: str) -> None:
    status, headers, body, api_error = error_answer(error, dialect, request_id)
    if exchange.gone.is_set():
        return
    if exchange.is_started:
        # The relay has told the client in band; only the log still lacks it.
        log.warning("failed after the answer began", request_id=request_id, error=api_error.summary)
        await exchange.finish()
        return
    if status >= 500:
        log.warning("refused", request_id=request_id, status=status, error=api_error.summary)
    if not exchange.is_finished and status in (408, 413):
        # The rest of the body is not read, so the connection cannot carry another request.
        headers.append((b"connection", b"close"))
    try:
        await exchange.answer(status, headers, body)
    except OSError:
        exchange.gone.set()
