"""Lanes and groups of lines for tests of the batch planner, at prices that are easy to add up."""

from __future__ import annotations

from typing import Any

from gateway.core import PriceRow
from gateway.policy.placement import LaneOffer, LineGroup, PriceWindow

HOUR_S = 3_600.0
LINE_NANOS = 1_000_000  # of a line at factor 1: a thousandth of a dollar


def row(factor: float, tier: str = "standard", **changed: Any) -> PriceRow:
    """A line of 1,000 prompt tokens costs factor · LINE_NANOS; output is free."""
    picos = round(factor * LINE_NANOS)
    return PriceRow(source="policy", tier=tier, input=picos, output=0, free=("output",), **changed)


def always(factor: float, tier: str = "standard") -> tuple[PriceWindow, ...]:
    return (PriceWindow(rows=(row(factor, tier),)),)


def at_once(endpoint: str, factor: float, lines_per_s: float, **changed: Any) -> LaneOffer:
    """A lane that answers at once; `tier`, `kind` and `windows` may be stated."""
    tier = changed.pop("tier", "standard")
    stated = {"windows": always(factor, tier), "kind": "sync", "model": "m", **changed}
    return LaneOffer(
        id=f"{endpoint}#{tier}",
        endpoint_id=endpoint,
        tier=tier,
        lines_per_s=lines_per_s,
        **stated,
    )


def native(endpoint: str, factor: float, **changed: Any) -> LaneOffer:
    """A provider's batch API; unlearned unless quantiles are stated."""
    return LaneOffer(
        id=f"{endpoint}#native",
        endpoint_id=endpoint,
        model="m",
        kind="native",
        windows=always(factor, "batch"),
        **changed,
    )


def group(count: int, deadline_at_s: float, batch_id: str = "b", **changed: Any) -> LineGroup:
    """Lines of 1,000 prompt tokens."""
    stated = {"model": "m", "prompt_tokens": 1_000.0, "output_tokens": 100.0, **changed}
    return LineGroup(batch_id=batch_id, count=count, deadline_at_s=deadline_at_s, **stated)
