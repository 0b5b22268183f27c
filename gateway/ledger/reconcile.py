"""Compares the ledger with a provider's export and books what becomes known of estimates.

Ours is what attempts were settled with and all corrections since. An estimated attempt whose own
bill is in the export gets it; the others of a model and day share what is left of that day's bill.
What was settled exactly is never touched: where it differs, that is drift.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.ledger.corrections import KnownCost, correct_attempts
from gateway.ledger.exports.reader import ExportReader
from gateway.ledger.exports.rows import family_of
from gateway.ledger.reconcile_days import ModelDay, model_day, plan_day
from gateway.ledger.reconcile_ours import (
    SHARED,
    Attempt,
    Ours,
    Sum,
    find_attempts,
    read_ours,
    require_provider,
)
from gateway.ledger.reconcile_theirs import (
    ALL_MODELS,
    Charge,
    Group,
    IdCharge,
    IdCharges,
    Theirs,
    add_up,
    family,
)
from gateway.ledger.records import LedgerAlert
from gateway.store.audit import WHOLE_GATEWAY, AuditEvent, append_events
from gateway.store.engine import Store
from gateway.store.state import get_meta, put_meta

IDS_PER_QUERY = 500
ALERTS_MAX = 20
TOTAL = "total"


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """What a run found, and what it booked (or would have, on a dry run)."""

    provider: str
    export: str  # the file's name
    sha256: str
    format: str
    num_rows: int
    num_by_id: int  # rows found in the ledger by their id
    is_dry_run: bool
    imported_at: float | None  # when this very file was reconciled before; then nothing is booked
    num_corrected: int
    num_in_flight: int
    days: tuple[ModelDay, ...]
    total: ModelDay
    alerts: tuple[LedgerAlert, ...]


@dataclass(slots=True)
class _Matched:
    """Attempts whose own bill is in the export, and what of each group is settled thereby."""

    theirs: dict[Group, Charge] = field(default_factory=dict)
    ours: dict[Group, Sum] = field(default_factory=dict)  # exact ones
    estimated: dict[str, tuple[Attempt, Charge]] = field(default_factory=dict)
    num_rows: int = 0


async def reconcile(
    store: Store,
    reader: ExportReader,
    *,
    provider: str,
    models: dict[str, str] | None = None,
    is_dry_run: bool = False,
) -> Reconciliation:
    """
    Read the export to its end, compare, and book. May run beside a serving process.

    `models` maps names of theirs to the provider's model that we asked for, where they differ by
    more than a date. Raises ExportError on an export that cannot be read, or of a provider that
    the ledger does not know; then nothing was booked.
    """
    aliases = {family_of(name): family_of(ours) for name, ours in (models or {}).items()}
    ids = IdCharges()
    try:
        theirs = add_up(reader, ids, aliases)
        async with store.read() as connection:
            await require_provider(connection, provider)
            mark = _mark(provider, reader.sha256, aliases)
            imported = await get_meta(connection, mark)
            ours = await read_ours(
                connection,
                provider,
                (theirs.first_day, theirs.last_day),
                has_models=theirs.has_models,
            )
            matched = _Matched()
            for chunk in ids.chunks(IDS_PER_QUERY):
                await _match(connection, provider, chunk, (theirs, ours, matched, aliases), ids)
            now = await store.database_now(connection)
    finally:
        ids.close()
    known, found = _plan(reader, theirs, ours, matched, is_booked=imported is not None)
    result = _result(reader, provider, theirs, found, is_dry_run=is_dry_run)
    result = msgspec.structs.replace(
        result,
        num_by_id=matched.num_rows,
        num_corrected=len(known),
        num_in_flight=ours.num_in_flight,
        imported_at=None if imported is None else float(imported),
    )
    if not is_dry_run and imported is None:
        num = await correct_attempts(store, known, kind="reconcile", now=now)
        result = msgspec.structs.replace(result, num_corrected=num)
        await _conclude(store, result, mark, now)
    return result


async def _match(
    connection: AsyncConnection,
    provider: str,
    chunk: list[IdCharge],
    sides: tuple[Theirs, Ours, _Matched, dict[str, str]],
    ids: IdCharges,
) -> None:
    theirs, ours, matched, aliases = sides
    wanted = {each.attempt_id for each in chunk} | {each.request_id for each in chunk}
    found = await find_attempts(
        connection, provider, sorted(wanted - {""}), has_models=theirs.has_models
    )
    by_attempt = {each.attempt_id: each for each in found}
    by_request: dict[str, list[Attempt]] = {}
    for each in found:
        by_request.setdefault(each.request_id, []).append(each)
    for charge in chunk:
        attempt = by_attempt.get(charge.attempt_id)
        if attempt is None:
            # Of a request with several attempts at this provider nobody knows whose it is.
            of_request = by_request.get(charge.request_id, [])
            attempt = of_request[0] if charge.request_id and len(of_request) == 1 else None
        if attempt is None:
            group = (family(theirs, charge.model, aliases), charge.day)
            _add(theirs.charge(group), charge)
            continue
        matched.num_rows += charge.rows
        _add(matched.theirs.setdefault(attempt.group, Charge()), charge)
        if attempt.is_open:
            ours.estimated.pop(attempt.attempt_id, None)
            _, bill = matched.estimated.setdefault(attempt.attempt_id, (attempt, Charge()))
            _add(bill, charge)
        if ids.is_first(attempt.attempt_id):
            _take_out(ours, matched, attempt)


def _take_out(ours: Ours, matched: _Matched, attempt: Attempt) -> None:
    """An attempt with a bill of its own is no more in the sum that the others are compared with."""
    if attempt.is_exact and attempt.group in ours.exact:
        ours.exact[attempt.group].add(-attempt.nanos, [-each for each in attempt.tokens], -1)
    if not attempt.is_open:
        matched.ours.setdefault(attempt.group, Sum()).add(attempt.nanos, attempt.tokens)


def _add(charge: Charge, row: IdCharge) -> None:
    charge.add_nanos(row.nanos, row.tokens, row.rows)


def _plan(
    reader: ExportReader, theirs: Theirs, ours: Ours, matched: _Matched, *, is_booked: bool
) -> tuple[list[KnownCost], list[ModelDay]]:
    by_group: dict[Group, list[Attempt]] = {}
    for attempt in ours.estimated.values():
        by_group.setdefault(attempt.group, []).append(attempt)
    billed: dict[Group, list[tuple[Attempt, Charge]]] = {}
    for attempt, bill in matched.estimated.values():
        billed.setdefault(attempt.group, []).append((attempt, bill))
    source = f"{reader.format.name} {reader.name[:100]} sha256:{reader.sha256}"
    known: list[KnownCost] = []
    days: list[ModelDay] = []
    groups = {*theirs.groups, *matched.theirs, *ours.exact, *by_group}
    # Days with a model that is none of ours; perhaps it is, under a name we do not know.
    of_ours = {*matched.theirs, *ours.exact, *by_group}
    strange = {group[1] for group in theirs.groups if group not in of_ours}
    for group in sorted(groups, key=lambda each: (each[1], each[0])):
        rest = theirs.groups.get(group) or Charge()
        exact = ours.exact.get(group) or Sum()
        its = sorted(by_group.get(group, []), key=lambda each: each.attempt_id)
        plan = plan_day(reader.format, theirs.measures, rest, exact, its, billed.get(group, []))
        if is_booked:
            plan = plan.unchanged()
        elif not rest.rows and group[1] in strange:
            plan = plan.without_shares()
        known += plan.known(source, source + SHARED)
        exact.add_all(matched.ours.get(group) or Sum())
        rest.add_all(matched.theirs.get(group) or Charge())
        day = model_day(group, _shown_name(group[0], theirs, ours), rest, exact, plan)
        if not day.is_void:
            days.append(day)
    return known, days


def _shown_name(found: str, theirs: Theirs, ours: Ours) -> str:
    if found == ALL_MODELS:
        return "(all models)"
    return ", ".join(sorted(ours.names.get(found) or theirs.names.get(found) or {found}))


def _result(
    reader: ExportReader,
    provider: str,
    theirs: Theirs,
    days: list[ModelDay],
    *,
    is_dry_run: bool,
) -> Reconciliation:
    total = ModelDay.total(days, TOTAL)
    alarming = [each for each in (*days, total) if each.is_alarm]
    alerts = [LedgerAlert("reconcile_drift", f"{provider} {each.sentence}", nanos=each.drift_nanos)
              for each in alarming[:ALERTS_MAX]]  # fmt: skip
    if total.is_alarm and len(alarming) > ALERTS_MAX:
        alerts[-1] = LedgerAlert(
            "reconcile_drift", f"{provider} {total.sentence}", nanos=total.drift_nanos
        )
    return Reconciliation(
        provider=provider,
        export=reader.name,
        sha256=reader.sha256,
        format=reader.format.name,
        num_rows=theirs.num_rows,
        num_by_id=0,
        is_dry_run=is_dry_run,
        imported_at=None,
        num_corrected=0,
        num_in_flight=0,
        days=tuple(days),
        total=total,
        alerts=tuple(alerts),
    )


async def _conclude(store: Store, result: Reconciliation, mark: str, now: float) -> None:
    """That this file was imported, and an event for those who ask later what was found."""
    detail: dict[str, Any] = {
        "export": result.export[:200],
        "sha256": result.sha256,
        "format": result.format,
        "rows": result.num_rows,
        "corrected_attempts": result.num_corrected,
        "corrected_usd": dollars(result.total.corrected_nanos),
        "drift_usd": dollars(result.total.drift_nanos),
        "alerts": [alert.message for alert in result.alerts],
    }
    event = AuditEvent(
        tenant_id=WHOLE_GATEWAY,
        at=now,
        actor="cli",
        action="ledger.drift" if result.alerts else "ledger.reconcile",
        subject=result.provider,
        detail=detail,
    )
    async with store.begin() as connection:
        await put_meta(connection, mark, repr(now))
        await append_events(connection, [event])


def _mark(provider: str, sha256: str, aliases: dict[str, str]) -> str:
    """What is noted of an import. Under other names for its models a file is another one."""
    names = "".join(f":{theirs}={ours}" for theirs, ours in sorted(aliases.items()))
    return f"reconciled:{provider}:{sha256}{names}"
