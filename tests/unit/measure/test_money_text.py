"""Nano-dollars to text and back, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.status import estimate_text, nanos_of, span_text
from gateway.core import dollars


@given(st.integers(0, 10**18))
def test_dollars_and_nanos_are_each_others_reverse(nanos: int) -> None:
    assert nanos == nanos_of(dollars(nanos))


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "0.00"),
        (1, "0.000000001"),
        (5_100, "0.0000051"),
        (10**9, "1.00"),
        (-2_500_000_000, "-2.50"),
    ],
)
def test_dollars_are_exact_and_short(nanos: int, text: str) -> None:
    assert text == dollars(nanos)


def test_an_estimate_carries_its_interval_and_n() -> None:
    shown = estimate_text({"value": 0.312, "low": 0.28, "high": 0.35, "n": 41.0}, 1000, " ms")

    assert shown == "312 ms\n280–350, n 41"


def test_a_prior_without_samples_is_not_shown() -> None:
    assert estimate_text({"value": 0.95, "low": 0.8, "high": 1.0, "n": 0.0}, 100, " %") == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.9, "5 s"), (65, "1 min 5 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert text == span_text(seconds)
