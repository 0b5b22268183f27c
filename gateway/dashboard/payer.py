"""Who pays for what admins send: a virtual key like any other, with its budgets and limits.

The dashboard has keys of its own, of the tenant `looprouter`, made when they are first needed.
Nobody has their secret; they can be given a budget and be revoked like all others.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from gateway.core import Caller
from gateway.dashboard.page import Desk
from gateway.errors import InvalidRequest, Unauthenticated
from gateway.keys.service import create_key, list_all_keys
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import DEFAULT_NAME, NewKey
from gateway.store.tables import keys, tenants

OWN_TENANT = "looprouter"
PLAYGROUND, PROBES = "playground", "probes"  # names of the dashboard's own keys
KEYS_SHOWN_MAX = 100


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """A key that can be charged."""

    key: str
    name: str
    tenant: str


async def paying_caller(desk: Desk, key_id: str, own_name: str) -> Caller:
    """The caller of a key, or of the dashboard's own of that name where `key_id` is ""."""
    if not key_id:
        key_id = await _own_key_id(desk, own_name)
    try:
        return await desk.gateway.authenticator.caller_of(key_id)
    except Unauthenticated as error:
        said = error.message.partition(";")[0]
        raise InvalidRequest(
            f"the key {key_id[:40]!r} cannot pay: {said}; choose another one",
            param="key",
        ) from error


async def newest_payers(desk: Desk) -> list[Payer]:
    """Keys that are in force, the newest first, KEYS_SHOWN_MAX at most."""
    now = desk.gateway.wall_clock()
    query = (
        sa.select(keys.c.id, keys.c.name, tenants.c.name.label("tenant"))
        .join(tenants, tenants.c.id == keys.c.tenant_id)
        .where(keys.c.revoked_at.is_(None))
        .where(sa.or_(keys.c.expires_at.is_(None), keys.c.expires_at > now))
        .where(tenants.c.name != OWN_TENANT)
        .order_by(keys.c.created_at.desc(), keys.c.id)
        .limit(KEYS_SHOWN_MAX)
    )
    async with desk.gateway.store.read() as connection:
        rows = (await connection.execute(query)).all()
    return [Payer(key=row.id, name=row.name, tenant=row.tenant) for row in rows]


async def _own_key_id(desk: Desk, name: str) -> str:
    """
    One that was revoked stays so: it is how an operator says that the dashboard spends nothing.

    Two processes that need it for the first time at once make two, of which the older is used.
    """
    gateway = desk.gateway
    now = gateway.wall_clock()
    tenant_id = await ensure_tenant(gateway.store, OWN_TENANT, DEFAULT_NAME, now=now)
    rows = [row for row in await list_all_keys(gateway.store, tenant_id) if row.name == name]
    if rows:
        return next((row.id for row in rows if row.revoked_at is None), rows[0].id)
    made = await create_key(
        gateway.store,
        gateway.settings.pepper(),
        tenant_id,
        NewKey(name=name, no_explore=True),
        now=now,
        actor="gateway",
    )
    return made.row.id
