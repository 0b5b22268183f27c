"""Numbers as people read them."""

from __future__ import annotations

import pytest

from gateway.dashboard import figures
from gateway.dashboard.board import Estimate


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1234.4, "1,234"), (56.71, "56.7"), (0.123, "0.12"), (0.0123, "0.0123")],
)  # fmt: skip
def test_number_keeps_three_digits(value: float, shown: str) -> None:
    assert figures.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.3121, "312 ms"), (1.836, "1.84 s"), (12.34, "12.3 s"), (240.0, "4 min")],
)
def test_seconds_take_the_unit_that_fits(value: float, shown: str) -> None:
    assert figures.seconds(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (1.0, "100 %"),
        (0.9999, "99.9 %"),
        (0.987, "98.7 %"),
        (0.0, "0.0 %"),
        (-8e-12, "0.0 %"),
        (-0.02, "-2.0 %"),
    ],
)
def test_percent_is_a_hundred_only_when_it_is(share: float, shown: str) -> None:
    assert figures.percent(share) == shown


@pytest.mark.parametrize(
    ("usd", "shown"),
    [
        ("0", "$0"), ("12.346", "$12.35"), ("1234.5", "$1,234.50"), ("0.5", "$0.500"),
        ("0.000056512", "$0.0000565"), ("0.000000001", "$0.000000001"),
    ],
)  # fmt: skip
def test_money_never_turns_a_small_sum_into_nothing(usd: str, shown: str) -> None:
    assert figures.money(usd) == shown


@pytest.mark.parametrize(
    ("exact", "shown"), [("15", "15.00"), ("0.59", "0.59"), ("0.075", "0.075")]
)
def test_price_is_exact(exact: str, shown: str) -> None:
    assert figures.price(exact) == shown


@pytest.mark.parametrize(
    ("low", "high", "unit", "shown"),
    [
        (0.28, 0.35, "s", "280–350 · n 41"),
        (0.8, 1.25, "s", "800–1.25 s · n 41"),
        (0.9, 0.995, "share", "90.0–99.5 · n 41"),
        (121.0, None, "", "≥ 121 · n 41"),
        (0.0, 0.4, "s", "≤ 400 · n 41"),
        (None, None, "", "n 41"),
    ],
)
def test_interval_leaves_out_an_end_that_is_not_bounded(
    low: float | None, high: float | None, unit: str, shown: str
) -> None:
    assert figures.interval(Estimate(value=1.0, low=low, high=high, n=41.0), unit) == shown
    assert figures.interval(None, unit) == ""


def test_sparkline_stays_in_its_box_and_starts_at_zero() -> None:
    pairs = [each.split(",") for each in figures.points([0.0, 5.0, 10.0]).split()]

    assert [float(x) for x, _ in pairs] == [0.0, 48.0, 96.0]
    assert [float(y) for _, y in pairs] == [23.0, 12.5, 2.0]
    assert figures.points([1.0]) == figures.area([]) == ""
    assert figures.area([0.0, 0.0]).startswith("0,24 ")
