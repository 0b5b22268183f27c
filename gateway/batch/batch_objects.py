"""Batches as OpenAI's and Anthropic's APIs show them; what is only ours is under `looprouter`."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from gateway.batch.line_check import URL_OF
from gateway.core import dollars
from gateway.store.batches import BatchRow, LineCounts
from gateway.wire.pieces import Surface

NO_LINES = LineCounts(by_state={})
_FAILED = ("errored", "expired", "cancelled")


def openai_json(row: BatchRow, counts: LineCounts = NO_LINES) -> dict[str, Any]:
    errors = msgspec.json.decode(row.errors) if row.errors else []
    # OpenAI counts what was cancelled or expired as neither completed nor failed.
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": URL_OF[Surface(row.surface)],
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": row.input_file_id,
        "completion_window": row.completion_window,
        "status": row.state,
        "output_file_id": row.output_file_id or None,
        "error_file_id": row.error_file_id or None,
        "created_at": int(row.created_at),
        "in_progress_at": _whole(row.in_progress_at),
        "expires_at": int(row.deadline_at),
        "finalizing_at": _whole(row.finalizing_at),
        "completed_at": _whole(row.completed_at),
        "failed_at": _whole(row.failed_at),
        "expired_at": _whole(row.expired_at),
        "cancelling_at": _whole(row.cancelling_at),
        "cancelled_at": _whole(row.cancelled_at),
        "request_counts": {
            "total": row.num_lines,
            "completed": counts.count("succeeded"),
            "failed": counts.count("errored"),
        },
        "metadata": msgspec.json.decode(row.metadata) if row.metadata else None,
        "looprouter": ours_json(row, counts),
    }


def anthropic_json(row: BatchRow, counts: LineCounts, *, results_url: str) -> dict[str, Any]:
    """`results_url` is shown from the end on, as Anthropic does."""
    status = "ended" if row.is_ended else "in_progress"
    if row.state == "cancelling":
        status = "canceling"
    ended_at = row.completed_at or row.cancelled_at or row.expired_at or row.failed_at
    return {
        "id": row.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": row.num_lines - counts.count("succeeded", *_FAILED),
            "succeeded": counts.count("succeeded"),
            "errored": counts.count("errored"),
            "canceled": counts.count("cancelled"),
            "expired": counts.count("expired"),
        },
        "ended_at": _rfc3339(ended_at),
        "created_at": _rfc3339(row.created_at),
        "expires_at": _rfc3339(row.deadline_at),
        "archived_at": None,
        "cancel_initiated_at": _rfc3339(row.cancelling_at),
        "results_url": results_url if row.is_ended and row.output_file_id else None,
        "looprouter": ours_json(row, counts),
    }


def ours_json(row: BatchRow, counts: LineCounts) -> dict[str, Any]:
    """Lines by state, the money of those that ended, and the newest plan; dollars as strings."""
    return {
        "deadline_at": row.deadline_at,
        "max_cost_usd": dollars(row.max_cost_nanos) if row.max_cost_nanos is not None else None,
        "lines": counts.by_state,
        "num_estimated": counts.num_estimated,
        "cost_usd": dollars(counts.cost_nanos),
        "billed_usd": dollars(counts.billed_nanos),
        "list_price_usd": dollars(counts.list_nanos),
        "plan": msgspec.json.decode(row.plan) if row.plan else None,
        "planned_at": row.planned_at,
    }


def _whole(instant: float | None) -> int | None:
    return int(instant) if instant is not None else None


def _rfc3339(instant: float | None) -> str | None:
    if instant is None:
        return None
    moment = datetime.datetime.fromtimestamp(instant, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
