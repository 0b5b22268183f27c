"""One model on one day: what its estimates are corrected to, and what drift remains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.core import dollars
from gateway.ledger.corrections import KnownCost
from gateway.ledger.exports.rows import Format
from gateway.ledger.reconcile_ours import Attempt, Sum
from gateway.ledger.reconcile_shares import share, spread_tokens, within_hold
from gateway.ledger.reconcile_theirs import Charge, Group, fold
from gateway.prices.rows import cost_nanos
from gateway.wire.usage import BUCKETS, Usage

DRIFT_PERCENT_MAX = 1


class ModelDay(msgspec.Struct, frozen=True, kw_only=True):
    """
    Theirs against ours, after the corrections. Drift is theirs less ours.

    Tokens are by measure: the buckets that the export tells apart. `theirs_nanos` is None where the
    export has no dollars; then tokens decide whether it is an alarm.
    """

    day: str
    model: str
    theirs_nanos: int | None
    ours_nanos: int
    corrected_nanos: int  # of ours, booked by this run
    theirs_tokens: dict[str, int]
    ours_tokens: dict[str, int]
    num_attempts: int
    num_estimated: int  # among them, before this run
    rounding_nanos: int = 0  # how far theirs may be off by itself

    @property
    def drift_nanos(self) -> int:
        return 0 if self.theirs_nanos is None else self.theirs_nanos - self.ours_nanos

    @property
    def drift_tokens(self) -> dict[str, int]:
        return {name: self.theirs_tokens[name] - self.ours_tokens[name]
                for name in self.theirs_tokens}  # fmt: skip

    @property
    def drift_share(self) -> float | None:
        """Of what they charge (None: of nothing), by what `is_alarm` goes by."""
        drift, whole = self._drift_and_whole
        return drift / whole if whole else (0.0 if not drift else None)

    @property
    def is_alarm(self) -> bool:
        drift, whole = self._drift_and_whole
        if self.theirs_nanos is not None and abs(drift) <= self.rounding_nanos:
            return False
        return abs(drift) * 100 > whole * DRIFT_PERCENT_MAX

    @property
    def is_void(self) -> bool:
        return not (self.theirs_nanos or self.ours_nanos or self.num_attempts) and not any(
            (*self.theirs_tokens.values(), *self.ours_tokens.values())
        )

    @property
    def sentence(self) -> str:
        where = f"{self.model} on {self.day}" if self.day else self.model
        if self.theirs_nanos is None:
            theirs, ours = sum(self.theirs_tokens.values()), sum(self.ours_tokens.values())
            return f"{where}: {theirs} tokens by their export, {ours} by the ledger"
        return (
            f"{where}: ${dollars(self.theirs_nanos)} by their export, "
            f"${dollars(self.ours_nanos)} by the ledger, ${dollars(self.drift_nanos)} unexplained"
        )

    @classmethod
    def total(cls, days: Sequence[ModelDay], name: str) -> ModelDay:
        def tokens(side: str) -> dict[str, int]:
            found: dict[str, int] = {}
            for each in days:
                for measure, number in getattr(each, side).items():
                    found[measure] = found.get(measure, 0) + number
            return found

        theirs = [each.theirs_nanos for each in days if each.theirs_nanos is not None]
        return cls(
            day="",
            model=name,
            theirs_nanos=sum(theirs) if theirs or not days else None,
            ours_nanos=sum(each.ours_nanos for each in days),
            corrected_nanos=sum(each.corrected_nanos for each in days),
            theirs_tokens=tokens("theirs_tokens"),
            ours_tokens=tokens("ours_tokens"),
            num_attempts=sum(each.num_attempts for each in days),
            num_estimated=sum(each.num_estimated for each in days),
            rounding_nanos=sum(each.rounding_nanos for each in days),
        )

    @property
    def _drift_and_whole(self) -> tuple[int, int]:
        if self.theirs_nanos is not None:
            return self.drift_nanos, abs(self.theirs_nanos)
        drift = sum(abs(number) for number in self.drift_tokens.values())
        return drift, sum(self.theirs_tokens.values())


@dataclass(frozen=True, slots=True)
class DayPlan:
    """What the estimated attempts of a group are to cost, and by which usage."""

    format: Format
    measures: dict[str, tuple[str, ...]]
    shared: tuple[tuple[Attempt, int, Usage], ...]
    by_id: tuple[tuple[Attempt, int, Usage], ...]

    @property
    def all(self) -> tuple[tuple[Attempt, int, Usage], ...]:
        return self.shared + self.by_id

    def without_shares(self) -> DayPlan:
        """The plan that corrects only what has a bill of its own."""
        return DayPlan(self.format, self.measures, _as_they_are(self.shared), self.by_id)

    def unchanged(self) -> DayPlan:
        """The plan that corrects nothing."""
        by_id = _as_they_are(self.by_id)
        return DayPlan(self.format, self.measures, _as_they_are(self.shared), by_id)

    def known(self, source: str, shared_source: str) -> list[KnownCost]:
        """The attempts that change."""
        return [
            KnownCost(
                attempt_id=attempt.attempt_id,
                cost_nanos=nanos,
                usage=None if usage == attempt.usage else usage,
                source=said,
            )
            for some, said in ((self.shared, shared_source), (self.by_id, source))
            for attempt, nanos, usage in some
            if nanos != attempt.nanos or usage != attempt.usage
        ]


def _as_they_are(
    planned: tuple[tuple[Attempt, int, Usage], ...],
) -> tuple[tuple[Attempt, int, Usage], ...]:
    return tuple((each, each.nanos, each.usage) for each, _, _ in planned)


def plan_day(
    form: Format,
    measures: dict[str, tuple[str, ...]],
    rest: Charge,
    exact: Sum,
    shared: Sequence[Attempt],
    by_id: Sequence[tuple[Attempt, Charge]],
) -> DayPlan:
    """
    Pure. `rest` and `exact` are of all that no id links; `shared` are the estimates among ours.

    Estimates get what is left of `rest` after `exact`, none more than was held for it: more is not
    to be explained by it. Their tokens follow where the dollars could be explained. An export
    without dollars gives tokens, and the attempt's own prices the dollars.
    """
    billed = tuple(
        (each, bill.nanos, _usage_of(each, bill.tokens, measures)) for each, bill in by_id
    )
    before = [each.usage for each in shared]
    had = fold(exact.tokens, measures)
    wanted = {name: max(0, rest.tokens.get(name, 0) - had[name]) for name in measures}
    if not form.has_cost:
        usages = spread_tokens(wanted, before, measures)
        priced = [_priced(each, usage) for each, usage in zip(shared, usages, strict=True)]
        return DayPlan(form, measures, tuple(priced), billed)
    target = max(0, rest.nanos - exact.nanos)
    costs = share(target, [each.nanos for each in shared], [each.hold_nanos or None
                                                            for each in shared])  # fmt: skip
    usages = spread_tokens(wanted, before, measures) if sum(costs) == target else before
    return DayPlan(form, measures, tuple(zip(shared, costs, usages, strict=True)), billed)


def model_day(group: Group, name: str, theirs: Charge, exact: Sum, plan: DayPlan) -> ModelDay:
    """The row that is shown: all of theirs and all of ours, the plan booked."""
    usages = [[getattr(usage, bucket) for bucket in BUCKETS] for _, _, usage in plan.all]
    tokens = [sum(each) for each in zip(exact.tokens, *usages, strict=True)]
    booked = sum(nanos for _, nanos, _ in plan.all)
    return ModelDay(
        day=group[1],
        model=name,
        theirs_nanos=theirs.nanos if plan.format.has_cost else None,
        ours_nanos=exact.nanos + booked,
        corrected_nanos=booked - sum(each.nanos for each, _, _ in plan.all),
        theirs_tokens={measure: theirs.tokens.get(measure, 0) for measure in plan.measures},
        ours_tokens=fold(tokens, plan.measures),
        num_attempts=exact.attempts + len(plan.all),
        num_estimated=len(plan.all),
        rounding_nanos=plan.format.rounding_nanos * theirs.rows,
    )


def _usage_of(
    attempt: Attempt, tokens: dict[str, int], measures: dict[str, tuple[str, ...]]
) -> Usage:
    wanted = {name: tokens.get(name, 0) for name in measures}
    return spread_tokens(wanted, [attempt.usage], measures)[0]


def _priced(attempt: Attempt, usage: Usage) -> tuple[Attempt, int, Usage]:
    price = attempt.price
    if price is None or not price.is_priced:
        return attempt, attempt.nanos, usage
    usage = within_hold(usage, price, attempt.hold_nanos)
    return attempt, cost_nanos(price, usage), usage
