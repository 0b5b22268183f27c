"""Numbers as people read them, the same in every language; functions of the templates.

A value too small for its unit keeps three significant digits; nothing is shown without a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from gateway.dashboard.board import Estimate

NONE = "–"
SPARK_WIDTH, SPARK_HEIGHT = 96.0, 24.0


def number(value: float) -> str:
    """`1,234`, `56.7`, `0.123`: three digits, thousands in groups."""
    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def seconds(value: float) -> str:
    """`312 ms`, `1.84 s`, `12.3 s`, `4 min`."""
    if value < 1.0:
        return f"{value * 1000:.0f} ms"
    if value < 10.0:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 100.0 else f"{value / 60:.0f} min"


def percent(share: float) -> str:
    """Of 1: `98.7 %`, `100 %`; never rounded to 100 when it is not."""
    shown = f"{share * 100:.1f}"
    if shown == "100.0":
        return "100 %" if share >= 1.0 else "99.9 %"
    if shown == "-0.0":  # what rounding left of nothing
        shown = "0.0"
    return f"{shown} %"


def money(usd: str) -> str:
    """A decimal string of dollars: cents from a dollar on, below it three digits that count."""
    value = Decimal(usd)
    if value == 0:
        return "$0"
    if abs(value) >= 1:
        return f"${value:,.2f}"
    places = max(2, 2 - value.adjusted())
    return f"${value:.{min(places, 9)}f}"


def price(usd_per_million: str) -> str:
    """Exact, at least two decimals as price lists have them: `0.59`, `15.00`, `0.075`."""
    whole, _, rest = usd_per_million.partition(".")
    return f"{whole}.{rest:0<2}"


def interval(estimate: Estimate | None, unit: str) -> str:
    """`280–350 · n 41`; an open end is left out: `≥ 280 · n 3`. `unit`: "s" | "share" | ""."""
    if estimate is None:
        return ""
    # Nothing measured here is below zero: an end at zero bounds nothing.
    low, high = _end(estimate.low or None, unit), _end(estimate.high, unit)
    n = f"n {estimate.n:,.0f}"
    if low and high:
        return f"{low}–{high} · {n}"
    return f"≥ {low} · {n}" if low else f"≤ {high} · {n}" if high else n


def _end(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s":
        return f"{value * 1000:.0f}" if value < 1.0 else f"{value:.2f} s"
    return f"{value * 100:.1f}" if unit == "share" else number(value)


def points(values: Sequence[float]) -> str:
    """A sparkline's polyline in a box of 96 × 24, from zero to its highest value."""
    if len(values) < 2:
        return ""
    highest = max(values) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    return " ".join(
        f"{idx * step:.1f},{SPARK_HEIGHT - 1.0 - value / highest * (SPARK_HEIGHT - 3.0):.1f}"
        for idx, value in enumerate(values)
    )


def area(values: Sequence[float]) -> str:
    """The polygon below `points`."""
    line = points(values)
    return f"0,{SPARK_HEIGHT:.0f} {line} {SPARK_WIDTH:.0f},{SPARK_HEIGHT:.0f}" if line else ""


FUNCTIONS = {
    "number": number,
    "seconds": seconds,
    "percent": percent,
    "money": money,
    "price": price,
    "interval": interval,
    "points": points,
    "area": area,
}
