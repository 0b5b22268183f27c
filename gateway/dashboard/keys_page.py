"""The page Keys & budgets: create, change, rotate and revoke keys; what is left of each budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, URLEncodedBody
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from gateway.core import BUDGET_PERIODS
from gateway.dashboard import forms, keys_data
from gateway.dashboard.api_keys import keys_api
from gateway.dashboard.keys_data import BudgetWanted, KeyIssued, KeyWanted, NewKeyWanted
from gateway.dashboard.look import ROOT, look_of, page
from gateway.dashboard.page import AnyRequest, Desk, Page, actor_of, session_of
from gateway.dashboard.roles import OPERATOR, VIEWER, has_role
from gateway.errors import ApiError
from gateway.wire.pieces import Surface

Fields = Mapping[str, str]
Form = URLEncodedBody[dict[str, str]]


def keys_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Pages below /admin; every write answers with a redirect, or shows a new secret once."""

    @get("/keys", opt=VIEWER)
    async def show_keys(
        request: AnyRequest, tenant: FromQuery[str] = "", after: FromQuery[str] = ""
    ) -> Response[Any]:
        return await _list(request, desk, tenant, after=after)

    @post("/keys", opt=OPERATOR)
    async def create_key(request: AnyRequest, data: Form) -> Response[Any]:
        tenant = data.get("tenant", "")
        try:
            owner = await keys_data.tenant_of(desk, tenant)
            issued = await keys_data.create_key(desk, owner, new_key(data), actor=actor_of(request))
        except ApiError as error:
            return await _list(request, desk, tenant, error=error, asked=data)
        return await _list(request, desk, tenant, issued=issued, status=201)

    @get("/keys/{key_id:str}", opt=VIEWER)
    async def show_key(
        request: AnyRequest, key_id: FromPath[str], tenant: FromQuery[str] = ""
    ) -> Response[Any]:
        return await _one(request, desk, tenant, key_id)

    @post("/keys/{key_id:str}", opt=OPERATOR, status_code=200)
    async def change_key(request: AnyRequest, key_id: FromPath[str], data: Form) -> Response[Any]:
        async def work(tenant: Any) -> None:
            wanted = changed_key(data)
            await keys_data.change_key(desk, tenant, key_id, wanted, actor=actor_of(request))

        return await _done(request, desk, key_id, data, work)

    @post("/keys/{key_id:str}/rotate", opt=OPERATOR, status_code=200)
    async def rotate_key(request: AnyRequest, key_id: FromPath[str], data: Form) -> Response[Any]:
        async def work(tenant: Any) -> KeyIssued:
            overlap_s = forms.duration_s(data, "overlap")
            return await keys_data.rotate_key(
                desk, tenant, key_id, overlap_s=overlap_s, actor=actor_of(request)
            )

        return await _done(request, desk, key_id, data, work)

    @post("/keys/{key_id:str}/revoke", opt=OPERATOR, status_code=200)
    async def revoke_key(request: AnyRequest, key_id: FromPath[str], data: Form) -> Response[Any]:
        async def work(tenant: Any) -> None:
            await keys_data.revoke_key(desk, tenant, key_id, actor=actor_of(request))

        return await _done(request, desk, key_id, data, work)

    return [show_keys, create_key, show_key, change_key, rotate_key, revoke_key]


def budget_routes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Forms that set and end budgets; `key` says which key's page they stand on, "" = the list."""

    @post("/budgets", opt=OPERATOR, status_code=200)
    async def set_budget(request: AnyRequest, data: Form) -> Response[Any]:
        async def work(tenant: Any) -> None:
            wanted = BudgetWanted(
                limit_usd=data.get("limit_usd", ""), period=data.get("period", "")
            )
            kind, _, scope_id = data.get("scope", "").partition(":")
            await keys_data.set_budget(
                desk,
                tenant,
                wanted,
                scope_kind=kind,
                scope_id=scope_id,
                actor=actor_of(request),
            )

        return await _done(request, desk, data.get("key", ""), data, work)

    @post("/budgets/{budget_id:str}/end", opt=OPERATOR, status_code=200)
    async def end_budget(
        request: AnyRequest, budget_id: FromPath[str], data: Form
    ) -> Response[Any]:
        async def work(tenant: Any) -> None:
            await keys_data.end_budget(desk, tenant, budget_id, actor=actor_of(request))

        return await _done(request, desk, data.get("key", ""), data, work)

    return [set_budget, end_budget]


