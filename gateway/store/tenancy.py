"""Reads and writes of tenants, teams, keys and their budgets. Each takes the tenant first."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.ledger_tables import budgets
from gateway.store.tables import keys, teams, tenants
from gateway.store.upsert import insert_into

PAGE_ROWS_MAX = 1_000


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: float


class TeamRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant_id: str
    name: str
    created_at: float


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual key without its secret. Instants are unix seconds."""

    id: str
    tenant_id: str
    team_id: str
    name: str
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency_max: int | None = None
    no_explore: bool = False
    created_at: float
    rotated_at: float | None = None
    previous_expires_at: float | None = None
    expires_at: float | None = None
    revoked_at: float | None = None


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of spending for one scope and period, in force."""

    id: str
    tenant_id: str
    scope_kind: str  # "tenant" | "team" | "key"
    scope_id: str
    period: str  # "day" | "month" | "total"
    limit_nanos: int


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """What authentication needs of one key."""

    row: KeyRow
    secret_hash: bytes
    previous_hash: bytes | None
    budget_ids: tuple[str, ...]


async def list_tenants(connection: AsyncConnection) -> list[TenantRow]:
    """All tenants: for the operator only."""
    found = await connection.execute(sa.select(tenants).order_by(tenants.c.name))
    return [TenantRow(**row) for row in found.mappings()]


async def find_tenant_named(connection: AsyncConnection, name: str) -> TenantRow | None:
    """The tenant of a name: for the operator only."""
    found = await connection.execute(sa.select(tenants).where(tenants.c.name == name))
    row = found.mappings().one_or_none()
    return TenantRow(**row) if row else None


async def insert_tenant(connection: AsyncConnection, tenant: TenantRow) -> bool:
    """False when the id or name is taken; then nothing is changed."""
    return await _insert_new(connection, tenants, msgspec.structs.asdict(tenant))


async def insert_team(connection: AsyncConnection, tenant_id: str, team: TeamRow) -> bool:
    """False when the tenant has a team of that name; then nothing is changed."""
    assert team.tenant_id == tenant_id
    return await _insert_new(connection, teams, msgspec.structs.asdict(team))


async def find_team(connection: AsyncConnection, tenant_id: str, id_or_name: str) -> TeamRow | None:
    """A team of the tenant by id, else by name."""
    query = sa.select(teams).where(
        teams.c.tenant_id == tenant_id,
        sa.or_(teams.c.id == id_or_name, teams.c.name == id_or_name),
    )
    rows = (await connection.execute(query)).mappings().all()
    rows = sorted(rows, key=lambda row: row["id"] != id_or_name)
    return TeamRow(**rows[0]) if rows else None


async def list_teams(connection: AsyncConnection, tenant_id: str) -> list[TeamRow]:
    query = sa.select(teams).where(teams.c.tenant_id == tenant_id).order_by(teams.c.name)
    return [TeamRow(**row) for row in (await connection.execute(query)).mappings()]


async def insert_key(
    connection: AsyncConnection, tenant_id: str, row: KeyRow, secret_hash: bytes
) -> bool:
    """False when the public id is taken, which a new random one mends."""
    assert row.tenant_id == tenant_id
    values = msgspec.structs.asdict(row)
    values["models"] = _written_names(row.models)
    values["routes"] = _written_names(row.routes)
    values["secret_hash"] = secret_hash
    return await _insert_new(connection, keys, values)


async def find_key(connection: AsyncConnection, tenant_id: str, key_id: str) -> KeyRow | None:
    query = sa.select(*_KEY_COLUMNS).where(keys.c.tenant_id == tenant_id, keys.c.id == key_id)
    row = (await connection.execute(query)).mappings().one_or_none()
    return _key_row(row) if row else None


async def list_keys(
    connection: AsyncConnection,
    tenant_id: str,
    *,
    limit: int = PAGE_ROWS_MAX,
    after: tuple[float, str] | None = None,
) -> list[KeyRow]:
    """Oldest first; `after` = (created_at, id) of the last row of the page before."""
    query = sa.select(*_KEY_COLUMNS).where(keys.c.tenant_id == tenant_id)
    if after is not None:
        query = query.where(sa.tuple_(keys.c.created_at, keys.c.id) > sa.tuple_(*after))
    query = query.order_by(keys.c.created_at, keys.c.id).limit(min(limit, PAGE_ROWS_MAX))
    return [_key_row(row) for row in (await connection.execute(query)).mappings()]


async def has_keys(connection: AsyncConnection) -> bool:
    """Whether any tenant has a key, revoked ones too."""
    return (await connection.execute(sa.select(keys.c.id).limit(1))).first() is not None


async def update_key(
    connection: AsyncConnection, tenant_id: str, key_id: str, **values: Any
) -> bool:
    """False when the tenant has no such key."""
    written = {
        name: _written_names(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }
    statement = (
        keys.update().where(keys.c.tenant_id == tenant_id, keys.c.id == key_id).values(**written)
    )
    return (await connection.execute(statement)).rowcount == 1


async def rotate_secret(
    connection: AsyncConnection,
    tenant_id: str,
    key_id: str,
    *,
    secret_hash: bytes,
    now: float,
    previous_expires_at: float,
) -> bool:
    """The present secret becomes the previous one. False when there is no such live key."""
    statement = (
        keys.update()
        .where(keys.c.tenant_id == tenant_id, keys.c.id == key_id, keys.c.revoked_at.is_(None))
        .values(
            previous_hash=keys.c.secret_hash,
            secret_hash=secret_hash,
            rotated_at=now,
            previous_expires_at=previous_expires_at,
        )
    )
    return (await connection.execute(statement)).rowcount == 1


async def set_budget(
    connection: AsyncConnection, tenant_id: str, budget: BudgetRow, *, now: float
) -> None:
    """Create a budget or change its limit; one for each scope and period."""
    assert budget.tenant_id == tenant_id
    insert = insert_into(connection, budgets)
    values = msgspec.structs.asdict(budget)
    await connection.execute(
        insert.values(**values, created_at=now, updated_at=now).on_conflict_do_update(
            index_elements=["tenant_id", "scope_kind", "scope_id", "period"],
            set_={"limit_nanos": budget.limit_nanos, "updated_at": now, "ended_at": None},
        )
    )


async def end_budget(
    connection: AsyncConnection, tenant_id: str, budget_id: str, *, now: float
) -> bool:
    """The budget is no longer in force; what was spent under it stays on record."""
    statement = (
        budgets.update()
        .where(
            budgets.c.tenant_id == tenant_id,
            budgets.c.id == budget_id,
            budgets.c.ended_at.is_(None),
        )
        .values(ended_at=now, updated_at=now)
    )
    return (await connection.execute(statement)).rowcount == 1


async def list_budgets(connection: AsyncConnection, tenant_id: str) -> list[BudgetRow]:
    query = (
        sa.select(*_BUDGET_COLUMNS)
        .where(budgets.c.tenant_id == tenant_id, budgets.c.ended_at.is_(None))
        .order_by(budgets.c.scope_kind, budgets.c.scope_id, budgets.c.period)
    )
    return [BudgetRow(**row) for row in (await connection.execute(query)).mappings()]


async def find_stored_key(connection: AsyncConnection, key_id: str) -> StoredKey | None:
    """For authentication only: the tenant is what it finds out."""
    query = sa.select(*_KEY_COLUMNS, keys.c.secret_hash, keys.c.previous_hash).where(
        keys.c.id == key_id
    )
    found = (await connection.execute(query)).mappings().one_or_none()
    if found is None:
        return None
    values = dict(found)
    secret_hash = values.pop("secret_hash")
    previous_hash = values.pop("previous_hash")
    row = _key_row(values)
    return StoredKey(
        row=row,
        secret_hash=secret_hash,
        previous_hash=previous_hash,
        budget_ids=await _budget_ids_of(connection, row.tenant_id, row),
    )


async def _budget_ids_of(
    connection: AsyncConnection, tenant_id: str, row: KeyRow
) -> tuple[str, ...]:
    scopes = (("tenant", tenant_id), ("team", row.team_id), ("key", row.id))
    query = (
        sa.select(budgets.c.id)
        .where(
            budgets.c.tenant_id == tenant_id,
            budgets.c.ended_at.is_(None),
            sa.or_(
                *(
                    sa.and_(budgets.c.scope_kind == kind, budgets.c.scope_id == scope_id)
                    for kind, scope_id in scopes
                )
            ),
        )
        .order_by(budgets.c.id)
    )
    return tuple((await connection.execute(query)).scalars())


_SECRET_COLUMNS = {"secret_hash", "previous_hash"}
_KEY_COLUMNS = tuple(column for column in keys.c if column.name not in _SECRET_COLUMNS)
_BUDGET_COLUMNS = tuple(budgets.c[name] for name in BudgetRow.__struct_fields__)
_NAMES = msgspec.json.Decoder(tuple[str, ...])


def _key_row(found: Any) -> KeyRow:
    values = dict(found)
    for name in ("models", "routes"):
        values[name] = _NAMES.decode(values[name]) if values[name] else ()
    return KeyRow(**values)


def _written_names(names: tuple[str, ...]) -> str:
    return msgspec.json.encode(names).decode() if names else ""


async def _insert_new(connection: AsyncConnection, table: sa.Table, values: dict[str, Any]) -> bool:
    statement = insert_into(connection, table).values(**values).on_conflict_do_nothing()
    return (await connection.execute(statement)).rowcount == 1
