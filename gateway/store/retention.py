"""Deletes what has outlived its age, oldest first, a slice a call; and what ages an owner chose.

Never the bill: entries, corrections, budgets and their windows, attempts that anybody pays for, and
the roll-ups of days have no age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.retention import AGES, FOREVER, checked_days
from gateway.store.ledger_tables import FREE_ATTEMPTS, attempt_leases, attempts
from gateway.store.requests import purge_requests, purge_snapshots
from gateway.store.rollups import purge_rollups
from gateway.store.state import get_meta, put_meta
from gateway.store.tables import audit_events, meta

DAY_S: Final = 86_400.0
CHOSEN_META: Final = "retention.days"
ATTEMPTS_META: Final = "retention.attempts_before"  # unix seconds; some sent before it are gone


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How long one kind of row is kept, and who says so. Days; 0 = for ever."""

    name: str
    days: int
    said_by: str  # "default" | "variable" | "dashboard"
    default_days: int  # without the dashboard's word
    least: int
    most: int
    may_stay: bool


async def chosen_days(connection: AsyncConnection) -> dict[str, int]:
    """What owners chose on the dashboard; names that are not there follow the environment."""
    text = await get_meta(connection, CHOSEN_META)
    found = msgspec.json.decode(text, type=dict[str, int]) if text else {}
    return {name: days for name, days in found.items() if name in AGES}


async def choose_days(connection: AsyncConnection, days: Mapping[str, int]) -> None:
    """Write all that is chosen; ValueError for a number outside its bounds."""
    checked = {name: checked_days(name, number) for name, number in days.items()}
    if checked:
        await put_meta(connection, CHOSEN_META, msgspec.json.encode(checked).decode())
    else:
        await connection.execute(sa.delete(meta).where(meta.c.key == CHOSEN_META))


def kept_of(given: Mapping[str, int], chosen: Mapping[str, int]) -> dict[str, Kept]:
    """By name. `given` is of the environment, `chosen` goes before it."""
    found = {}
    for name, age in AGES.items():
        by = "dashboard" if name in chosen else "variable" if name in given else "default"
        default = given.get(name, age.default)
        found[name] = Kept(
            name=name,
            days=chosen.get(name, default),
            said_by=by,
            default_days=default,
            least=age.least,
            most=age.most,
            may_stay=age.may_stay,
        )
    return found


async def purge_aged(connection: AsyncConnection, kept: Kept, *, now: float, rows: int) -> int:
    """Delete about `rows` of the oldest of this kind that are too old; how many went."""
    if kept.days == FOREVER:
        return 0
    age_s = kept.days * DAY_S
    match kept.name:
        case "requests":
            return await purge_requests(connection, older_than=now - age_s, rows=rows)
        case "decisions":
            return await purge_snapshots(connection, older_than=now - age_s, rows=rows)
        case "attempts":
            return await purge_free_attempts(connection, older_than=now - age_s, rows=rows)
        case "audit":
            return await purge_events(connection, older_than=now - age_s, rows=rows)
        case "minutes" | "hours":
            grain = kept.name.removesuffix("s")
            return await purge_rollups(connection, grain, older_than=now - age_s, rows=rows)
        case other:
            raise ValueError(f"nothing deletes {other!r}")


async def purge_free_attempts(connection: AsyncConnection, *, older_than: float, rows: int) -> int:
    """
    Attempts that were released and cost nothing, of every tenant. Nothing corrects those.

    What is left adds up as before, but for their number: `verify` is told until when.
    """
    a = attempts.c
    query = (
        sa.select(a.attempt_id)
        .where(sa.text(FREE_ATTEMPTS), a.sent_at < older_than)
        .order_by(a.sent_at)
        .limit(rows)
    )
    ids = list((await connection.execute(query)).scalars())
    if not ids:
        return 0
    before = float(await get_meta(connection, ATTEMPTS_META) or 0.0)
    await put_meta(connection, ATTEMPTS_META, repr(max(before, older_than)))
    leased = attempt_leases.c.attempt_id.in_(ids)
    await connection.execute(sa.delete(attempt_leases).where(leased))
    return (await connection.execute(sa.delete(attempts).where(a.attempt_id.in_(ids)))).rowcount


async def free_attempts_gone_before(connection: AsyncConnection) -> float:
    """Unix seconds: days that begin earlier may lack attempts that no money was booked for."""
    return float(await get_meta(connection, ATTEMPTS_META) or 0.0)


async def purge_events(connection: AsyncConnection, *, older_than: float, rows: int) -> int:
    """Events of the audit log, of every tenant. Its ids are in the order of time."""
    c = audit_events.c
    oldest = sa.select(c.id).order_by(c.id).limit(rows)
    gone = sa.delete(audit_events).where(c.id.in_(oldest), c.at < older_than)
    return (await connection.execute(gone)).rowcount


async def take_turn(connection: AsyncConnection) -> bool:
    """Whether no other process deletes now; held until the transaction ends. SQLite has one."""
    if connection.dialect.name == "sqlite":
        return True
    asked: Any = sa.text(
        "SELECT pg_try_advisory_xact_lock(hashtextextended("
        "'looprouter retention ' || coalesce(current_schema(), ''), 0))"
    )
    return bool(await connection.scalar(asked))
