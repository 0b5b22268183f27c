"""Changes a virtual key's name, scopes, limits and expiry; its secret, team and budgets stay."""

from __future__ import annotations

import msgspec

from gateway.errors import InvalidRequest, NotFound
from gateway.keys.wanted import NewKey, check_key
from gateway.store import tenancy
from gateway.store.audit import AuditEvent, append_events
from gateway.store.changes import KEYS, note_change
from gateway.store.engine import Store
from gateway.store.tenancy import KeyRow

CHANGEABLE = (
    "name", "models", "routes", "requests_per_minute", "tokens_per_minute", "concurrency_max",
    "no_explore", "expires_at",
)  # fmt: skip


async def change_key(
    store: Store, tenant_id: str, key_id: str, wanted: NewKey, *, now: float, actor: str
) -> KeyRow:
    """
    Make the key as `wanted` says in all of CHANGEABLE. A running server obeys within a second.

    NotFound, or InvalidRequest for a revoked key and for what `check_key` refuses.
    """
    async with store.begin() as connection:
        row = await tenancy.find_key(connection, tenant_id, key_id)
        if row is None:
            raise NotFound(f"there is no key {key_id[:60]!r} in this tenant", param="key_id")
        if row.revoked_at is not None:
            raise InvalidRequest(f"key {key_id} was revoked; create a new one", param="key_id")
        # An expiry that has passed may stay as it is.
        is_kept = wanted.expires_at == row.expires_at
        check_key(msgspec.structs.replace(wanted, expires_at=None) if is_kept else wanted, now)
        after = {name: getattr(wanted, name) for name in CHANGEABLE}
        changed = {name for name in CHANGEABLE if after[name] != getattr(row, name)}
        if not changed:
            return row
        values = {name: after[name] for name in CHANGEABLE if name in changed}
        await tenancy.update_key(connection, tenant_id, key_id, **values)
        await note_change(connection, KEYS)
        event = AuditEvent(
            tenant_id=tenant_id,
            at=now,
            actor=actor,
            action="key.change",
            subject=key_id,
            detail={"before": {name: getattr(row, name) for name in values}, "after": values},
        )
        await append_events(connection, [event])
    return msgspec.structs.replace(row, **values)
