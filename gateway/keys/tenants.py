"""Tenants and teams by name, as the command line speaks of them."""

from __future__ import annotations

from gateway.errors import NotFound
from gateway.keys.service import create_team, create_tenant, ensure_default_tenant
from gateway.keys.wanted import DEFAULT_NAME
from gateway.store import tenancy
from gateway.store.engine import Store


async def tenant_id_of(store: Store, name: str) -> str:
    """The id of a tenant by its name. Raises NotFound that lists the names there are."""
    async with store.read() as connection:
        found = await tenancy.find_tenant_named(connection, name)
        if found is not None:
            return found.id
        names = [tenant.name for tenant in await tenancy.list_tenants(connection)]
    raise NotFound(
        f"there is no tenant {name[:60]!r}"
        + (f"; there are {', '.join(names[:20])}" if names else "; create a key first")
    )


async def ensure_tenant(store: Store, tenant: str, team: str, *, now: float) -> str:
    """The id of the tenant; it and its team are made where they are missing."""
    if tenant == DEFAULT_NAME:
        tenant_id = (await ensure_default_tenant(store, now=now)).id
    else:
        async with store.read() as connection:
            found = await tenancy.find_tenant_named(connection, tenant)
        tenant_id = (found or await create_tenant(store, tenant, now=now)).id
    async with store.read() as connection:
        known = await tenancy.find_team(connection, tenant_id, team)
    if known is None:
        await create_team(store, tenant_id, team, now=now)
    return tenant_id


async def scope_of(
    store: Store, tenant_id: str, *, key: str | None, team: str | None
) -> tuple[str, str]:
    """What a budget is set on, as (kind, id): the key, else the team, else the tenant.

    Raises NotFound for a team that is not there; a key is checked where the budget is set.
    """
    if key is not None:
        return "key", key
    if team is None:
        return "tenant", tenant_id
    async with store.read() as connection:
        found = await tenancy.find_team(connection, tenant_id, team)
    if found is None:
        raise NotFound(f"there is no team {team[:60]!r} in this tenant")
    return "team", found.id
