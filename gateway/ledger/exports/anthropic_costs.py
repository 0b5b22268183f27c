"""Anthropic's export of costs from its console: dollars a day, model and kind of token.

Columns after exports that others have published. Costs are written in whole cents, and models by
their names for people ("Claude Haiku 4.5").
"""

from __future__ import annotations

from gateway.ledger.exports.rows import Cells, ExportRow, Format, day_cell, dollars_cell, text_cell

HALF_A_CENT_NANOS = 5_000_000


def _read(cells: Cells) -> ExportRow:
    # What is of no model, such as a web search, stays apart under its own name.
    model = text_cell(cells, "model") or f"({text_cell(cells, 'token_type') or 'no model'})"
    return ExportRow(
        day=day_cell(cells, "usage_date_utc"), model=model, cost=dollars_cell(cells, "cost_usd")
    )


FORMAT = Format(
    name="anthropic_costs",
    title="Anthropic's cost export",
    required=("usage_date_utc", "model", "token_type", "cost_usd"),
    read=_read,
    buckets=lambda _: (),
    has_cost=True,
    rounding_nanos=HALF_A_CENT_NANOS,
)
