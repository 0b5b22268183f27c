"""The Litestar application: the hot mount, the site, and nothing else on the way of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from litestar import Litestar, Request, Response, asgi
from litestar.exceptions import HTTPException
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ControllerRouterHandler, Receive, Scope, Send

from gateway.api.hot import Beside, HotApp, dialect_of
from gateway.api.site import site_routes
from gateway.pipeline import Gateway
from gateway.wire.errors import error_body

log = structlog.get_logger()


class _LeanLitestar(Litestar):
    """Without the plugins for pydantic and attrs: half a second at start, and nobody uses them.

    The method is Litestar's own affair. Should it go, the start is slower and nothing else.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def build_litestar(
    gateway: Gateway,
    beside: Beside | None = None,
    more_routes: Sequence[ControllerRouterHandler] = (),
) -> Litestar:
    """Routes only: middleware (sessions, CSRF, logging) belongs to routers that need it."""
    hot_app = HotApp(gateway, beside)

    @asgi("/v1", is_mount=True, copy_scope=False)
    async def hot(scope: Scope, receive: Receive, send: Send) -> None:
        await hot_app(scope, receive, send)  # type: ignore[arg-type]  # the same ASGI types, other aliases

    return _LeanLitestar(
        route_handlers=[hot, *site_routes(gateway), *more_routes],
        exception_handlers={HTTPException: _plain_refusal, Exception: _unexpected},
        openapi_config=None,
        debug=False,
        logging_config=None,  # `measure.logs` has set it up; Litestar would put a form of its own
    )


def _unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Our own bug, or a database that is away: the log has the cause, the answer does not."""
    log.error("unexpected error", path=request.url.path, error=error, exc_info=error)
    body = error_body(
        dialect_of(request.scope["path"], request.headers),
        status=500,
        type="server_error",
        message="the gateway met an unexpected error; its log has the cause",
    )
    return Response(body, status_code=500, media_type="application/json")


def _plain_refusal(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What Litestar refuses by itself (unknown paths, a bad Host), in the caller's dialect."""
    is_unknown = error.status_code == 404
    body = error_body(
        dialect_of(request.scope["path"], request.headers),
        status=error.status_code,
        type="not_found_error" if is_unknown else "invalid_request_error",
        message=f"{error.detail}; the API lives under /v1" if is_unknown else str(error.detail),
        param=None,
        code=None,
        request_id="",
    )
    return Response(body, status_code=error.status_code, media_type="application/json")
