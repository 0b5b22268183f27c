"""Reads and writes of the dashboard's admins and their sessions."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.admin_tables import admin_sessions, admins
from gateway.store.upsert import insert_into

ADMINS_MAX = 1_000


class AdminRow(msgspec.Struct, frozen=True, kw_only=True):
    """An admin without the password. Instants are unix seconds."""

    id: str
    name: str
    role: str  # "viewer" | "operator" | "owner"
    created_at: float
    password_changed_at: float
    last_login_at: float | None = None
    disabled_at: float | None = None


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One log-in of one admin, known by the hash of its token only."""

    token_hash: bytes
    admin_id: str
    created_at: float
    last_seen_at: float
    expires_at: float
    address: str = ""
    browser: str = ""


async def insert_admin(connection: AsyncConnection, row: AdminRow, password_hash: str) -> bool:
    """False when the name is taken; then nothing is changed."""
    values = {**msgspec.structs.asdict(row), "password_hash": password_hash}
    statement = insert_into(connection, admins).values(**values).on_conflict_do_nothing()
    return (await connection.execute(statement)).rowcount == 1


async def list_admins(connection: AsyncConnection) -> list[AdminRow]:
    """All, by name; at most ADMINS_MAX."""
    query = sa.select(*_ADMIN_COLUMNS).order_by(admins.c.name).limit(ADMINS_MAX)
    return [AdminRow(**row) for row in (await connection.execute(query)).mappings()]


async def count_admins(connection: AsyncConnection) -> int:
    return int(
        (await connection.execute(sa.select(sa.func.count()).select_from(admins))).scalar_one()
    )


async def find_admin(connection: AsyncConnection, name: str) -> tuple[AdminRow, str] | None:
    """The admin of a name, disabled ones too, and the hash of the password."""
    query = sa.select(*_ADMIN_COLUMNS, admins.c.password_hash).where(admins.c.name == name)
    found = (await connection.execute(query)).mappings().one_or_none()
    if found is None:
        return None
    values = dict(found)
    password_hash = values.pop("password_hash")
    return AdminRow(**values), password_hash


async def update_admin(connection: AsyncConnection, admin_id: str, **values: Any) -> bool:
    """False when there is none of that id."""
    statement = admins.update().where(admins.c.id == admin_id).values(**values)
    return (await connection.execute(statement)).rowcount == 1


async def lock_owners(connection: AsyncConnection) -> list[str]:
    """Ids of the owners that may log in; nobody changes one of them until the transaction ends."""
    query = (
        sa.select(admins.c.id)
        .where(admins.c.role == "owner", admins.c.disabled_at.is_(None))
        .order_by(admins.c.id)
        .with_for_update()
    )
    return list((await connection.execute(query)).scalars())


async def insert_session(connection: AsyncConnection, row: SessionRow) -> None:
    await connection.execute(admin_sessions.insert().values(**msgspec.structs.asdict(row)))


async def find_session(
    connection: AsyncConnection, token_hash: bytes
) -> tuple[SessionRow, AdminRow] | None:
    """A session, expired ones too, with the admin as of now."""
    query = (
        sa.select(
            *(column.label(f"session_{column.name}") for column in admin_sessions.c),
            *(column.label(f"admin_{column.name}") for column in _ADMIN_COLUMNS),
        )
        .join_from(admin_sessions, admins, admin_sessions.c.admin_id == admins.c.id)
        .where(admin_sessions.c.token_hash == token_hash)
    )
    found = (await connection.execute(query)).mappings().one_or_none()
    if found is None:
        return None
    session = {name: found[f"session_{name}"] for name in SessionRow.__struct_fields__}
    admin = {name: found[f"admin_{name}"] for name in AdminRow.__struct_fields__}
    return SessionRow(**session), AdminRow(**admin)


async def touch_session(connection: AsyncConnection, token_hash: bytes, *, now: float) -> None:
    await connection.execute(
        admin_sessions.update()
        .where(admin_sessions.c.token_hash == token_hash)
        .values(last_seen_at=now)
    )


async def delete_session(connection: AsyncConnection, token_hash: bytes) -> bool:
    """False when it had ended already."""
    statement = admin_sessions.delete().where(admin_sessions.c.token_hash == token_hash)
    return (await connection.execute(statement)).rowcount == 1


async def delete_sessions_of(
    connection: AsyncConnection, admin_id: str, *, keep: bytes | None = None
) -> int:
    """End the sessions of an admin, all but `keep`; how many went."""
    statement = admin_sessions.delete().where(admin_sessions.c.admin_id == admin_id)
    if keep is not None:
        statement = statement.where(admin_sessions.c.token_hash != keep)
    return (await connection.execute(statement)).rowcount


async def purge_sessions(
    connection: AsyncConnection, *, now: float, idle_since: float, rows: int
) -> int:
    """Forget at most `rows` sessions that are over; how many went."""
    c = admin_sessions.c
    over = sa.or_(c.expires_at <= now, c.last_seen_at <= idle_since)
    oldest = sa.select(c.token_hash).where(over).limit(rows)
    statement = admin_sessions.delete().where(c.token_hash.in_(oldest))
    return (await connection.execute(statement)).rowcount


_ADMIN_COLUMNS = tuple(admins.c[name] for name in AdminRow.__struct_fields__)
