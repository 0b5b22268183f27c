"""Stands before every route under /admin: host, transport, session, Origin and CSRF token.

Nothing here is on the way of an API request: it is the middleware of the /admin router only.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Final

from litestar.connection import Request
from litestar.datastructures import Cookie, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.hot import check_host
from gateway.api.site import asking_address
from gateway.dashboard.page import AnyRequest, Desk
from gateway.dashboard.sessions import ABSOLUTE_S, Session, is_token, new_token
from gateway.errors import PermissionDenied
from gateway.settings import Settings

# __Host-: the browser takes it only with Secure and Path=/, and from no other host.
SECURE_COOKIE: Final = "__Host-looprouter_admin"
LOCAL_COOKIE: Final = "looprouter_admin"
CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FORM_TYPE: Final = "application/x-www-form-urlencoded"
BODY_BYTES_MAX: Final = 1024 * 1024
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    # Not no-referrer: with it browsers send `Origin: null` along with a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Visit:
    """One request to the dashboard, seen from outside."""

    origin: str  # ours, as the browser writes it: https://gateway.example
    address: str  # whose log-ins are counted together; an IPv6 network of 64 bits
    is_secure: bool  # TLS, by the word of a trusted proxy
    is_loopback: bool  # plain HTTP that never leaves this machine
    token: str  # of the cookie, or a new one that `cookie_of` hands out
    session: Session | None = None

    def cookie_of(self, token: str) -> Cookie:
        """The cookie that holds a session's or a visitor's token."""
        return Cookie(
            key=LOCAL_COOKIE if self.is_loopback else SECURE_COOKIE,
            value=token,
            path="/",
            max_age=int(ABSOLUTE_S),
            httponly=True,
            secure=not self.is_loopback,
            samesite="strict",
        )


def visit_of(request: AnyRequest) -> Visit:
    """What the gate found out about this request."""
    visit: Visit = request.scope["state"]["visit"]
    return visit


class Gate(ASGIMiddleware):
    """Refuses what no page of ours would send, and finds out who is logged in."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def __deepcopy__(self, memo: dict[int, Any]) -> Gate:
        # Litestar copies routers with all that hangs on them; there is one gateway.
        return self

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request: AnyRequest = Request(scope, receive)
        scope["user"] = scope["auth"] = None
        check_host(request.headers.get("host", ""), self._desk.gateway.allowed_hosts)
        visit = look_at(request, self._desk.gateway.settings)
        session = await self._desk.sessions.find(visit.token)
        visit = Visit(
            origin=visit.origin,
            address=visit.address,
            is_secure=visit.is_secure,
            is_loopback=visit.is_loopback,
            token=visit.token,
            session=session,
        )
        scope.setdefault("state", {})["visit"] = visit
        scope["auth"] = session
        scope["user"] = session.admin if session is not None else None
        if request.method not in SAFE_METHODS:
            await self._check_write(request, visit)
        await next_app(scope, receive, send_guarded)

    async def _check_write(self, request: AnyRequest, visit: Visit) -> None:
        origin = request.headers.get("origin", "")
        if origin != visit.origin:
            raise PermissionDenied(
                f"a write must come from {visit.origin}, and Origin says {origin[:100]!r}; "
                "a proxy before the gateway has to leave Host as it is",
                code="foreign_origin",
            )
        sent = request.headers.get(CSRF_HEADER, "")
        if not sent and request.headers.get("content-type", "").partition(";")[0] == FORM_TYPE:
            sent = str((await request.form()).get(CSRF_FIELD, ""))
        if not self._desk.sessions.is_csrf_token(visit.token, sent):
            raise PermissionDenied(
                "the CSRF token is missing or of another session; load the page again",
                code="bad_csrf_token",
            )


def look_at(request: AnyRequest, settings: Settings) -> Visit:
    """
    From where and how a request came.

    PermissionDenied for plain HTTP over a network: passwords and cookies would travel in clear.
    """
    host = request.headers.get("host", "").lower()
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    peer = request.client.host if request.client is not None else ""
    is_proxied = any(each in request.headers for each in _PROXY_HEADERS)
    chain = ",".join(request.headers.getall("x-forwarded-for", []))
    hops = [*chain.split(","), peer] if chain else [peer]
    address = asking_address(hops, settings.trusted_proxies)
    is_trusted = is_proxied and _is_in(peer, settings)
    is_secure = is_trusted and request.headers.get("x-forwarded-proto", "") == "https"
    is_local = name in _LOCAL_NAMES and not is_secure
    if not (is_secure or is_local):
        raise PermissionDenied(
            "the dashboard is served over https, or as http://localhost on this machine; put a "
            "proxy with TLS before it that sends X-Forwarded-Proto and X-Forwarded-For, and name "
            "its address in LOOPROUTER_TRUSTED_PROXIES",
            code="needs_https",
        )
    is_loopback = is_local and not is_proxied and address is not None and address.is_loopback
    token = request.cookies.get(LOCAL_COOKIE if is_loopback else SECURE_COOKIE, "")
    return Visit(
        origin=f"{'https' if is_secure else 'http'}://{host}",
        address=_counted_together(address, peer),
        is_secure=is_secure,
        is_loopback=is_loopback,
        token=token if is_token(token) else new_token(),
    )


def _is_in(peer: str, settings: Settings) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return any(address in network for network in settings.trusted_proxies)


def _counted_together(address: Any, peer: str) -> str:
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address) if address is not None else peer
