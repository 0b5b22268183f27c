"""A reconciliation as people and as scripts read it."""

from __future__ import annotations

from typing import Any

from gateway.core import dollars
from gateway.ledger.reconcile import Reconciliation
from gateway.ledger.reconcile_days import ModelDay
from gateway.ledger.windows import rfc3339

HEADER = (
    "DAY", "MODEL", "ATTEMPTS", "THEIRS $", "OURS $", "CORRECTED $", "DRIFT $", "DRIFT",
    "TOKENS THEIRS-OURS",
)  # fmt: skip


def as_row(day: ModelDay) -> tuple[str, ...]:
    """The cells under HEADER."""
    has_cost = day.theirs_nanos is not None
    tokens = " ".join(f"{name}{number:+d}" for name, number in day.drift_tokens.items() if number)
    return (
        day.day or "all",
        day.model,
        f"{day.num_attempts}" + (f" ({day.num_estimated} est.)" if day.num_estimated else ""),
        "–" if day.theirs_nanos is None else dollars(day.theirs_nanos),
        dollars(day.ours_nanos),
        dollars(day.corrected_nanos),
        dollars(day.drift_nanos) if has_cost else "–",
        _share(day) + (" ✗" if day.is_alarm else ""),
        tokens or ("0" if day.theirs_tokens else "–"),
    )


def booked_sentence(found: Reconciliation) -> str:
    """What was booked, or why nothing was."""
    attempts = "attempt" if found.num_corrected == 1 else "attempts"
    by = dollars(found.total.corrected_nanos)
    what = f"{found.num_corrected} estimated {attempts} by ${by}"
    if found.imported_at is not None:
        when = rfc3339(found.imported_at)
        return f"Nothing was booked: this file was reconciled before, at {when}."
    if found.is_dry_run:
        return f"Nothing was booked (dry run); it would correct {what}."
    if not found.num_corrected:
        return "Nothing was to be booked."
    return f"Corrected {what}."


def as_json(found: Reconciliation) -> dict[str, Any]:
    """JSON-able; dollars are exact decimal strings."""
    return {
        "provider": found.provider,
        "export": found.export,
        "sha256": found.sha256,
        "format": found.format,
        "rows": found.num_rows,
        "rows_by_id": found.num_by_id,
        "is_dry_run": found.is_dry_run,
        "imported_before": None if found.imported_at is None else rfc3339(found.imported_at),
        "corrected_attempts": found.num_corrected,
        "in_flight": found.num_in_flight,
        "days": [_day(day) for day in found.days],
        "total": _day(found.total),
        "alerts": [{"kind": each.kind, "message": each.message} for each in found.alerts],
    }


def _day(day: ModelDay) -> dict[str, Any]:
    has_cost = day.theirs_nanos is not None
    return {
        "day": day.day,
        "model": day.model,
        "attempts": day.num_attempts,
        "estimated": day.num_estimated,
        "theirs_usd": None if day.theirs_nanos is None else dollars(day.theirs_nanos),
        "ours_usd": dollars(day.ours_nanos),
        "corrected_usd": dollars(day.corrected_nanos),
        "drift_usd": dollars(day.drift_nanos) if has_cost else None,
        "drift_share": day.drift_share,
        "is_alarm": day.is_alarm,
        "theirs_tokens": day.theirs_tokens,
        "ours_tokens": day.ours_tokens,
    }


def _share(day: ModelDay) -> str:
    share = day.drift_share
    return "∞" if share is None else f"{share:+.2%}" if share else "0 %"
