"""Log in and out: the page, and the same as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Response, delete, get, post
from litestar.params import FromQuery, JSONBody, URLEncodedBody
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from gateway.dashboard import accounts
from gateway.dashboard.look import look_of, page
from gateway.dashboard.look_routes import safe_next
from gateway.dashboard.page import AnyRequest, Desk, session_of
from gateway.dashboard.pages import pages_for
from gateway.dashboard.roles import ANYONE, SELF
from gateway.dashboard.security import Visit, visit_of
from gateway.errors import RateLimited, Unauthenticated
from gateway.store import admins
from gateway.store.audit import WHOLE_GATEWAY, AuditEvent, append_events

NAME_CHARS_MAX = 64


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name and password of an admin."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(name={self.name!r})"


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """Who is logged in, and the token that each write must carry in `x-csrf-token`."""

    csrf: str
    name: str | None = None
    role: str | None = None
    expires_at: float | None = None  # unix seconds


def login_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Log-in and log-out as pages."""

    @get("/login", opt=ANYONE)
    async def login_page(request: AnyRequest, next: FromQuery[str] = "") -> Response[Any]:
        visit = visit_of(request)
        if visit.session is not None:
            return _redirect(safe_next(next))
        return await _page(request, desk, next=next)

    @post("/login", opt=ANYONE, status_code=200)
    async def log_in_by_form(
        request: AnyRequest, data: URLEncodedBody[dict[str, str]]
    ) -> Response[Any]:
        t = look_of(request, desk).t
        name, next = data.get("name", ""), data.get("next", "")
        try:
            token = await log_in(request, desk, name, data.get("password", ""))
        except Unauthenticated as error:
            problem = t("login.wrong")
            return await _page(
                request, desk, next=next, name=name, problem=problem, status=error.status
            )
        except RateLimited as error:
            problem = t("login.slow_down", minutes=math.ceil((error.retry_after_s or 0) / 60))
            return await _page(
                request, desk, next=next, name=name, problem=problem, status=error.status
            )
        answer = _redirect(safe_next(next))
        answer.set_cookie(visit_of(request).cookie_of(token))
        return answer

    @post("/logout", opt=SELF, status_code=200)
    async def log_out_by_form(request: AnyRequest) -> Response[Any]:
        await log_out(request, desk)
        answer = _redirect("/admin/login")
        forget_cookie(answer, visit_of(request))
        return answer

    @get("/", opt=SELF)
    async def home(request: AnyRequest) -> Response[Any]:
        pages = pages_for(session_of(request).admin.role)
        if pages:
            return _redirect("/admin" + pages[0].path)
        return page("welcome.html", look_of(request, desk))

    return [login_page, log_in_by_form, log_out_by_form, home]


def session_api(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """The same as JSON, for scripts: GET, then POST with its `csrf`, the cookie and Origin."""

    @get("/session", opt=ANYONE, tags=["session"])
    async def read_session(request: AnyRequest) -> Response[Who]:
        """Who is logged in; also gives a visitor the cookie and token to log in with."""
        visit = visit_of(request)
        answer = Response(_who(desk, visit, visit.token))
        if visit.session is None:
            answer.set_cookie(visit.cookie_of(visit.token))
        return answer

    @post("/session", opt=ANYONE, tags=["session"], status_code=200)
    async def begin_session(request: AnyRequest, data: JSONBody[Credentials]) -> Response[Who]:
        """Log in. 401 for a wrong name or password alike, 429 after too many tries."""
        visit = visit_of(request)
        token = await log_in(request, desk, data.name, data.password)
        session = await desk.sessions.find(token)
        assert session is not None
        answer = Response(
            Who(
                csrf=desk.sessions.csrf_token(token),
                name=session.admin.name,
                role=session.admin.role,
                expires_at=session.row.expires_at,
            )
        )
        answer.set_cookie(visit.cookie_of(token))
        return answer

    @delete("/session", opt=SELF, tags=["session"])
    async def end_session(request: AnyRequest) -> Response[None]:
        """Log out."""
        await log_out(request, desk)
        answer: Response[None] = Response(None, status_code=204)
        forget_cookie(answer, visit_of(request))
        return answer

    return [read_session, begin_session, end_session]


async def log_in(request: AnyRequest, desk: Desk, name: str, password: str) -> str:
    """
    The token of a new session. Unauthenticated or RateLimited otherwise.

    An unknown name, a disabled admin and a wrong password take the same time and read the same.
    """
    visit = visit_of(request)
    name = name.strip().lower()[:NAME_CHARS_MAX]
    desk.throttle.begin(visit.address, name)
    async with desk.gateway.store.read() as connection:
        found = await admins.find_admin(connection, name)
    is_open = found is not None and found[0].disabled_at is None
    password_hash = found[1] if found is not None and is_open else None
    if not await desk.passwords.is_right(password_hash, password) or found is None:
        raise Unauthenticated("name or password is wrong", code="wrong_password")
    desk.throttle.succeeded(visit.address, name)
    token = await desk.sessions.begin(
        found[0], address=visit.address, browser=request.headers.get("user-agent", "")
    )
    await _note(request, desk, "session.begin", name)
    return token


async def log_out(request: AnyRequest, desk: Desk) -> None:
    """End the session of this request."""
    session = session_of(request)
    await desk.sessions.end(session)
    await _note(request, desk, "session.end", session.admin.name)


def forget_cookie(answer: Response[Any], visit: Visit) -> None:
    """Tell the browser to drop the cookie."""
    cookie = visit.cookie_of("")
    cookie.max_age = 0
    answer.set_cookie(cookie)


def _redirect(path: str) -> Redirect:
    return Redirect(path, status_code=303)


async def _page(
    request: AnyRequest,
    desk: Desk,
    *,
    next: str,
    name: str = "",
    problem: str = "",
    status: int = 200,
) -> Response[Any]:
    has_no_admin = not await accounts.list_admins(desk.gateway.store)
    answer = page(
        "login.html",
        look_of(request, desk),
        status=status,
        next=next,
        name=name[:NAME_CHARS_MAX],
        problem=problem,
        has_no_admin=has_no_admin,
    )
    visit = visit_of(request)
    answer.set_cookie(visit.cookie_of(visit.token))
    return answer


def _who(desk: Desk, visit: Visit, token: str) -> Who:
    admin = visit.session.admin if visit.session is not None else None
    return Who(
        csrf=desk.sessions.csrf_token(token),
        name=admin.name if admin is not None else None,
        role=admin.role if admin is not None else None,
        expires_at=visit.session.row.expires_at if visit.session is not None else None,
    )


async def _note(request: AnyRequest, desk: Desk, action: str, name: str) -> None:
    event = AuditEvent(
        tenant_id=WHOLE_GATEWAY,
        at=desk.gateway.wall_clock(),
        actor=f"admin:{name}",
        action=action,
        subject=name,
        detail={"address": visit_of(request).address},
    )
    async with desk.gateway.store.begin() as connection:
        await append_events(connection, [event])
