"""The average price of an own machine's tokens: by window, bounded, never nothing."""

from __future__ import annotations

import pytest

from gateway.core import Endpoint, PriceRow
from gateway.prices.book import PriceBook
from gateway.prices.machine_meter import WINDOW_S, MachineMeter
from gateway.prices.rows import average_row, cost_nanos
from gateway.wire.usage import Usage
from tests.support.fleet_world import endpoint, whole

HOUR_NANOS = 2_100_000_000
ASSUMED = average_row(HOUR_NANOS, 1_000_000, "assumed:own/m")
BEGAN_S = 1_800_000_000.0 - 1_800_000_000.0 % WINDOW_S


def own(endpoint_id: str = "own/m", **changes: object) -> Endpoint:
    fields: dict[str, object] = {
        "usd_per_hour_nanos": HOUR_NANOS,
        "machine": "own",
        "tokens_per_hour_min": 1_000_000,
        "prices": (ASSUMED,),
        **changes,
    }
    return endpoint(endpoint_id, **fields)


OWN = own()


def count(meter: MachineMeter, num_tokens: int, at_s: float, one: Endpoint = OWN) -> None:
    usage = Usage(input=num_tokens // 4, cached_read=num_tokens // 4, output=num_tokens // 2)
    outcome = whole(at_s, seconds=1.0, tokens=1, endpoint_id=one.id, usage=usage)
    meter.observe({one.id: one}, [outcome], at_s)


def test_window_is_priced_by_the_tokens_of_the_one_before() -> None:
    meter = MachineMeter(BEGAN_S)
    count(meter, 400_000, BEGAN_S + 10.0)
    count(meter, 400_000, BEGAN_S + 590.0)
    assert meter.rows(OWN, BEGAN_S + 599.0) == ()
    (row,) = meter.rows(OWN, BEGAN_S + 600.0)

    # Ten minutes of $2.10 an hour over 800,000 tokens: $0.4375 a million.
    assert (row.input, row.output, row.cached_read) == (437_500, 437_500, 437_500)
    assert row.source == "self_hosted"
    assert row.price_id.startswith("measured:own@")
    assert row.price_id.endswith(":800000")
    count(meter, 100_000, BEGAN_S + 700.0)
    assert meter.rows(OWN, BEGAN_S + 1_199.0) == (row,)


def test_what_is_billed_under_an_even_load_is_what_the_machine_costs() -> None:
    meter, billed_nanos = MachineMeter(BEGAN_S), 0
    book = PriceBook(live_rows=meter.rows)
    for second in range(3 * WINDOW_S):
        at_s = BEGAN_S + second
        if second >= WINDOW_S:
            (row,) = book.rows(OWN, at_s)
            billed_nanos += cost_nanos(row, Usage(input=500, output=500))
        count(meter, 1_000, at_s)

    assert billed_nanos == pytest.approx(HOUR_NANOS * 2 * WINDOW_S / 3_600, rel=1e-4)


@pytest.mark.parametrize("num_tokens", [0, 1_000, 166_666])
def test_quiet_window_is_priced_as_assumed_and_never_at_nothing(num_tokens: int) -> None:
    meter = MachineMeter(BEGAN_S)
    book = PriceBook(live_rows=meter.rows)
    if num_tokens:
        count(meter, num_tokens, BEGAN_S + 1.0)
    (row,) = book.rows(OWN, BEGAN_S + 601.0)

    assert row == ASSUMED
    assert row.input > 0


def test_idle_window_after_a_busy_one_forgets_it() -> None:
    meter = MachineMeter(BEGAN_S)
    count(meter, 900_000, BEGAN_S + 1.0)
    assert meter.rows(OWN, BEGAN_S + 601.0)

    assert meter.rows(OWN, BEGAN_S + 1_201.0) == ()
    assert meter.rows(OWN, BEGAN_S + 9_999.0) == ()


def test_first_window_counts_only_if_half_of_it_was_seen_and_then_for_what_was_seen() -> None:
    late = MachineMeter(BEGAN_S + 301.0)
    half = MachineMeter(BEGAN_S + 300.0)
    for meter in (late, half):
        count(meter, 800_000, BEGAN_S + 400.0)

    assert late.rows(OWN, BEGAN_S + 601.0) == ()
    (row,) = half.rows(OWN, BEGAN_S + 601.0)
    assert row.input == 218_750  # five minutes' money


def test_endpoints_of_one_machine_share_its_hour() -> None:
    other = own("own/n")
    alone = own("own/x", machine="own/x")
    meter = MachineMeter(BEGAN_S)
    count(meter, 400_000, BEGAN_S + 1.0)
    count(meter, 400_000, BEGAN_S + 1.0, other)
    count(meter, 400_000, BEGAN_S + 1.0, alone)
    rows = [meter.rows(each, BEGAN_S + 601.0)[0].input for each in (OWN, other, alone)]

    assert rows == [437_500, 437_500, 875_000]


def test_machines_own_account_counts_what_others_sent_it() -> None:
    meter = MachineMeter(BEGAN_S)
    for second in range(600):
        meter.report("own", 2_000.0, BEGAN_S + second)
    count(meter, 300_000, BEGAN_S + 599.0)
    (row,) = meter.rows(OWN, BEGAN_S + 601.0)

    assert row.price_id.endswith(":1198000")


def test_gap_between_two_accounts_is_not_filled_in() -> None:
    meter = MachineMeter(BEGAN_S)
    meter.report("own", 10_000.0, BEGAN_S)
    meter.report("own", 10_000.0, BEGAN_S + 500.0)

    assert meter.rows(OWN, BEGAN_S + 601.0) == ()


def test_operators_stated_price_is_not_overruled() -> None:
    meter = MachineMeter(BEGAN_S)
    count(meter, 900_000, BEGAN_S + 1.0)
    stated = PriceRow(source="policy", input=7, output=9)

    assert PriceBook(live_rows=meter.rows).rows(own(prices=(stated,)), BEGAN_S + 601.0) == (stated,)


def test_machine_that_costs_next_to_nothing_is_not_free() -> None:
    assert average_row(1, 10**12, "x").input == 1
    assert cost_nanos(average_row(1, 10**12, "x"), Usage(input=1)) == 1


def test_other_endpoints_are_not_counted() -> None:
    meter = MachineMeter(BEGAN_S)
    paid = endpoint("paid/m")
    meter.observe({}, [whole(BEGAN_S, seconds=1.0, tokens=1, endpoint_id="gone/m")], BEGAN_S)
    count(meter, 900_000, BEGAN_S + 1.0, paid)

    assert meter.rows(paid, BEGAN_S + 601.0) == ()
    assert meter.rows(OWN, BEGAN_S + 601.0) == ()
