"""Three roles, each route says which it takes, and one guard that refuses what does not say.

A route states its role as `opt`: `@get("/spend", opt=VIEWER)`, `@post("/keys", opt=OPERATOR)`.
"""

from __future__ import annotations

from typing import Any, Final

from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from gateway.dashboard.sessions import Session
from gateway.errors import PermissionDenied, Unauthenticated
from gateway.store.admin_tables import ROLES

ROLE = "role"
ANYONE: Final = {ROLE: "anyone"}  # who is not logged in: the log-in itself, style sheets
SELF: Final = {ROLE: "self"}  # whoever is logged in, for a write on nobody but themselves
VIEWER: Final = {ROLE: "viewer"}  # sees all, changes nothing
OPERATOR: Final = {ROLE: "operator"}  # runs it: keys, budgets, policy, endpoints
OWNER: Final = {ROLE: "owner"}  # besides: admins, settings

Connection = ASGIConnection[Any, Any, Any, Any]


def has_role(role: str, wanted: str) -> bool:
    """Whether an admin of `role` may do what takes `wanted`; unknown words may nothing."""
    return role in ROLES and wanted in ROLES and ROLES.index(role) >= ROLES.index(wanted)


def enforce_role(connection: Connection, handler: BaseRouteHandler) -> None:
    """Litestar's guard of every route under /admin. Unauthenticated, or PermissionDenied."""
    wanted = handler.opt.get(ROLE)
    if wanted == ANYONE[ROLE]:
        return
    session: Session | None = connection.scope.get("auth")
    if session is None:
        raise Unauthenticated("log in first, at /admin/login", code="not_logged_in")
    if wanted == SELF[ROLE]:
        return
    if wanted is None or not has_role(session.admin.role, str(wanted)):
        raise PermissionDenied(f"this takes the role {wanted}; yours is {session.admin.role}")
