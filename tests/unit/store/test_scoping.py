"""No query function reads or changes another tenant's rows: every one is walked."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

import gateway.store
from gateway.core import Lane
from gateway.errors import Conflict, IdempotencyMismatch
from gateway.store import audit, batches, files, idempotency, requests, tenancy
from gateway.store.audit import AuditEvent
from gateway.store.batches import BatchRow
from gateway.store.engine import Store
from gateway.store.files import FileRow
from gateway.store.idempotency import StoredAnswer
from gateway.store.requests import RequestRow
from gateway.store.tables import metadata
from gateway.store.tenancy import BudgetRow, KeyRow, TeamRow, TenantRow
from gateway.wire.pieces import Surface
from tests.support.databases import sqlite_store

# Functions over all tenants, each with the reason why that is right. Nothing else may be one.
UNSCOPED = {
    "admins.count_admins": "admins are the whole gateway's",
    "admins.delete_session": "admins are the whole gateway's",
    "admins.delete_sessions_of": "admins are the whole gateway's",
    "admins.find_admin": "admins are the whole gateway's",
    "admins.find_session": "admins are the whole gateway's",
    "admins.insert_admin": "admins are the whole gateway's",
    "admins.insert_session": "admins are the whole gateway's",
    "admins.list_admins": "admins are the whole gateway's",
    "admins.lock_owners": "admins are the whole gateway's",
    "admins.purge_sessions": "admins are the whole gateway's",
    "admins.touch_session": "admins are the whole gateway's",
    "admins.update_admin": "admins are the whole gateway's",
    "audit.append_events": "rows name their tenant",
    "audit.list_all_events": "the operator",
    "batch_work.booked_costs": "the worker, which serves all tenants",
    "batch_work.claim_lines": "the worker, which serves all tenants",
    "batch_work.drop_claims": "the worker, which serves all tenants",
    "batch_work.drop_results": "the worker, which serves all tenants",
    "batch_work.end_open_lines": "the worker, which serves all tenants",
    "batch_work.ended_lines": "the worker, which serves all tenants",
    "batch_work.free_claims": "the worker, which serves all tenants",
    "batch_work.keep_costs": "the worker, which serves all tenants",
    "batch_work.keep_results": "the worker, which serves all tenants",
    "batch_work.move_lines": "the worker, which serves all tenants",
    "batch_work.put_back": "the worker, which serves all tenants",
    "batch_work.renew_claims": "the worker, which serves all tenants",
    "batch_work.uncosted_lines": "the worker, which serves all tenants",
    "batch_work.unended_groups": "the worker, which serves all tenants",
    "batches.batch_of_id": "the worker, which serves all tenants",
    "batches.batches_in": "the worker, which serves all tenants",
    "batches.drop_lines": "of batches that were found by their tenant",
    "batches.insert_batch": "rows name their tenant",
    "batches.insert_lines": "of batches that were found by their tenant",
    "batches.line_counts": "of batches that were found by their tenant",
    "batches.move_batch": "of batches that were found by their tenant",
    "batches.unended_of": "of batches that were found by their tenant",
    "batches.update_batch": "of batches that were found by their tenant",
    "files.due_for_sweep": "retention",
    "files.forget_files": "retention",
    "files.insert_file": "rows name their tenant",
    "holds.end_hold": "endpoints are the whole gateway's",
    "holds.list_holds": "endpoints are the whole gateway's",
    "holds.lock_holds": "endpoints are the whole gateway's",
    "holds.put_hold": "endpoints are the whole gateway's",
    "native_batches.gather_lines": "the worker, which serves all tenants",
    "native_batches.has_unsettled": "the worker, which serves all tenants",
    "native_batches.lanes_due": "the worker, which serves all tenants",
    "native_batches.leave_natives": "the worker, which serves all tenants",
    "native_batches.members_of": "the worker, which serves all tenants",
    "native_batches.native_history": "the worker, which serves all tenants",
    "native_batches.native_in": "the worker, which serves all tenants",
    "native_batches.reopen_members": "the worker, which serves all tenants",
    "native_batches.take_natives": "the worker, which serves all tenants",
    "native_batches.update_native": "the worker, which serves all tenants",
    "changes.note_change": "touches no tenant's table",
    "idempotency.purge_expired": "retention",
    "idempotency.renew_claims": "the claims of one process",
    "policies.activate_policy": "one policy for the gateway",
    "policies.active_policy": "one policy for the gateway",
    "policies.find_policy": "one policy for the gateway",
    "policies.kept_versions": "one policy for the gateway",
    "policies.list_policies": "one policy for the gateway",
    "policies.list_policy_changes": "one policy for the gateway",
    "policies.lock_policies": "touches no tenant's table",
    "requests.find_snapshot": "beliefs about endpoints, no tenant's",
    "requests.insert_requests": "rows name their tenant",
    "requests.insert_snapshots": "beliefs about endpoints, no tenant's",
    "requests.list_decided": "the operator trying a policy of all tenants",
    "requests.purge_requests": "retention",
    "retention.choose_days": "touches no tenant's table",
    "retention.chosen_days": "touches no tenant's table",
    "retention.free_attempts_gone_before": "touches no tenant's table",
    "retention.purge_aged": "retention",
    "retention.purge_events": "retention",
    "retention.purge_free_attempts": "retention",
    "retention.take_turn": "touches no tenant's table",
    "requests.purge_snapshots": "retention",
    "rollups.purge_rollups": "retention",
    "state.get_meta": "touches no tenant's table",
    "state.load_endpoint_state": "beliefs about endpoints, no tenant's",
    "state.put_meta": "touches no tenant's table",
    "state.save_endpoint_state": "beliefs about endpoints, no tenant's",
    "tenancy.find_stored_key": "authentication: the tenant is what it finds out",
    "tenancy.find_tenant_named": "the operator",
    "tenancy.has_keys": "whether the gateway is new",
    "tenancy.insert_tenant": "the operator",
    "tenancy.list_tenants": "the operator",
}
NOW = 100.0


def _query_functions() -> dict[str, Callable[..., Any]]:
    found = {}
    for module_info in pkgutil.iter_modules(gateway.store.__path__):
        module = importlib.import_module(f"gateway.store.{module_info.name}")
        for name, function in vars(module).items():
            if (
                inspect.iscoroutinefunction(function)
                and not name.startswith("_")
                and function.__module__ == module.__name__
                and next(iter(inspect.signature(function).parameters), "") == "connection"
            ):
                found[f"{module_info.name}.{name}"] = function
    return found


SCOPED = sorted(_query_functions().keys() - UNSCOPED.keys())


def test_every_query_function_takes_the_tenant_first_or_is_listed_with_its_reason() -> None:
    functions = _query_functions()

    assert functions.keys() >= UNSCOPED.keys()
    assert len(SCOPED) >= 15
    for name in SCOPED:
        assert list(inspect.signature(functions[name]).parameters)[1] == "tenant_id", name


async def _fill(connection: Any, tenant_id: str, *, suffix: str) -> None:
    """One row of everything; the ids of two tenants differ only by `suffix`."""
    await tenancy.insert_tenant(connection, TenantRow(id=tenant_id, name=tenant_id, created_at=NOW))
    team = TeamRow(id=f"team{suffix}", tenant_id=tenant_id, name="default", created_at=NOW)
    await tenancy.insert_team(connection, tenant_id, team)
    key = KeyRow(id=f"key{suffix}", tenant_id=tenant_id, team_id=team.id, name="k", created_at=NOW)
    await tenancy.insert_key(connection, tenant_id, key, b"h" * 32)
    budget = BudgetRow(
        id=f"budget{suffix}", tenant_id=tenant_id, scope_kind="tenant", scope_id=tenant_id,
        period="day", limit_nanos=5,
    )  # fmt: skip
    await tenancy.set_budget(connection, tenant_id, budget, now=NOW)
    request = RequestRow(
        id=f"request{suffix}", tenant_id=tenant_id, team_id=team.id, key_id=key.id,
        created_at=NOW, surface=Surface.CHAT, model="m", lane=Lane.BATCH, stream=False,
    )  # fmt: skip
    await requests.insert_requests(connection, [request])
    await idempotency.claim(
        connection, tenant_id, f"idem{suffix}", request_hash=b"h", claim_id=f"claim{suffix}",
        holder_id="p", now=NOW,
    )  # fmt: skip
    file = FileRow(
        id=f"file{suffix}", tenant_id=tenant_id, key_id=key.id, filename="f", purpose="batch",
        num_bytes=1, storage_key=f"file{suffix}", created_at=NOW,
    )  # fmt: skip
    await files.insert_file(connection, file)
    batch = BatchRow(
        id=f"batch{suffix}", tenant_id=tenant_id, team_id=team.id, key_id=key.id,
        dialect="openai", surface="chat", state="in_progress", input_file_id=file.id,
        deadline_at=NOW, created_at=NOW,
    )  # fmt: skip
    await batches.insert_batch(connection, batch)
    event_ = AuditEvent(tenant_id=tenant_id, at=NOW, actor="a", action="b", subject="c")
    await audit.append_events(connection, [event_])


def _attack(name: str, tenant_id: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with which `tenant_id` reaches for the rows of the tenant of suffix B."""
    team = TeamRow(id="teamX", tenant_id=tenant_id, name="default", created_at=NOW)
    key = KeyRow(id="keyB", tenant_id=tenant_id, team_id="teamA", name="stolen", created_at=NOW)
    budget = BudgetRow(
        id="budgetB", tenant_id=tenant_id, scope_kind="key", scope_id="keyB", period="day",
        limit_nanos=999,
    )  # fmt: skip
    answer = StoredAnswer(status=200, headers=[], body=b"", usage=None)
    claim = {"request_hash": b"h", "claim_id": "claimX", "holder_id": "p", "now": NOW + 1}
    return {
        "audit.list_events": ((), {}),
        "batches.find_batch": (("batchB",), {}),
        "batches.list_batches": ((), {"limit": 9}),
        "files.find_file": (("fileB",), {"now": NOW}),
        "files.is_in_use": (("fileB",), {}),
        "files.keep_until": (("fileB",), {"expires_at": NOW + 1, "now": NOW}),
        "files.list_files": ((), {"now": NOW, "limit": 9}),
        "files.mark_deleted": (("fileB",), {"now": NOW}),
        "files.usage_of": ((), {"now": NOW}),
        "idempotency.claim": (("idemB",), claim),
        "idempotency.drop": (("idemB",), {"claim_id": "claimB"}),
        "idempotency.finish": (
            ("idemB",), {"claim_id": "claimB", "answer": answer, "now": NOW},
        ),
        "requests.find_request": (("requestB",), {}),
        "requests.list_requests": ((), {"key_id": "keyB"}),
        "tenancy.end_budget": (("budgetB",), {"now": NOW}),
        "tenancy.find_key": (("keyB",), {}),
        "tenancy.find_team": (("teamB",), {}),
        "tenancy.insert_key": ((key, b"x" * 32), {}),
        "tenancy.insert_team": ((team,), {}),
        "tenancy.list_budgets": ((), {}),
        "tenancy.list_keys": ((), {}),
        "tenancy.list_teams": ((), {}),
        "tenancy.rotate_secret": (
            ("keyB",), {"secret_hash": b"x" * 32, "now": NOW, "previous_expires_at": NOW},
        ),
        "tenancy.set_budget": ((budget,), {"now": NOW}),
        "tenancy.update_key": (("keyB",), {"name": "stolen"}),
    }[name]  # fmt: skip


