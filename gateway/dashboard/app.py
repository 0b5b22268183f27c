"""The dashboard as one Litestar router at /admin, with its own middleware, guards and errors."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import msgspec
import structlog
from litestar import Litestar, Response, Router, get
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from gateway import __version__
from gateway.batch.lane import BatchLane
from gateway.dashboard.login import login_routes, session_api
from gateway.dashboard.look import ROOT, look_of, page
from gateway.dashboard.look_routes import look_routes
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.pages import PAGES
from gateway.dashboard.passwords import PasswordChecker
from gateway.dashboard.roles import VIEWER, enforce_role
from gateway.dashboard.security import BODY_BYTES_MAX, HEADERS, Gate
from gateway.dashboard.sessions import Sessions
from gateway.dashboard.throttle import LoginThrottle
from gateway.errors import ApiError, Unauthenticated
from gateway.pipeline import Gateway
from gateway.wire.errors import error_body
from gateway.wire.pieces import Dialect

API = ROOT + "/api/"

log = structlog.get_logger()


def dashboard_routes(
    gateway: Gateway, lane: BatchLane | None = None
) -> list[ControllerRouterHandler]:
    """What `app` hangs beside the hot mount."""
    return [dashboard_router(desk_of(gateway, lane))]


def desk_of(gateway: Gateway, lane: BatchLane | None = None) -> Desk:
    """The dashboard's own long-lived objects."""
    return Desk(
        gateway=gateway,
        sessions=Sessions(gateway.store, gateway.settings.pepper(), gateway.wall_clock),
        passwords=PasswordChecker(),
        throttle=LoginThrottle(gateway.clock),
        batch=lane,
    )


def dashboard_router(desk: Desk) -> Router:
    """Pages, the JSON API below them, and what stands before both."""

    @cache
    def schema() -> bytes:
        return openapi_document(desk)

    @get("/openapi.json", opt=VIEWER)
    async def openapi() -> Response[bytes]:
        # It takes a second of work the first time, in which requests go on.
        made = await asyncio.to_thread(schema)
        return Response(made, media_type="application/json")

    handlers = [handler for each in PAGES for handler in each.routes(desk)]
    return Router(
        ROOT,
        route_handlers=[
            *look_routes(),
            *login_routes(desk),
            *handlers,
            Router("/api", route_handlers=[*api_routes(desk), openapi]),
        ],
        middleware=[Gate(desk)],
        guards=[enforce_role],
        exception_handlers={
            ApiError: lambda request, error: _refused(request, desk, error),
            HTTPException: lambda request, error: _plain(request, desk, error),
            Exception: lambda request, error: _unexpected(request, desk, error),
        },
        request_max_body_size=BODY_BYTES_MAX,
    )


def api_routes(desk: Desk) -> list[ControllerRouterHandler]:
    """Handlers of the admin JSON API, relative to /admin/api."""
    return [*session_api(desk), *(route for each in PAGES for route in each.api_routes(desk))]


def openapi_document(desk: Desk) -> bytes:
    """The OpenAPI 3.1 document of the admin API, made by Litestar from the handlers' types."""
    config = OpenAPIConfig(
        title="LoopRouter admin API",
        version=__version__,
        description=(
            "Log in with POST /admin/api/session. Each write takes the header x-csrf-token "
            "(from GET /admin/api/session) and an Origin of the gateway's own."
        ),
        use_handler_docstrings=True,
    )
    app = Litestar(
        route_handlers=[
            Router(ROOT, route_handlers=[Router("/api", route_handlers=api_routes(desk))])
        ],
        openapi_config=config,
        logging_config=None,
    )
    return msgspec.json.encode(app.openapi_schema.to_schema())


def _refused(request: AnyRequest, desk: Desk, error: ApiError) -> Response[Any]:
    """Our own refusal, as JSON or as a page; who is not logged in is sent to the log-in."""
    if not _is_api(request) and isinstance(error, Unauthenticated):
        path = request.url.path
        target = "/admin/login" + (f"?next={path}" if request.method == "GET" else "")
        if "hx-request" in request.headers:
            return Response(b"", status_code=401, headers={**HEADERS, "hx-redirect": target})
        return Redirect(target, status_code=303, headers=HEADERS)
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return _answer(
        request,
        desk,
        error.status,
        error.message,
        type=error.type,
        code=error.code,
        headers=headers,
    )


def _plain(request: AnyRequest, desk: Desk, error: HTTPException) -> Response[Any]:
    """What Litestar refuses by itself: a body of another form, too large, a wrong method."""
    detail = str(error.detail)
    extra = getattr(error, "extra", None)
    if isinstance(extra, list) and extra and isinstance(extra[0], dict):
        detail = f"{detail}: {extra[0].get('message', '')}"
    return _answer(request, desk, error.status_code, detail, headers=dict(error.headers or {}))


def _unexpected(request: AnyRequest, desk: Desk, error: Exception) -> Response[Any]:
    """Our own bug, or a database that is away: the log has the cause, the answer does not."""
    log.error("unexpected error", path=request.url.path, error=error, exc_info=error)
    message = "the gateway met an unexpected error; its log has the cause"
    return _answer(request, desk, 500, message, type="server_error")


def _answer(
    request: AnyRequest,
    desk: Desk,
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response[Any]:
    headers = {**HEADERS, **(headers or {})}
    if _is_api(request):
        body = error_body(Dialect.OPENAI, status=status, type=type, message=message, code=code)
        return Response(body, status_code=status, media_type="application/json", headers=headers)
    if "visit" not in request.scope.get("state", {}):  # refused before anyone was looked at
        return Response(
            message.encode(), status_code=status, media_type="text/plain", headers=headers
        )
    answer = page("error.html", look_of(request, desk), status=status, message=message)
    answer.headers.update(headers)
    return answer


def _is_api(request: AnyRequest) -> bool:
    return request.url.path.startswith(API)
