"""OpenAI's export of completions usage: tokens by bucket of time, model, key and project.

Columns after the usage object of the administration API and exports that others have published:
numbers are written as "120.0", buckets without usage as a row of blanks, `input_tokens` holds the
cached ones and `input_text_tokens` does not. Reasoning is part of the output. No dollars.
"""

from __future__ import annotations

from gateway.ledger.exports.rows import (
    Cells,
    ExportRow,
    Format,
    difference,
    text_cell,
    tokens_cell,
    unix_day_cell,
)

REQUIRED = (
    "start_time", "num_model_requests", "model", "input_tokens", "output_tokens",
    "input_cached_tokens",
)  # fmt: skip
# Which columns, where there are any, tell what beyond text.
_MORE = {
    "input_audio_tokens": "audio_input",
    "output_audio_tokens": "audio_output",
    "input_image_tokens": "image_input",
}


def _read(cells: Cells) -> ExportRow:
    day = unix_day_cell(cells, "start_time")
    if not any(cells[name].strip() for name in REQUIRED[1:]):
        return ExportRow(day=day, is_empty=True)
    tokens = {
        "input": _text_or(cells, "input_text_tokens", "input_tokens", "input_cached_tokens"),
        "cached_read": tokens_cell(cells, "input_cached_tokens"),
        "output": _text_or(cells, "output_text_tokens", "output_tokens", "output_audio_tokens")
        + tokens_cell(cells, "output_image_tokens"),
    }
    for column, bucket in _MORE.items():
        if column in cells:
            tokens[bucket] = tokens_cell(cells, column)
    return ExportRow(day=day, model=text_cell(cells, "model"), tokens=tokens)


def _text_or(cells: Cells, text: str, total: str, part: str) -> int:
    if cells.get(text, "").strip():
        return tokens_cell(cells, text)
    return difference(cells, total, part)


def _buckets(columns: frozenset[str]) -> tuple[str, ...]:
    more = (bucket for column, bucket in _MORE.items() if column in columns)
    return ("input", "cached_read", "output", *more)


FORMAT = Format(
    name="openai_usage",
    title="OpenAI's usage export (completions_usage_….csv)",
    required=REQUIRED,
    read=_read,
    buckets=_buckets,
    has_cost=False,
)
