"""What the planner is told of prices to come."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from gateway.batch.offers import price_windows
from gateway.core import Endpoint, PriceRow
from gateway.policy.placement import LaneOffer, LineGroup, place
from gateway.prices.book import PriceBook
from gateway.wire.pieces import Dialect

PEAK_S = datetime(2026, 9, 14, 1, 30, tzinfo=UTC).timestamp()  # a Monday; peak until 04:00
HALF_PAST_TWO_HOURS_S = 2.5 * 3_600.0


def _endpoint(base_url: str, model: str) -> Endpoint:
    return Endpoint(
        id=f"p/{model}", provider="p", api=Dialect.OPENAI, base_url=base_url, model=model
    )


def test_hours_of_the_price_list_reach_the_planner_which_waits_for_them() -> None:
    endpoint = _endpoint("https://api.deepseek.com/v1", "deepseek-v4-pro")
    book = PriceBook()
    windows = price_windows(endpoint, book.rows(endpoint, PEAK_S), book, PEAK_S)
    offer = LaneOffer(
        id="p#standard",
        endpoint_id=endpoint.id,
        model="m",
        windows=windows,
        lines_per_s=10.0,
    )
    lines = LineGroup(
        batch_id="b",
        model="m",
        count=100,
        prompt_tokens=500.0,
        output_tokens=200.0,
        deadline_at_s=PEAK_S + 6.0 * 3_600.0,
    )

    placement = place([lines], [offer], PEAK_S)

    assert len(windows) > 2
    assert windows[-1].until_s == math.inf
    assert placement.allocations[0].not_before_s == PEAK_S + HALF_PAST_TWO_HOURS_S
    assert 2 * placement.cost_nanos == placement.list_cost_nanos


def test_without_hours_the_fleets_rows_stand() -> None:
    rows = (PriceRow(source="policy", input=3, output=4),)

    (window,) = price_windows(_endpoint("https://llm.example.com", "x"), rows, PriceBook(), PEAK_S)

    assert window.rows is rows
    assert (window.from_s, window.until_s) == (-math.inf, math.inf)