PAGE = Page(
    path="/keys",
    title="keys.title",
    role="viewer",
    routes=lambda desk: [*keys_routes(desk), *budget_routes(desk)],
    api_routes=keys_api,
)


def changed_key(fields: Fields) -> KeyWanted:
    """The form's fields as the API would take them."""
    return KeyWanted(
        name=fields.get("name", "").strip(),
        models=forms.words(fields, "models"),
        routes=forms.words(fields, "routes"),
        requests_per_minute=forms.whole_number(fields, "requests_per_minute"),
        tokens_per_minute=forms.whole_number(fields, "tokens_per_minute"),
        concurrency_max=forms.whole_number(fields, "concurrency_max"),
        no_explore=forms.is_checked(fields, "no_explore"),
        expires_at=forms.last_day(fields, "expires"),
    )


def new_key(fields: Fields) -> NewKeyWanted:
    """The same for a new key: its team, and a budget if one is given."""
    limit_usd = fields.get("limit_usd", "").strip()
    budget = BudgetWanted(limit_usd=limit_usd, period=fields.get("period", "") or "total")
    common = changed_key(fields)
    values = {name: getattr(common, name) for name in KeyWanted.__struct_fields__}
    return NewKeyWanted(
        **values,
        team=fields.get("team", "") or "default",
        budgets=(budget,) if limit_usd else (),
    )


async def _done(
    request: AnyRequest,
    desk: Desk,
    key_id: str,
    fields: Fields,
    work: Callable[[Any], Awaitable[KeyIssued | None]],
) -> Response[Any]:
    """Do a write; then back to its page, or that page with the new secret or the refusal on it."""
    tenant = fields.get("tenant", "")
    issued: KeyIssued | None = None
    problem: ApiError | None = None
    try:
        issued = await work(await keys_data.tenant_of(desk, tenant))
    except ApiError as error:
        problem = error
    if issued is None and problem is None:
        path = f"{ROOT}/keys/{key_id}" if key_id else f"{ROOT}/keys"
        return Redirect(f"{path}?{urlencode({'tenant': tenant})}", status_code=303)
    if key_id:
        return await _one(request, desk, tenant, key_id, issued=issued, error=problem)
    return await _list(request, desk, tenant, error=problem)


async def _list(
    request: AnyRequest,
    desk: Desk,
    tenant: str,
    *,
    after: str = "",
    issued: KeyIssued | None = None,
    error: ApiError | None = None,
    asked: Fields | None = None,
    status: int = 200,
) -> Response[Any]:
    owner = await keys_data.tenant_of(desk, tenant)
    return page(
        "keys.html",
        look_of(request, desk),
        status=error.status if error is not None else status,
        found=await keys_data.list_keys(desk, owner, after=after),
        tenants=await keys_data.tenants_of(desk),
        asked=asked or {},
        **_common(request, desk, issued, error),
    )


async def _one(
    request: AnyRequest,
    desk: Desk,
    tenant: str,
    key_id: str,
    *,
    issued: KeyIssued | None = None,
    error: ApiError | None = None,
) -> Response[Any]:
    owner = await keys_data.tenant_of(desk, tenant)
    return page(
        "key.html",
        look_of(request, desk),
        status=error.status if error is not None else 200,
        tenant=owner.name,
        key=await keys_data.find_key(desk, owner, key_id),
        **_common(request, desk, issued, error),
    )


def _common(
    request: AnyRequest, desk: Desk, issued: KeyIssued | None, error: ApiError | None
) -> dict[str, Any]:
    return {
        "issued": issued,
        "problem": error.message if error is not None else "",
        "may_write": has_role(session_of(request).admin.role, "operator"),
        "surfaces": sorted(surface.value for surface in Surface),
        "models": sorted(desk.gateway.policy().models),
        "periods": BUDGET_PERIODS,
        "moment": forms.moment,
        "day": forms.day,
    }
