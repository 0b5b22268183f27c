"""A backtest as rows of a table with a drawing each: both sides' intervals on one scale. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gateway.dashboard.figures import money, percent, seconds
from gateway.dashboard.policy_backtest import Backtest
from gateway.policy.backtest_summary import Claim, Comparison, Interval, claim_of

WIDTH = 144.0  # of a drawing, in its own units
MARGIN = 4.0  # half a dot at either end
SHARES_MAX = 20  # endpoints shown

Said = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Span:
    """One side of a row: what is written, and where its line and its dot stand."""

    shown: str
    interval: str  # "" = there is none
    x: float
    x_low: float
    x_high: float


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One figure of both sides."""

    key: str  # of the message catalogue, after `policy.row_`; "share" names an endpoint
    name: str  # the endpoint, for "share"
    old: Span | None
    new: Span | None
    difference: str
    difference_interval: str
    claim: Claim | None


def trial_rows(found: Backtest) -> list[TrialRow]:
    """Money, times, then what share of requests each endpoint gets first."""
    comparison = found.comparison
    if comparison is None:
        return []
    return [*_figures(comparison), *_shares(comparison)]


def _figures(comparison: Comparison) -> list[TrialRow]:
    moved, num = comparison.differences, comparison.num_compared
    if moved is None:
        return []
    old, new = comparison.old, comparison.new
    rows = []
    for key, before, after, difference, said in (
        ("cost", old.cost_usd, new.cost_usd, moved.cost_usd, _dollars),
        ("p50", old.p50_s, new.p50_s, moved.p50_s, seconds),
        ("p95", old.p95_s, new.p95_s, moved.p95_s, seconds),
    ):
        highest = max(before.high or before.value, after.high or after.value)
        rows.append(
            TrialRow(
                key=key,
                name="",
                old=_span(before, highest, said),
                new=_span(after, highest, said),
                difference=_signed(difference.value, said),
                difference_interval=_between(difference, partial(_signed, said=said)),
                claim=claim_of(difference, num, before, is_p95=key == "p95"),
            )
        )
    return rows


def _shares(comparison: Comparison) -> list[TrialRow]:
    old, new = comparison.old.shares, comparison.new.shares
    return [
        TrialRow(
            key="share",
            name=endpoint_id,
            old=_span(old[endpoint_id], 1.0, percent) if endpoint_id in old else None,
            new=_span(new[endpoint_id], 1.0, percent) if endpoint_id in new else None,
            difference="",
            difference_interval="",
            claim=None,
        )
        for endpoint_id in list(dict.fromkeys((*new, *old)))[:SHARES_MAX]
    ]


def _span(figure: Interval, highest: float, said: Said) -> Span:
    def at(value: float) -> float:
        share = min(1.0, max(0.0, value / highest)) if highest > 0.0 else 0.0
        return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)

    low = figure.low if figure.low is not None else figure.value
    high = figure.high if figure.high is not None else figure.value
    return Span(
        shown=said(figure.value),
        interval=_between(figure, said),
        x=at(figure.value),
        x_low=at(low),
        x_high=at(high),
    )


def _between(figure: Interval, said: Said) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{said(figure.low)} … {said(figure.high)}"


def _signed(value: float, said: Said) -> str:
    sign = "+" if value > 0.0 else "−" if value < 0.0 else "±"
    return f"{sign}{said(abs(value))}"


def _dollars(value: float) -> str:
    return money(f"{value:.9f}")
