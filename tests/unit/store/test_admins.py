"""Admins and sessions in SQL, on both databases."""

from __future__ import annotations

import asyncio

import pytest

from gateway.dashboard import accounts
from gateway.errors import InvalidRequest
from gateway.store import admins
from gateway.store.admins import SessionRow
from gateway.store.audit import AuditEvent, append_events, list_all_events
from gateway.store.engine import Store
from tests.support.dashboard_world import cheap_passwords

pytestmark = pytest.mark.anyio


async def _create(store: Store, name: str, role: str) -> str:
    issued = await accounts.create_admin(
        store, name, role, now=1.0, actor="test", password="a long password"
    )
    return issued.row.id


def _session(admin_id: str, token_hash: bytes, *, seen_at: float, expires_at: float) -> SessionRow:
    return SessionRow(
        token_hash=token_hash,
        admin_id=admin_id,
        created_at=1.0,
        last_seen_at=seen_at,
        expires_at=expires_at,
        address="127.0.0.1",
        browser="b",
    )


async def test_sessions_are_found_touched_ended_and_purged(store: Store) -> None:
    with cheap_passwords():
        ada, bob = await _create(store, "ada", "owner"), await _create(store, "bob", "viewer")
    async with store.begin() as connection:
        for row in (
            _session(ada, b"a", seen_at=10.0, expires_at=100.0),
            _session(ada, b"b", seen_at=90.0, expires_at=50.0),
            _session(bob, b"c", seen_at=90.0, expires_at=100.0),
            _session(bob, b"d", seen_at=90.0, expires_at=100.0),
        ):
            await admins.insert_session(connection, row)
        await admins.touch_session(connection, b"c", now=95.0)
        found = await admins.find_session(connection, b"c")
        unknown = await admins.find_session(connection, b"x")
        purged = await admins.purge_sessions(connection, now=60.0, idle_since=20.0, rows=9)
        kept = await admins.delete_sessions_of(connection, bob, keep=b"c")
        ended = [await admins.delete_session(connection, b"c") for _ in range(2)]

    assert found is not None
    assert (found[0].last_seen_at, found[1].name, found[1].role) == (95.0, "bob", "viewer")
    assert unknown is None
    assert purged == 2  # one idle, one too old
    assert kept == 1
    assert ended == [True, False]


async def test_two_owners_who_demote_each_other_leave_one(store: Store) -> None:
    with cheap_passwords():
        await _create(store, "ada", "owner")
        await _create(store, "bob", "owner")
    turns = [
        accounts.set_role(store, name, "viewer", now=2.0, actor="test") for name in ("ada", "bob")
    ]
    results = await asyncio.gather(*turns, return_exceptions=True)
    async with store.read() as connection:
        left = await admins.list_admins(connection)

    assert sorted(row.role for row in left) == ["owner", "viewer"]
    assert sum(isinstance(result, InvalidRequest) for result in results) == 1


async def test_first_admins_of_processes_that_start_together_are_one(store: Store) -> None:
    with cheap_passwords():
        made = await asyncio.gather(*(accounts.first_admin(store, now=1.0) for _ in range(4)))
    async with store.read() as connection:
        found = await admins.list_admins(connection)

    assert [row.name for row in found] == ["admin"]
    assert len([each for each in made if each is not None]) == 1


async def test_events_are_found_by_beginnings_that_may_hold_wildcards(store: Store) -> None:
    async with store.begin() as connection:
        await append_events(
            connection,
            [
                AuditEvent(tenant_id=tenant, at=1.0, actor=actor, action=action, subject="s")
                for tenant, actor, action in (
                    ("a", "admin:x", "key.create"),
                    ("b", "admin_x", "key.revoke"),
                    ("", "cli", "keyXcreate"),
                )
            ],
        )
        by_action = await list_all_events(connection, action="key.")
        by_actor = await list_all_events(connection, actor="admin_")
        newest = await list_all_events(connection, limit=1)
        older = await list_all_events(connection, before_id=newest[0].id)

    assert [event.action for event in by_action] == ["key.revoke", "key.create"]
    assert [event.actor for event in by_actor] == ["admin_x"]
    assert [event.action for event in newest] == ["keyXcreate"]
    assert [event.action for event in older] == ["key.revoke", "key.create"]
