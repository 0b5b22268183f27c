"""The planner's figures as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.simulator.batch.bench import (
    BOUND_SAVING_MIN,
    RATIO_MAX,
    SAVING_MIN,
    Played,
    WorldResult,
)
from gateway.simulator.batch.worlds import COIN_FLIP

HEADER = (
    "world",
    "deadlines kept",
    "cost / reference",
    "worst seed",
    "below list",
    "reference's",
    "escalated",
    "moved",
)


def rows_of(results: Sequence[WorldResult]) -> list[tuple[str, ...]]:
    """One row a world, under HEADER."""
    return [
        (
            result.world,
            f"{result.num_possible - len(result.missed)} of {result.num_possible}",
            _ratio(result),
            f"{result.ratio_max:.3f}x",
            f"{result.saving:.1%}",
            f"{result.bound_saving:.1%}",
            f"{result.escalated_share:.1%}",
            f"{result.moved_share:.1%}",
        )
        for result in results
    ]


def verdicts(results: Sequence[WorldResult]) -> list[str]:
    """Each of the three figures asked: held, or where it is not."""
    missed = [f"{each.world} ({len(each.missed)})" for each in results if not each.keeps_deadlines]
    dear = [
        f"{each.world} ({each.ratio[0]:.3f}x)" for each in results if each.is_near_bound is False
    ]
    poor = [f"{each.world} ({each.saving:.1%})" for each in results if each.saves_enough is False]
    judged = [each.world for each in results if each.saves_enough is not None]
    return [
        f"Every deadline kept that the reference keeps: {_held(missed)}",
        f"Cost at most {RATIO_MAX}x the reference's ({COIN_FLIP} is held to none): {_held(dear)}",
        f"At least {SAVING_MIN:.0%} below list where the reference saves {BOUND_SAVING_MIN:.0%} "
        f"({', '.join(judged) or 'nowhere'}): {_held(poor)}",
    ]


def as_json(results: Sequence[WorldResult], played: Sequence[Played]) -> bytes:
    """Worlds, and every seed of each, for machines."""
    value = {"worlds": list(results), "seeds": list(played)}
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def as_markdown(results: Sequence[WorldResult], command: str) -> str:
    """The report: how to get it again, the figures, what the reference is."""
    lines = ["# The batch planner in seeded worlds", "", f"`{command}`", ""]
    lines += [f"- {verdict}" for verdict in verdicts(results)]
    lines += ["", "| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in rows_of(results)]
    lines += [
        "",
        "Cost over the reference's is a mean over seeds, in brackets its 95 % bootstrap interval.",
        "List price: every line at once when its job came, at the cheapest standard price then.",
        "The reference is a lower bound: it knows every rate, fate and job to come, and solves a",
        "transportation problem over all capacity (see `gateway/simulator/batch/omniscient.py`).",
        f"In `{COIN_FLIP}` a native batch is as likely back in time as not. What the reference",
        "saves there by knowing which is the price of not knowing, so the world is held to its",
        "deadlines only.",
    ]
    return "\n".join(lines) + "\n"


def _ratio(result: WorldResult) -> str:
    value, low, high = result.ratio
    return f"{value:.3f}x" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _held(exceptions: Sequence[str]) -> str:
    return "yes" if not exceptions else f"not in {', '.join(exceptions)}"
