"""Who may use the dashboard: creating, disabling and resetting admins, each change in the audit.

The last owner who can log in is never taken away: nobody could then mend it from the dashboard.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.dashboard.passwords import check_password_rules, hash_password, new_password
from gateway.errors import InvalidRequest, NotFound
from gateway.store import admins
from gateway.store.admin_tables import ROLES
from gateway.store.admins import AdminRow
from gateway.store.audit import WHOLE_GATEWAY, AuditEvent, append_events
from gateway.store.engine import Store

FIRST_ADMIN = "admin"
_NAME = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")


class IssuedAdmin(msgspec.Struct, frozen=True, kw_only=True):
    """An admin with a password just set, which is shown this once."""

    row: AdminRow
    password: str

    def __repr__(self) -> str:
        return f"IssuedAdmin(name={self.row.name!r})"


async def first_admin(store: Store, *, now: float) -> IssuedAdmin | None:
    """The owner `admin` with a random password where there is no admin yet, else None."""
    async with store.read() as connection:
        if await admins.count_admins(connection) > 0:
            return None
    try:
        return await create_admin(store, FIRST_ADMIN, "owner", now=now, actor="gateway")
    except InvalidRequest:
        return None  # another process was quicker


async def create_admin(
    store: Store, name: str, role: str, *, now: float, actor: str, password: str | None = None
) -> IssuedAdmin:
    """A new admin, with a random password unless one is given. InvalidRequest for a bad name."""
    name = _checked_name(name)
    _check_role(role)
    password, password_hash = await _hashed(password)
    row = AdminRow(
        id=secrets.token_hex(8), name=name, role=role, created_at=now, password_changed_at=now
    )
    async with store.begin() as connection:
        if len(await admins.list_admins(connection)) >= admins.ADMINS_MAX:
            raise InvalidRequest(
                f"there are {admins.ADMINS_MAX} admins already, the most there can be"
            )
        if not await admins.insert_admin(connection, row, password_hash):
            raise InvalidRequest(f"there is an admin {name!r} already", param="name")
        await _record(connection, "admin.create", row, now, actor, {"after": _shown(row)})
    return IssuedAdmin(row=row, password=password)


async def list_admins(store: Store) -> list[AdminRow]:
    """All admins by name, disabled ones too."""
    async with store.read() as connection:
        return await admins.list_admins(connection)


async def disable_admin(store: Store, name: str, *, now: float, actor: str) -> AdminRow:
    """The admin can log in no more, and is logged out everywhere."""
    return await _change(store, name, "admin.disable", now=now, actor=actor, disabled_at=now)


async def enable_admin(store: Store, name: str, *, now: float, actor: str) -> AdminRow:
    """Undo `disable_admin`; the password is the one from before."""
    return await _change(store, name, "admin.enable", now=now, actor=actor, disabled_at=None)


async def set_role(store: Store, name: str, role: str, *, now: float, actor: str) -> AdminRow:
    """Another role, in force with the admin's next request."""
    _check_role(role)
    return await _change(store, name, "admin.role", now=now, actor=actor, role=role)


async def reset_password(
    store: Store,
    name: str,
    *,
    now: float,
    actor: str,
    password: str | None = None,
    keep_session: bytes | None = None,
) -> IssuedAdmin:
    """A new password, random unless given; all sessions but `keep_session` end."""
    password, password_hash = await _hashed(password)
    async with store.begin() as connection:
        row = await _found(connection, name)
        await admins.update_admin(
            connection, row.id, password_hash=password_hash, password_changed_at=now
        )
        ended = await admins.delete_sessions_of(connection, row.id, keep=keep_session)
        await _record(connection, "admin.password", row, now, actor, {"sessions_ended": ended})
    return IssuedAdmin(row=msgspec.structs.replace(row, password_changed_at=now), password=password)


async def _change(
    store: Store, name: str, action: str, *, now: float, actor: str, **values: Any
) -> AdminRow:
    async with store.begin() as connection:
        owners = await admins.lock_owners(connection)
        row = await _found(connection, name)
        changed = msgspec.structs.replace(row, **values)
        stays_owner = changed.role == "owner" and changed.disabled_at is None
        if owners == [row.id] and not stays_owner:
            raise InvalidRequest(
                f"{row.name} is the only owner who can log in; make another owner first"
            )
        await admins.update_admin(connection, row.id, **values)
        if changed.disabled_at is not None:
            await admins.delete_sessions_of(connection, row.id)
        detail = {"before": _shown(row), "after": _shown(changed)}
        await _record(connection, action, row, now, actor, detail)
    return changed


async def _found(connection: AsyncConnection, name: str) -> AdminRow:
    found = await admins.find_admin(connection, name.strip().lower())
    if found is None:
        raise NotFound(
            f"there is no admin {name[:64]!r}; looprouter admins list shows the names", param="name"
        )
    return found[0]


async def _hashed(password: str | None) -> tuple[str, str]:
    if password is None:
        password = new_password()
    check_password_rules(password)
    return password, await asyncio.to_thread(hash_password, password)


def _checked_name(name: str) -> str:
    name = name.strip().lower()
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "an admin's name has 1 to 64 of a-z, 0-9 and . _ @ + -, first a letter or digit",
            param="name",
        )
    return name


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise InvalidRequest(f"{role[:40]!r} is no role; use {', '.join(ROLES)}", param="role")


def _shown(row: AdminRow) -> dict[str, Any]:
    return {"role": row.role, "is_disabled": row.disabled_at is not None}


async def _record(
    connection: AsyncConnection,
    action: str,
    row: AdminRow,
    at: float,
    actor: str,
    detail: dict[str, Any],
) -> None:
    event = AuditEvent(
        tenant_id=WHOLE_GATEWAY,
        at=at,
        actor=actor,
        action=action,
        subject=row.name,
        detail=detail,
    )
    await append_events(connection, [event])
