"""OpenRouter's export of its activity page: a row a generation, tokens and dollars.

Columns after its documentation and exports that others have published. Instants are in UTC; cached
tokens are among the prompt's, reasoning tokens among the completion's. Its generation ids are none
that we keep, so rows are summed by day and model.
"""

from __future__ import annotations

from gateway.ledger.exports.rows import (
    Cells,
    ExportRow,
    Format,
    day_cell,
    difference,
    dollars_cell,
    text_cell,
    tokens_cell,
)


def _read(cells: Cells) -> ExportRow:
    model = text_cell(cells, "model_permaslug")
    variant = text_cell(cells, "variant")
    if variant and variant != "standard" and ":" not in model:
        model = f"{model}:{variant}"
    return ExportRow(
        day=day_cell(cells, "created_at"),
        model=model or "(no model)",
        cost=dollars_cell(cells, "cost_total"),
        tokens={
            "input": difference(cells, "tokens_prompt", "tokens_cached"),
            "cached_read": tokens_cell(cells, "tokens_cached"),
            "output": difference(cells, "tokens_completion", "tokens_reasoning"),
            "reasoning": tokens_cell(cells, "tokens_reasoning"),
        },
    )


FORMAT = Format(
    name="openrouter_activity",
    title="OpenRouter's activity export",
    required=(
        "generation_id", "created_at", "cost_total", "tokens_prompt", "tokens_completion",
        "tokens_reasoning", "tokens_cached", "model_permaslug",
    ),
    read=_read,
    buckets=lambda _: ("input", "cached_read", "output", "reasoning"),
    has_cost=True,
)  # fmt: skip
