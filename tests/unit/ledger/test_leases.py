"""Windows and slices: pure arithmetic."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import NANOS_PER_DOLLAR, dollars
from gateway.ledger.leases import Budget, Grant, exhausted, slice_nanos
from gateway.ledger.windows import Window, window_of

nanos = st.integers(0, 10**13)


def unix(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp())  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("period", "now", "start", "end"),
    [
        ("day", unix(2026, 2, 28, 23, 59, 59) + 0.9, unix(2026, 2, 28), unix(2026, 3, 1)),
        ("day", unix(2026, 3, 1), unix(2026, 3, 1), unix(2026, 3, 2)),
        ("month", unix(2024, 2, 29, 12), unix(2024, 2, 1), unix(2024, 3, 1)),
        ("month", unix(2026, 12, 31, 23, 59, 59), unix(2026, 12, 1), unix(2027, 1, 1)),
        ("total", unix(2026, 5, 5), 0, math.inf),
    ],
)
def test_a_window_begins_and_ends_at_the_period_in_utc(
    period: str, now: float, start: int, end: float
) -> None:
    assert Window(start, end) == window_of(period, now)


def test_an_unknown_period_is_refused() -> None:
    with pytest.raises(ValueError, match="use day, month or total"):
        window_of("week", 0.0)


@settings(max_examples=60)
@given(remaining=nanos, headroom=nanos, demands=st.lists(nanos, max_size=6))
def test_a_slice_never_passes_what_remains(
    remaining: int, headroom: int, demands: list[int]
) -> None:
    assert 0 <= slice_nanos(remaining, headroom, demands) <= remaining


@settings(max_examples=60)
@given(remaining=nanos, headroom=nanos, demand=st.integers(1, 10**13))
def test_a_slice_covers_a_hold_that_can_be_covered_and_takes_nothing_for_one_that_cannot(
    remaining: int, headroom: int, demand: int
) -> None:
    slice_ = slice_nanos(remaining, headroom, [demand])

    if demand <= remaining + headroom:
        assert demand <= headroom + slice_
    else:
        assert slice_ == 0


def test_a_top_up_is_five_percent_and_at_most_a_dollar() -> None:
    assert slice_nanos(10 * NANOS_PER_DOLLAR, 0, []) == NANOS_PER_DOLLAR // 2
    assert slice_nanos(1_000 * NANOS_PER_DOLLAR, 0, []) == NANOS_PER_DOLLAR


def test_a_refill_takes_what_all_waiting_holds_need_and_leaves_out_the_one_too_large() -> None:
    assert slice_nanos(60, 10, [30, 500, 40]) == 60


def test_a_refusal_says_which_budget_how_much_and_when_it_resets() -> None:
    budget = Budget("b1", "ten", "team", "ops", "day", 5 * NANOS_PER_DOLLAR)
    start = unix(2026, 3, 1)
    window = Window(start, start + 86_400)
    grant = Grant(budget, window, "l1", 0, 0, 0, 4 * NANOS_PER_DOLLAR, NANOS_PER_DOLLAR)

    error = exhausted(grant, needed_nanos=NANOS_PER_DOLLAR // 2, unwritten_nanos=0,
                      own_held_nanos=0)  # fmt: skip
    assert "team's budget per day of $5.00" in error.message
    assert error.detail == {
        "budget_id": "b1",
        "scope": "team",
        "period": "day",
        "limit_usd": "5.00",
        "spent_usd": "4.00",
        "held_usd": "1.00",
        "needed_usd": "0.50",
        "resets_at": "2026-03-02T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("nanos", "text"),
    [(0, "0.00"), (123_000, "0.000123"), (1_500_000_000, "1.50"), (-1, "-0.000000001")],
)
def test_dollars_are_exact_decimal_strings(nanos: int, text: str) -> None:
    assert text == dollars(nanos)
