"""The page Audit & settings: who changed what, who may log in, how the gateway is set up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, URLEncodedBody
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from gateway.dashboard import accounts, forms, settings_data
from gateway.dashboard.api_settings import settings_api
from gateway.dashboard.look import ROOT, look_of, page
from gateway.dashboard.page import AnyRequest, Desk, Page, session_of
from gateway.dashboard.roles import OWNER, SELF, VIEWER, has_role
from gateway.dashboard.settings_data import (
    AdminChange,
    AdminIssued,
    AdminWanted,
    PasswordChange,
    RetentionWanted,
)
from gateway.errors import ApiError
from gateway.retention import AGES
from gateway.store.admin_tables import ROLES

Form = URLEncodedBody[dict[str, str]]
HERE = f"{ROOT}/settings"
FILTERS = ("actor", "action", "subject")


def settings_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Pages below /admin."""

    @get("/settings", opt=VIEWER)
    async def show(request: AnyRequest, before: FromQuery[int | None] = None) -> Response[Any]:
        return await _page(request, desk, before=before)

    @post("/settings/password", opt=SELF, status_code=200)
    async def change_password(request: AnyRequest, data: Form) -> Response[Any]:
        async def work() -> None:
            change = PasswordChange(current=data.get("current", ""), new=data.get("new", ""))
            await settings_data.change_password(request, desk, change)

        return await _done(request, desk, work)

    return [show, change_password]


def owner_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """What owners do: to admins, and to what is kept."""

    @post("/settings/admins", opt=OWNER, status_code=200)
    async def create_admin(request: AnyRequest, data: Form) -> Response[Any]:
        async def work() -> AdminIssued:
            wanted = AdminWanted(name=data.get("name", ""), role=data.get("role", ""))
            return await settings_data.create_admin(request, desk, wanted)

        return await _done(request, desk, work)

    @post("/settings/admins/{name:str}", opt=OWNER, status_code=200)
    async def change_admin(request: AnyRequest, name: FromPath[str], data: Form) -> Response[Any]:
        async def work() -> None:
            disabled = {"disable": True, "enable": False}.get(data.get("turn", ""))
            change = AdminChange(role=data.get("role") or None, is_disabled=disabled)
            await settings_data.change_admin(request, desk, name, change)

        return await _done(request, desk, work)

    @post("/settings/admins/{name:str}/reset", opt=OWNER, status_code=200)
    async def reset_admin(request: AnyRequest, name: FromPath[str]) -> Response[Any]:
        async def work() -> AdminIssued:
            return await settings_data.reset_admin(request, desk, name)

        return await _done(request, desk, work)

    @post("/settings/retention", opt=OWNER, status_code=200)
    async def change_retention(request: AnyRequest, data: Form) -> Response[Any]:
        async def work() -> None:
            wanted = RetentionWanted(**{name: forms.age_days(data, name) for name in AGES})
            await settings_data.change_retention(request, desk, wanted)

        return await _done(request, desk, work)

    return [create_admin, change_admin, reset_admin, change_retention]


PAGE = Page(
    path="/settings",
    title="settings.title",
    role="viewer",
    routes=lambda desk: [*settings_routes(desk), *owner_routes(desk)],
    api_routes=settings_api,
)


async def _done(
    request: AnyRequest, desk: Desk, work: Callable[[], Awaitable[AdminIssued | None]]
) -> Response[Any]:
    """Do a write; then back to the page, or the page with the new password or the refusal."""
    try:
        issued = await work()
    except ApiError as error:
        return await _page(request, desk, error=error)
    if issued is None:
        return Redirect(HERE, status_code=303)
    return await _page(request, desk, issued=issued)


async def _page(
    request: AnyRequest,
    desk: Desk,
    *,
    before: int | None = None,
    issued: AdminIssued | None = None,
    error: ApiError | None = None,
) -> Response[Any]:
    query = {name: request.query_params.get(name, "")[:200] for name in FILTERS}
    found = await settings_data.list_events(desk, query, before=before)
    wanted = {name: value for name, value in query.items() if value}
    more = "" if found.next is None else urlencode({**wanted, "before": found.next})
    return page(
        "settings.html",
        look_of(request, desk),
        status=error.status if error is not None else 200,
        problem=error.message if error is not None else "",
        issued=issued,
        events=found.events,
        more=more,
        query=query,
        admins=await accounts.list_admins(desk.gateway.store),
        roles=ROLES,
        is_owner=has_role(session_of(request).admin.role, "owner"),
        settings=await settings_data.settings_shown(desk),
        detail_of=settings_data.detail_shown,
        moment=forms.moment,
    )
