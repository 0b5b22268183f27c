"""The invoice of a simulated provider as the plain CSV that `ledger reconcile` reads."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from gateway.core import dollars
from gateway.ledger.exports.plain import TOKEN_COLUMNS
from gateway.ledger.windows import day_of
from gateway.simulator.meter import InvoiceLine


def write_invoice(
    path: Path, lines: Iterable[InvoiceLine], *, has_ids: bool = True, shift_s: float = 0.0
) -> Path:
    """
    `shift_s` is added to the provider's clock, where it is not unix time.

    A request told the provider our attempt's id, a line of a native batch our request's.
    """
    columns = [name for name, bucket in TOKEN_COLUMNS.items() if is_counted(bucket)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        ids = ["attempt_id", "request_id"] if has_ids else []
        writer.writerow(["day", "model", *columns, "cost_usd", *ids])
        for line in lines:
            told = [line.client_request_id] * len(ids)
            tokens = [getattr(line, TOKEN_COLUMNS[name]) for name in columns]
            day = day_of(line.at_s + shift_s)
            writer.writerow([day, line.model, *tokens, dollars(line.cost_nanos), *told])
    return path


def is_counted(bucket: str) -> bool:
    """Simulated providers count text alone."""
    return bucket in InvoiceLine.__struct_fields__
