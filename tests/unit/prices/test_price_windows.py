"""The price book ahead of time: which prices hold when, for a planner that may wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from gateway.core import Endpoint, PriceRow
from gateway.prices.book import PriceBook
from gateway.prices.rows import BATCH, complete_row
from gateway.wire.pieces import Dialect

HOUR_S = 3_600.0
DAY_S = 24.0 * HOUR_S
MONDAY = datetime(2026, 9, 14, 0, 30, tzinfo=UTC)  # DeepSeek bills peak hours since August 2026
FROM_S = MONDAY.timestamp()


def _endpoint(base_url: str, model: str, prices: tuple[PriceRow, ...] = ()) -> Endpoint:
    return Endpoint(
        id=f"p/{model}",
        provider="p",
        api=Dialect.OPENAI,
        base_url=base_url,
        model=model,
        prices=prices,
    )


DEEPSEEK = _endpoint("https://api.deepseek.com/v1", "deepseek-v4-pro")


def _clock(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%H:%M}"


def test_a_day_is_cut_where_the_price_changes() -> None:
    windows = PriceBook().windows(DEEPSEEK, FROM_S, FROM_S + DAY_S)

    edges = [_clock(window.from_s) for window in windows]
    assert edges == ["00:30", "01:00", "04:00", "06:00", "10:00"]
    assert windows[-1].until_s == FROM_S + DAY_S
    off_peak, peak = windows[0].rows[0], windows[1].rows[0]
    assert peak.output == 2 * off_peak.output
    assert all(before.until_s == after.from_s for before, after in pairwise(windows))


def test_midnight_and_the_weekend_are_no_edge_where_prices_stay() -> None:
    friday = MONDAY + timedelta(days=4, hours=12)

    windows = PriceBook().windows(DEEPSEEK, friday.timestamp(), friday.timestamp() + 2 * DAY_S)

    assert len(windows) == 1
    assert windows[0].until_s - windows[0].from_s == 2 * DAY_S


def test_each_window_has_the_rows_that_hold_in_it() -> None:
    book = PriceBook()

    for window in book.windows(DEEPSEEK, FROM_S, FROM_S + 7 * DAY_S):
        middle_s = (window.from_s + window.until_s) / 2.0
        priced = book.rows(DEEPSEEK, middle_s)
        assert [(row.tier, row.input, row.output) for row in window.rows] == [
            (row.tier, row.input, row.output) for row in priced
        ]


def test_looking_ahead_leaves_the_present_remembered() -> None:
    book = PriceBook()
    now = book.rows(DEEPSEEK, FROM_S)

    book.windows(DEEPSEEK, FROM_S, FROM_S + 7 * DAY_S)

    assert book.rows(DEEPSEEK, FROM_S + 1.0) is now


def test_batch_rows_are_in_every_window() -> None:
    openai = _endpoint("https://api.openai.com/v1", "gpt-4o")

    november_s = 1_796_000_000.0  # the list tells of batch prices from October 2026 on

    (window,) = PriceBook().windows(openai, november_s, november_s + 3 * DAY_S)

    assert any(row.tier == BATCH for row in window.rows)


@pytest.mark.parametrize("stated", [True, False])
def test_a_stated_price_and_an_unknown_model_are_one_window(stated: bool) -> None:
    rows = (complete_row(PriceRow(source="policy", input=5, output=7)),) if stated else ()
    endpoint = _endpoint("https://llm.example.com/v1", "nobody-knows-it", rows)

    (window,) = PriceBook().windows(endpoint, FROM_S, FROM_S + 7 * DAY_S)

    assert (window.from_s, window.until_s) == (FROM_S, FROM_S + 7 * DAY_S)
    assert window.rows[0].source == ("policy" if stated else "unpriced")
