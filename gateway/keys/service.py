"""Creating, listing, rotating and revoking virtual keys and their budgets, within one tenant.

Each change notes itself (`store.changes`) and writes an audit event in the same transaction, so
that a running server follows within a second and nothing happens unrecorded.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import InvalidRequest, NotFound
from gateway.keys.virtual_key import MintedKey, hash_secret, mint
from gateway.keys.wanted import (
    DEFAULT_NAME,
    OVERLAP_S_MAX,
    Budget,
    NewKey,
    check_budget,
    check_key,
    check_name,
)
from gateway.store import tenancy
from gateway.store.audit import AuditEvent, append_events
from gateway.store.changes import KEYS, note_change
from gateway.store.engine import Store
from gateway.store.ledger_tables import SCOPE_KINDS
from gateway.store.tenancy import BudgetRow, KeyRow, TeamRow, TenantRow

ID_TRIES_MAX = 5

NewId = Callable[[], str]


class IssuedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key just made. `key` is the whole text, shown this once."""

    key: str
    row: KeyRow

    def __repr__(self) -> str:
        return f"IssuedKey(id={self.row.id!r})"


def random_id() -> str:
    """An id for a tenant, team or budget."""
    return secrets.token_hex(8)


async def ensure_default_tenant(
    store: Store, *, now: float, new_id: NewId = random_id
) -> TenantRow:
    """The tenant `default` with its team `default`; made on the first call."""
    async with store.begin() as connection:
        return await _ensure_tenant(connection, DEFAULT_NAME, now=now, new_id=new_id)


async def create_tenant(
    store: Store, name: str, *, now: float, new_id: NewId = random_id
) -> TenantRow:
    """A new tenant with a team `default`. InvalidRequest when the name is taken."""
    check_name("tenant", name)
    async with store.begin() as connection:
        if await tenancy.find_tenant_named(connection, name) is not None:
            raise InvalidRequest(f"there is a tenant {name!r} already", param="name")
        return await _ensure_tenant(connection, name, now=now, new_id=new_id)


async def create_team(
    store: Store, tenant_id: str, name: str, *, now: float, new_id: NewId = random_id
) -> TeamRow:
    """A new team of the tenant. InvalidRequest when the name is taken."""
    check_name("team", name)
    team = TeamRow(id=new_id(), tenant_id=tenant_id, name=name, created_at=now)
    async with store.begin() as connection:
        if not await tenancy.insert_team(connection, tenant_id, team):
            raise InvalidRequest(f"there is a team {name!r} already", param="name")
        await _record(connection, tenant_id, "team.create", team.id, at=now, detail={"name": name})
    return team


async def create_key(
    store: Store,
    pepper: bytes,
    tenant_id: str,
    wanted: NewKey,
    *,
    now: float,
    actor: str = "cli",
    new_id: NewId = random_id,
    mint_key: Callable[[], MintedKey] = mint,
) -> IssuedKey:
    """Make a key, its budgets with it. The key's text is in the result and nowhere else."""
    check_key(wanted, now)
    async with store.begin() as connection:
        team = await tenancy.find_team(connection, tenant_id, wanted.team)
        if team is None:
            raise NotFound(f"there is no team {wanted.team!r} in this tenant", param="team")
        minted, row = await _insert(connection, pepper, team, wanted, now, mint_key)
        for budget in wanted.budgets:
            await tenancy.set_budget(
                connection, tenant_id, _budget_row(budget, "key", row, new_id), now=now
            )
        await note_change(connection, KEYS)
        detail = {"after": msgspec.structs.replace(wanted, team=team.name)}
        await _record(
            connection, tenant_id, "key.create", row.id, at=now, detail=detail, actor=actor
        )
    return IssuedKey(key=minted.key, row=row)


async def list_keys(
    store: Store,
    tenant_id: str,
    *,
    limit: int = tenancy.PAGE_ROWS_MAX,
    after: tuple[float, str] | None = None,
) -> list[KeyRow]:
    """Oldest first; `after` = (created_at, id) of the last row of the page before."""
    async with store.read() as connection:
        return await tenancy.list_keys(connection, tenant_id, limit=limit, after=after)


async def list_all_keys(
    store: Store, tenant_id: str, *, page: int = tenancy.PAGE_ROWS_MAX
) -> list[KeyRow]:
    """Every key of the tenant, oldest first, however many pages that takes."""
    found: list[KeyRow] = []
    after: tuple[float, str] | None = None
    while True:
        rows = await list_keys(store, tenant_id, limit=page, after=after)
        found += rows
        if len(rows) < page:
            return found
        after = (rows[-1].created_at, rows[-1].id)


