"""Our own plain CSV, for every provider without a format of its own (see docs/reconcile.md)."""

from __future__ import annotations

from gateway.ledger.exports.rows import (
    Cells,
    ExportRow,
    Format,
    day_cell,
    dollars_cell,
    text_cell,
    tokens_cell,
)
from gateway.wire.usage import BUCKETS

TOKEN_COLUMNS = {f"{bucket}_tokens": bucket for bucket in BUCKETS}
IDS = ("attempt_id", "request_id")
REQUIRED = ("day", "model", "cost_usd")


def _read(cells: Cells) -> ExportRow:
    return ExportRow(
        day=day_cell(cells, "day"),
        model=text_cell(cells, "model"),
        cost=dollars_cell(cells, "cost_usd"),
        tokens={
            bucket: tokens_cell(cells, column)
            for column, bucket in TOKEN_COLUMNS.items()
            if column in cells
        },
        attempt_id=text_cell(cells, "attempt_id"),
        request_id=text_cell(cells, "request_id"),
    )


def _buckets(columns: frozenset[str]) -> tuple[str, ...]:
    return tuple(bucket for column, bucket in TOKEN_COLUMNS.items() if column in columns)


FORMAT = Format(
    name="plain",
    title="the plain CSV",
    required=REQUIRED,
    read=_read,
    buckets=_buckets,
    has_cost=True,
    optional=(*TOKEN_COLUMNS, *IDS),
)
