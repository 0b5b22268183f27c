"""Anthropic's export of usage from its console: tokens a day, model, key and workspace. No dollars.

Columns after exports that others have published; they are the buckets of the usage report of the
administration API.
"""

from __future__ import annotations

from gateway.ledger.exports.rows import Cells, ExportRow, Format, day_cell, text_cell, tokens_cell

_BUCKETS = {
    "usage_input_tokens_no_cache": "input",
    "usage_input_tokens_cache_read": "cached_read",
    "usage_input_tokens_cache_write_5m": "cache_write_5m",
    "usage_input_tokens_cache_write_1h": "cache_write_1h",
    "usage_output_tokens": "output",
}


def _read(cells: Cells) -> ExportRow:
    return ExportRow(
        day=day_cell(cells, "usage_date_utc"),
        model=text_cell(cells, "model_version"),
        tokens={bucket: tokens_cell(cells, column) for column, bucket in _BUCKETS.items()},
    )


FORMAT = Format(
    name="anthropic_usage",
    title="Anthropic's usage export",
    required=("usage_date_utc", "model_version", *_BUCKETS),
    read=_read,
    buckets=lambda _: tuple(_BUCKETS.values()),
    has_cost=False,
)