async def list_budgets(store: Store, tenant_id: str) -> list[BudgetRow]:
    """Budgets in force of the tenant, its teams and keys."""
    async with store.read() as connection:
        return await tenancy.list_budgets(connection, tenant_id)


async def rotate_key(
    store: Store,
    pepper: bytes,
    tenant_id: str,
    key_id: str,
    *,
    now: float,
    overlap_s: float = 0.0,
    actor: str = "cli",
) -> IssuedKey:
    """
    Give a key a new secret. The public id stays, and with it budgets, limits and reports.

    The old secret works for `overlap_s` more, at most a day; a secret before that ends at once.
    """
    if not 0.0 <= overlap_s <= OVERLAP_S_MAX:
        raise InvalidRequest(
            f"an overlap of {overlap_s:g} s is not possible; at most {OVERLAP_S_MAX:g} s (24 h)",
            param="overlap",
        )
    async with store.begin() as connection:
        row = await _live_key(connection, tenant_id, key_id)
        minted = mint(key_id=row.id)
        await tenancy.rotate_secret(
            connection,
            tenant_id,
            key_id,
            secret_hash=hash_secret(pepper, minted.secret),
            now=now,
            previous_expires_at=now + overlap_s,
        )
        await note_change(connection, KEYS)
        detail = {
            "overlap_s": overlap_s,
            "before": {"rotated_at": row.rotated_at},
            "after": {"rotated_at": now},
        }
        await _record(
            connection, tenant_id, "key.rotate", key_id, at=now, detail=detail, actor=actor
        )
    row = msgspec.structs.replace(row, rotated_at=now, previous_expires_at=now + overlap_s)
    return IssuedKey(key=minted.key, row=row)


async def revoke_key(
    store: Store, tenant_id: str, key_id: str, *, now: float, actor: str = "cli"
) -> KeyRow:
    """End a key for good, its previous secret too. Revoking it again changes nothing."""
    async with store.begin() as connection:
        row = await tenancy.find_key(connection, tenant_id, key_id)
        if row is None:
            raise _no_such_key(key_id)
        if row.revoked_at is not None:
            return row
        await tenancy.update_key(connection, tenant_id, key_id, revoked_at=now)
        await note_change(connection, KEYS)
        detail = {"before": {"revoked_at": None}, "after": {"revoked_at": now}}
        await _record(
            connection, tenant_id, "key.revoke", key_id, at=now, detail=detail, actor=actor
        )
    return msgspec.structs.replace(row, revoked_at=now)


async def set_budget(
    store: Store,
    tenant_id: str,
    budget: Budget,
    *,
    scope_kind: str,
    scope_id: str,
    now: float,
    actor: str = "cli",
    new_id: NewId = random_id,
) -> None:
    """Create or change the budget of a tenant, team or key; the scope must be the tenant's own."""
    check_budget(budget)
    if scope_kind not in SCOPE_KINDS:
        raise InvalidRequest(f"{scope_kind!r} is no scope; use {', '.join(SCOPE_KINDS)}")
    async with store.begin() as connection:
        if not await _has_scope(connection, tenant_id, scope_kind, scope_id):
            raise NotFound(f"this tenant has no {scope_kind} {scope_id!r}")
        row = BudgetRow(
            id=new_id(),
            tenant_id=tenant_id,
            scope_kind=scope_kind,
            scope_id=scope_id,
            period=budget.period,
            limit_nanos=budget.limit_nanos,
        )
        before = await _limit_in_force(connection, row)
        await tenancy.set_budget(connection, tenant_id, row, now=now)
        await note_change(connection, KEYS)
        detail = {
            "period": budget.period,
            "before": {"limit_nanos": before},
            "after": {"limit_nanos": budget.limit_nanos},
        }
        subject = f"{scope_kind}:{scope_id}"
        await _record(
            connection, tenant_id, "budget.set", subject, at=now, detail=detail, actor=actor
        )


async def end_budget(
    store: Store, tenant_id: str, budget_id: str, *, now: float, actor: str = "cli"
) -> None:
    """Take a budget out of force. NotFound when the tenant has none of that id in force."""
    async with store.begin() as connection:
        rows = await tenancy.list_budgets(connection, tenant_id)
        row = next((row for row in rows if row.id == budget_id), None)
        if row is None or not await tenancy.end_budget(connection, tenant_id, budget_id, now=now):
            raise NotFound(f"this tenant has no budget {budget_id[:60]!r} in force")
        await note_change(connection, KEYS)
        detail = {
            "period": row.period,
            "before": {"limit_nanos": row.limit_nanos},
            "after": {"limit_nanos": None},
        }
        subject = f"{row.scope_kind}:{row.scope_id}"
        await _record(
            connection, tenant_id, "budget.end", subject, at=now, detail=detail, actor=actor
        )


