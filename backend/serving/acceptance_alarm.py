"""Whether drafts are accepted about as often as was measured when their head was trained.

Behind another template, thinking mode or revision of the model a head still drafts, nearly nothing
of it is accepted, and the text stays right: nobody would notice. So the drafts of every `WINDOW`
rounds are held against the rates in the head's own file, places that are not drafted here left out.

The rates are compared as accepted drafts a round, Σ_k Π_{j ≤ k} c_j with c_j the share accepted at
place j of those that all before it were accepted of. Rounds with fewer drafts than others, at the
end of an answer or because a request wants fewer, so distort nothing (Kaplan and Meier, 1958).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import structlog

from backend.engine.interface import RoundFigures, SpeculationLoad
from backend.speculate.heads.identity import HeadIdentity

log = structlog.get_logger()

WINDOW = 500  # rounds that are judged together
LOW_SHARE = 0.6  # of what was recorded; below it is far below
BOUND_SIGMA = 4.0  # one window in 30,000 by chance, if its rounds were independent
PLACES_NOTE = "acceptance_by_place"
LIKELY_CAUSES = (
    "another chat template or thinking mode than the head was trained with, other weights or "
    "another quantization of the model, a high temperature, or texts far from its training data"
)


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """One kind of work in its last full window; None before there was one."""

    workload: str  # as in the head's file; "": all of them
    num_rounds: int = 0  # judged since the start
    recorded: float | None = None  # accepted drafts a round, of the places that are drafted here
    found: float | None = None  # the same, of the window
    is_low: bool = False


@dataclass(slots=True)
class _Watch:
    """One recorded kind of work. Counts by place, of the last window's end."""

    rates: Sequence[float]
    check: AcceptanceCheck
    num_at_risk: Sequence[int] = ()
    num_accepted: Sequence[int] = ()

    def judge(self, figures: Sequence[RoundFigures], num_fresh: int) -> None:
        """A window is full."""
        at_risk = _summed(each.num_at_risk for each in figures)
        accepted = _summed(each.num_accepted for each in figures)
        found, bound, recorded = _compared(
            _fresh(at_risk, self.num_at_risk), _fresh(accepted, self.num_accepted), self.rates
        )
        self.num_at_risk, self.num_accepted = at_risk, accepted
        self.check = AcceptanceCheck(
            self.check.workload,
            self.check.num_rounds + num_fresh,
            recorded,
            found,
            is_low=found < LOW_SHARE * recorded and bound < recorded,
        )


class AcceptanceAlarm:
    """Of one start of the server. `observe` belongs to one thread, `checks` is read by others."""

    def __init__(self, identity: HeadIdentity | None) -> None:
        """Without an identity, or without rates in it, nothing is watched."""
        self._identity = identity
        self._watches = [
            _Watch(rates, AcceptanceCheck(workload))
            for workload, rates in sorted(recorded_rates(identity).items())
        ]
        self._is_told = False
        self.checks: tuple[AcceptanceCheck, ...] = tuple(each.check for each in self._watches)

    def observe(self, load: SpeculationLoad) -> None:
        """An account of the engine, counted since the start. Warns once, for what is low first."""
        for watch in self._watches:
            figures = [each for each in load.figures if _covers(watch.check.workload, each)]
            num_fresh = sum(each.num_drafts for each in figures) - watch.check.num_rounds
            if num_fresh >= WINDOW:
                watch.judge(figures, num_fresh)
                self.checks = tuple(each.check for each in self._watches)
                if watch.check.is_low and not self._is_told:
                    self._is_told = True
                    self._warn(watch.check, num_fresh)

    def _warn(self, check: AcceptanceCheck, num_rounds: int) -> None:
        assert self._identity is not None
        log.warning(
            "far fewer drafts are accepted than when the head was trained",
            likely_causes=LIKELY_CAUSES,
            accepted_a_round=round(check.found or 0.0, 3),
            recorded=round(check.recorded or 0.0, 3),
            rounds=num_rounds,
            workload=check.workload or "all",
            method=self._identity.method,
            trained_for=self._identity.target_name,
            trained_thinking=self._identity.thinking,
        )


def recorded_rates(identity: HeadIdentity | None) -> Mapping[str, Sequence[float]]:
    """By kind of work ("": all): conditional acceptance at each place that something is known of.

    Of a kind without rates by place only the first place is: as acceptance falls behind rejections,
    the first place's rate is never below that of all drafts together.
    """
    if identity is None:
        return {}
    # Of a head that was never right nothing can be missed.
    found: dict[str, Sequence[float]] = {
        workload: (rate,) for workload, rate in identity.acceptance.items() if 0.0 < rate <= 1.0
    }
    by_place = identity.notes.get(PLACES_NOTE)
    if "" in found and _are_rates(by_place):
        found[""] = by_place
    return found


def _are_rates(value: Any) -> TypeGuard[list[float]]:
    """Notes are anybody's: what is no list of shares is left alone."""
    return (
        isinstance(value, list)
        and all(isinstance(each, int | float) and 0.0 <= each <= 1.0 for each in value)
        and sum(value[:1]) > 0.0
    )


def _covers(workload: str, figures: RoundFigures) -> bool:
    """`chat` is `chat/greedy` and `chat/drawn`."""
    return workload in ("", figures.workload) or figures.workload.startswith(workload + "/")


def _summed(counts: Iterable[Sequence[int]]) -> list[int]:
    """By place; some have fewer places than others."""
    total: list[int] = []
    for each in counts:
        total += [0] * (len(each) - len(total))
        for place, count in enumerate(each):
            total[place] += count
    return total


def _fresh(now: Sequence[int], before: Sequence[int]) -> list[int]:
    """What was added; places may have come too."""
    return [count - old for count, old in itertools.zip_longest(now, before, fillvalue=0)]


def _compared(
    at_risk: Sequence[int], accepted: Sequence[int], rates: Sequence[float]
) -> tuple[float, float, float]:
    """Accepted drafts a round: found, at most so many by the bound, recorded.

    Over the places that were drafted here and are known of the head. The bound takes every place
    at its own upper end, so it is wider than that of their sum.
    """
    found = bound = recorded = 0.0
    reached = reached_at_most = reached_then = 1.0
    for num, stood, rate in zip(at_risk, accepted, rates, strict=False):
        if num == 0 and reached > 0.0:
            break  # nobody drafted so far
        reached *= stood / num if num else 0.0
        reached_at_most *= _upper(stood, num)
        reached_then *= rate
        found += reached
        bound += reached_at_most
        recorded += reached_then
    return found, bound, recorded


def _upper(accepted: int, num: int) -> float:
    """The upper end of Wilson's interval for a share (Wilson, 1927)."""
    if num == 0:
        return 1.0
    share, squared = accepted / num, BOUND_SIGMA**2
    spread = math.sqrt(share * (1.0 - share) / num + squared / (4 * num * num))
    return min(1.0, (share + squared / (2 * num) + BOUND_SIGMA * spread) / (1.0 + squared / num))