async def _rows_of(connection: Any, tenant_id: str) -> dict[str, list[Any]]:
    found = {}
    for table in metadata.tables.values():
        column = table.c.get("tenant_id", table.c.get("id"))
        if column is not None:
            query = sa.select(table).where(column == tenant_id)
            found[table.name] = [tuple(row) for row in await connection.execute(query)]
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("name", SCOPED)
async def test_one_tenant_neither_sees_nor_changes_the_other(name: str, tmp_path: Path) -> None:
    async with sqlite_store(tmp_path) as store:
        async with store.begin() as connection:
            await _fill(connection, "A", suffix="A")
            await _fill(connection, "B", suffix="B")
            before = await _rows_of(connection, "B")
        arguments, options = _attack(name, "A")
        result: object = None
        with suppress(sa.exc.IntegrityError):
            async with store.begin() as connection:
                result = await _query_functions()[name](connection, "A", *arguments, **options)
        async with store.read() as connection:
            after = await _rows_of(connection, "B")

    assert sum(map(len, before.values())) >= 7
    assert before == after
    assert "B'" not in repr(result)


@pytest.mark.anyio
@pytest.mark.parametrize("name", SCOPED)
async def test_every_statement_names_the_tenant(name: str, tmp_path: Path) -> None:
    statements: list[Any] = []
    async with sqlite_store(tmp_path) as store:
        async with store.begin() as connection:
            await _fill(connection, "A", suffix="A")
        _record_statements(store, statements)
        arguments, options = _attack(name, "A")
        with suppress(sa.exc.IntegrityError, Conflict, IdempotencyMismatch):
            async with store.begin() as connection:
                await _query_functions()[name](connection, "A", *arguments, **options)

    assert statements
    for statement in statements:
        if isinstance(statement, sa.sql.dml.Insert):
            assert "tenant_id" in str(statement.compile()), name
        else:
            named = sa.sql.visitors.iterate(statement.whereclause)
            assert "tenant_id" in {getattr(part, "name", "") for part in named}, name


def _record_statements(store: Store, statements: list[Any]) -> None:
    def note(_connection: object, statement: Any, *_: object) -> None:
        if isinstance(statement, sa.sql.expression.ClauseElement):
            statements.append(statement)

    event.listen(store.engine.sync_engine, "before_execute", note)