async def end_budget_of(
    store: Store, tenant_id: str, scope_kind: str, scope_id: str, period: str, *, now: float
) -> None:
    """Take the budget of one scope and period out of force; NotFound when there is none."""
    for row in await list_budgets(store, tenant_id):
        if (row.scope_kind, row.scope_id, row.period) == (scope_kind, scope_id, period):
            await end_budget(store, tenant_id, row.id, now=now)
            return
    raise NotFound(f"{scope_kind} {scope_id!r} has no {period} budget in force")


async def _ensure_tenant(
    connection: AsyncConnection, name: str, *, now: float, new_id: NewId
) -> TenantRow:
    tenant = TenantRow(id=new_id(), name=name, created_at=now)
    if not await tenancy.insert_tenant(connection, tenant):
        found = await tenancy.find_tenant_named(connection, name)
        assert found is not None
        tenant = found
    team = TeamRow(id=new_id(), tenant_id=tenant.id, name=DEFAULT_NAME, created_at=now)
    await tenancy.insert_team(connection, tenant.id, team)
    return tenant


async def _insert(
    connection: AsyncConnection,
    pepper: bytes,
    team: TeamRow,
    wanted: NewKey,
    now: float,
    mint_key: Callable[[], MintedKey],
) -> tuple[MintedKey, KeyRow]:
    for _ in range(ID_TRIES_MAX):
        minted = mint_key()
        row = KeyRow(
            id=minted.id,
            tenant_id=team.tenant_id,
            team_id=team.id,
            name=wanted.name,
            models=wanted.models,
            routes=wanted.routes,
            requests_per_minute=wanted.requests_per_minute,
            tokens_per_minute=wanted.tokens_per_minute,
            concurrency_max=wanted.concurrency_max,
            no_explore=wanted.no_explore,
            created_at=now,
            expires_at=wanted.expires_at,
        )
        secret_hash = hash_secret(pepper, minted.secret)
        if await tenancy.insert_key(connection, team.tenant_id, row, secret_hash):
            return minted, row
    raise AssertionError(f"{ID_TRIES_MAX} random key ids were all taken")


async def _limit_in_force(connection: AsyncConnection, wanted: BudgetRow) -> int | None:
    """The limit of that scope and period until now; None where there was none."""
    scope = (wanted.scope_kind, wanted.scope_id, wanted.period)
    for row in await tenancy.list_budgets(connection, wanted.tenant_id):
        if (row.scope_kind, row.scope_id, row.period) == scope:
            return row.limit_nanos
    return None


async def _live_key(connection: AsyncConnection, tenant_id: str, key_id: str) -> KeyRow:
    row = await tenancy.find_key(connection, tenant_id, key_id)
    if row is None:
        raise _no_such_key(key_id)
    if row.revoked_at is not None:
        raise InvalidRequest(f"key {key_id} was revoked; create a new one", param="key_id")
    return row


def _no_such_key(key_id: str) -> NotFound:
    return NotFound(
        f"there is no key {key_id[:60]!r} in this tenant; looprouter keys list shows the ids",
        param="key_id",
    )


async def _has_scope(
    connection: AsyncConnection, tenant_id: str, scope_kind: str, scope_id: str
) -> bool:
    if scope_kind == "tenant":
        return scope_id == tenant_id
    if scope_kind == "team":
        team = await tenancy.find_team(connection, tenant_id, scope_id)
        return team is not None and team.id == scope_id
    return await tenancy.find_key(connection, tenant_id, scope_id) is not None


def _budget_row(budget: Budget, scope_kind: str, row: KeyRow, new_id: NewId) -> BudgetRow:
    return BudgetRow(
        id=new_id(),
        tenant_id=row.tenant_id,
        scope_kind=scope_kind,
        scope_id=row.id,
        period=budget.period,
        limit_nanos=budget.limit_nanos,
    )


async def _record(
    connection: AsyncConnection,
    tenant_id: str,
    action: str,
    subject: str,
    *,
    at: float,
    detail: dict[str, Any],
    actor: str = "cli",
) -> None:
    event = AuditEvent(
        tenant_id=tenant_id, at=at, actor=actor, action=action, subject=subject, detail=detail
    )
    await append_events(connection, [event])
