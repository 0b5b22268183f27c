"""Pausing, draining and resuming an endpoint: written down, audited, in force at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.dashboard.page import Desk
from gateway.errors import InvalidRequest, NotFound
from gateway.pipeline import Gateway
from gateway.store.audit import AuditEvent, append_events
from gateway.store.holds import (
    DRAINING,
    PAUSED,
    HoldRow,
    end_hold,
    list_holds,
    lock_holds,
    put_hold,
)

VERBS = {"pause": PAUSED, "drain": DRAINING}
NOTE_CHARS_MAX = 200


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an endpoint gets new requests, and if not, what still runs there."""

    state: str  # "routed" | "paused" | "draining" | "drained"
    in_flight: int  # of this process and of the replicas it hears
    actor: str = ""
    note: str = ""
    since: float | None = None  # unix seconds


def standing_of(gateway: Gateway, endpoint_id: str, measured: Mapping[str, Any]) -> Standing:
    """As it is in force in this process; `measured` is what the fleet tells of the endpoint."""
    in_flight = measured["in_flight"] + measured["in_flight_elsewhere"]
    row = gateway.holds.rows.get(endpoint_id) if measured["held"] else None
    if row is None:
        return Standing(state="routed", in_flight=in_flight)
    is_drained = row.mode == DRAINING and in_flight == 0
    return Standing(
        state="drained" if is_drained else row.mode,
        in_flight=in_flight,
        actor=row.actor,
        note=row.note,
        since=row.since,
    )


async def hold(desk: Desk, endpoint_id: str, verb: str, note: str, *, actor: str) -> None:
    """Send nothing new there (`verb`: "pause" | "drain"). Another hold of it is replaced."""
    gateway = desk.gateway
    if verb not in VERBS:
        raise InvalidRequest(f"{verb[:40]!r} is none of {', '.join(VERBS)}", param="verb")
    if len(note) > NOTE_CHARS_MAX:
        raise InvalidRequest(
            f"the note has {len(note)} characters; at most {NOTE_CHARS_MAX}", param="note"
        )
    if endpoint_id not in gateway.policy().endpoints:
        raise NotFound(f"the policy has no endpoint {endpoint_id[:80]!r}", param="endpoint")
    row = HoldRow(
        endpoint_id=endpoint_id,
        mode=VERBS[verb],
        actor=actor,
        note=note.strip(),
        since=gateway.wall_clock(),
    )
    await _change(desk, endpoint_id, f"endpoint.{verb}", row, actor)


async def resume(desk: Desk, endpoint_id: str, *, actor: str) -> None:
    """Send there again. One that is not held stays as it is; its policy may have gone."""
    gateway = desk.gateway
    if endpoint_id not in gateway.policy().endpoints and endpoint_id not in gateway.holds.rows:
        raise NotFound(f"the policy has no endpoint {endpoint_id[:80]!r}", param="endpoint")
    await _change(desk, endpoint_id, "endpoint.resume", None, actor)


async def _change(
    desk: Desk, endpoint_id: str, action: str, row: HoldRow | None, actor: str
) -> None:
    gateway = desk.gateway
    async with gateway.store.begin() as connection:
        # What was there before is in the audit log: of two at once, the second sees the first.
        await lock_holds(connection)
        before = (await list_holds(connection)).get(endpoint_id)
        if row is None and before is None:
            return
        if row is not None:
            await put_hold(connection, row)
        else:
            await end_hold(connection, endpoint_id)
        event = AuditEvent(
            tenant_id="",
            at=gateway.wall_clock(),
            actor=actor,
            action=action,
            subject=endpoint_id,
            detail={
                "before": {"mode": before.mode, "note": before.note} if before else None,
                "after": {"mode": row.mode, "note": row.note} if row else None,
            },
        )
        await append_events(connection, [event])
        rows = await list_holds(connection)
    # This process obeys at once; the others hear of it through the store.
    gateway.holds.obey(gateway.fleet, rows)
