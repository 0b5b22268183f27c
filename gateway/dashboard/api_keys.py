"""Keys and budgets in the admin JSON API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from litestar import delete, get, patch, post, put
from litestar.params import FromPath, FromQuery, JSONBody
from litestar.types import ControllerRouterHandler

from gateway.dashboard import keys_data
from gateway.dashboard.keys_data import (
    BudgetWanted,
    KeyIssued,
    KeyList,
    KeyOpened,
    KeyShown,
    KeyWanted,
)
from gateway.dashboard.keys_data import NewKeyWanted as New
from gateway.dashboard.page import AnyRequest, Desk, actor_of
from gateway.dashboard.roles import OPERATOR, VIEWER

TAGS = ["keys"]


class Overlap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the old secret still works, in seconds; at most a day."""

    overlap_s: float = 0.0


class BudgetOf(BudgetWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget and what it is for. For the tenant itself `scope_id` may be left out."""

    scope_kind: str  # "tenant" | "team" | "key"
    scope_id: str = ""


def keys_api(desk: Desk) -> Sequence[ControllerRouterHandler]:
    """Handlers below /admin/api. `tenant` is a tenant's name everywhere."""
    return [*_reads(desk), *_writes(desk), *_budgets(desk)]


def _reads(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @get("/keys", opt=VIEWER, tags=TAGS)
    async def list_keys(tenant: FromQuery[str] = "", after: FromQuery[str] = "") -> KeyList:
        """Keys of a tenant, 200 a page, with what is left of each budget."""
        return await keys_data.list_keys(desk, await keys_data.tenant_of(desk, tenant), after=after)

    @get("/keys/{key_id:str}", opt=VIEWER, tags=TAGS)
    async def read_key(key_id: FromPath[str], tenant: FromQuery[str] = "") -> KeyOpened:
        """One key, what it spent of late, and how its budgets burn down."""
        return await keys_data.find_key(desk, await keys_data.tenant_of(desk, tenant), key_id)

    return [list_keys, read_key]


def _writes(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @post("/keys", opt=OPERATOR, tags=TAGS)
    async def create_key(
        request: AnyRequest, data: JSONBody[New], tenant: FromQuery[str] = ""
    ) -> KeyIssued:
        """Make a key. Its text is in this answer and nowhere else."""
        owner = await keys_data.tenant_of(desk, tenant)
        return await keys_data.create_key(desk, owner, data, actor=actor_of(request))

    @patch("/keys/{key_id:str}", opt=OPERATOR, tags=TAGS)
    async def change_key(
        request: AnyRequest,
        key_id: FromPath[str],
        data: JSONBody[KeyWanted],
        tenant: FromQuery[str] = "",
    ) -> KeyShown:
        """Replace a key's name, scopes, limits and expiry by what is given."""
        owner = await keys_data.tenant_of(desk, tenant)
        await keys_data.change_key(desk, owner, key_id, data, actor=actor_of(request))
        return await keys_data.find_key(desk, owner, key_id)

    @post("/keys/{key_id:str}/rotate", opt=OPERATOR, tags=TAGS)
    async def rotate_key(
        request: AnyRequest,
        key_id: FromPath[str],
        data: JSONBody[Overlap],
        tenant: FromQuery[str] = "",
    ) -> KeyIssued:
        """Give a key a new secret; id, limits and budgets stay."""
        owner = await keys_data.tenant_of(desk, tenant)
        return await keys_data.rotate_key(
            desk, owner, key_id, overlap_s=data.overlap_s, actor=actor_of(request)
        )

    @delete("/keys/{key_id:str}", opt=OPERATOR, tags=TAGS)
    async def revoke_key(
        request: AnyRequest, key_id: FromPath[str], tenant: FromQuery[str] = ""
    ) -> None:
        """End a key for good."""
        owner = await keys_data.tenant_of(desk, tenant)
        await keys_data.revoke_key(desk, owner, key_id, actor=actor_of(request))

    return [create_key, change_key, rotate_key, revoke_key]


def _budgets(desk: Desk) -> Sequence[ControllerRouterHandler]:
    @put("/budgets", opt=OPERATOR, tags=TAGS, status_code=204)
    async def set_budget(
        request: AnyRequest, data: JSONBody[BudgetOf], tenant: FromQuery[str] = ""
    ) -> None:
        """Create or change the budget of one scope and period."""
        await keys_data.set_budget(
            desk,
            await keys_data.tenant_of(desk, tenant),
            data,
            scope_kind=data.scope_kind,
            scope_id=data.scope_id,
            actor=actor_of(request),
        )

    @delete("/budgets/{budget_id:str}", opt=OPERATOR, tags=TAGS)
    async def end_budget(
        request: AnyRequest, budget_id: FromPath[str], tenant: FromQuery[str] = ""
    ) -> None:
        """Take a budget out of force."""
        owner = await keys_data.tenant_of(desk, tenant)
        await keys_data.end_budget(desk, owner, budget_id, actor=actor_of(request))

    return [set_budget, end_budget]
