"""OpenAI's export of costs: dollars a day and line item.

Columns after the costs object of the administration API and exports that others have published.
Grouped by line item, a line is "gpt-5-2025-08-07, cached input", perhaps with a tier before
("priority | …") and a modality behind the model; ungrouped, it is blank and the row is the day's.
"""

from __future__ import annotations

from gateway.ledger.exports.rows import (
    Cells,
    ExportRow,
    Format,
    dollars_cell,
    shown,
    text_cell,
    unix_day_cell,
)

REQUIRED = ("start_time", "amount_value", "amount_currency", "line_item")
_MODALITIES = (" audio", " image", " text")


def _read(cells: Cells) -> ExportRow:
    day = unix_day_cell(cells, "start_time")
    if not any(cells[name].strip() for name in REQUIRED[1:]):
        return ExportRow(day=day, is_empty=True)
    currency = cells["amount_currency"].strip()
    if currency.lower() != "usd":
        raise ValueError(f"amount_currency is {shown(currency)}; only usd can be reconciled")
    return ExportRow(
        day=day,
        model=model_of_line(text_cell(cells, "line_item")),
        cost=dollars_cell(cells, "amount_value"),
    )


def model_of_line(line_item: str) -> str:
    """The model that a line item is of; the line itself where it is of no model."""
    name = line_item.rpartition(" | ")[2].partition(",")[0].strip()
    for modality in _MODALITIES:
        name = name.removesuffix(modality)
    return name


FORMAT = Format(
    name="openai_costs",
    title="OpenAI's cost export (cost_….csv)",
    required=REQUIRED,
    read=_read,
    buckets=lambda _: (),
    has_cost=True,
)
