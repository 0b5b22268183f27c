"""Where one of ours is worse than a rival: counted, and as a table to paste into documents."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.bench import CellResult, Comparison
from gateway.simulator.routing.ours import PREFERENCES

# Shown of the compared figures; the JSON has all of them.
TABLED: dict[str, str] = {"p50_s": "p50", "p95_s": "p95", "usd_per_kchar": "$ / 1k chars"}
_OF_TIME = ("p50_s", "p95_s")
UNANSWERED_MIN = 0.01  # from so many more than theirs on, times tell of that first
# What a preference gives up by what it says. A loss that is not here is not explained.
REASONS: dict[tuple[str, str], str] = {
    ("fastest", "usd_per_kchar"): "`fastest` counts no money",
    ("balanced", "usd_per_kchar"): "`balanced` pays for seconds too",
    **{("balanced", figure): "`balanced` waits where that saves enough" for figure in _OF_TIME},
    **{
        ("cheapest", figure): "`cheapest` without a deadline fills the cheapest endpoint up"
        for figure in _OF_TIME
    },
}


def losses(results: Sequence[CellResult]) -> list[Comparison]:
    """Every figure in which one of ours is worse than a rival that sees no more than it does."""
    return [each for result in results for each in _lost(result)]


def is_rival(name: str) -> bool:
    """It is not ours, and sees no more than ours do."""
    return name in BASELINES and not BASELINES[name].is_clairvoyant


def losses_table(results: Sequence[CellResult]) -> list[str]:
    """
    Markdown lines: a row for each cell, router and figure, by the rival that is furthest ahead.

    Only differences whose interval is clear of 0 are losses. The last column is empty where no
    reason is known.
    """
    rows = []
    for result in results:
        num_rivals = sum(is_rival(name) for name in result.means)
        lost = [each for each in _lost(result) if each.figure in TABLED]
        lost.sort(key=lambda each: (each.router, each.figure))
        for (router, figure), found in groupby(lost, key=lambda each: (each.router, each.figure)):
            worst, *others = sorted(found, key=lambda each: -each.change)
            cells = (
                result.cell.name,
                f"`{router}`",
                TABLED[figure],
                f"{len(others) + 1} of {num_rivals}",
                f"`{worst.other}`",
                _difference(worst),
                _reason(result, router, figure, worst.other),
            )
            rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return ["None whose interval is clear of 0."]
    head = ("cell", "ours", "figure", "rivals ahead", "furthest", "ours is worse by", "why")
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows]


def _lost(result: CellResult) -> list[Comparison]:
    return [
        each
        for each in result.comparisons
        if each.verdict == "worse" and each.other not in PREFERENCES and is_rival(each.other)
    ]


def _reason(result: CellResult, router: str, figure: str, other: str) -> str:
    """What the preference gives up; of times with more requests unanswered (60 s each), that."""
    ours = result.means[router]["failed_share"] or 0.0
    theirs = result.means[other]["failed_share"] or 0.0
    if figure in _OF_TIME and ours - theirs >= UNANSWERED_MIN:
        return f"{ours:.1%} unanswered beside {theirs:.1%}, each counts as 60 s"
    return REASONS.get((router, figure), "")


def _difference(lost: Comparison) -> str:
    shown = f"{lost.change:.0%}"
    if lost.low is None or lost.high is None:
        return shown
    return f"{shown} [{lost.low:.0%}, {lost.high:.0%}]"
