"""The page Backend as plain values: what a server said, and what follows from it by arithmetic.

Nothing is made up: a figure without samples is null, and each has the number of them beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from gateway.dashboard.backend_said import Check, Decision, Figures, Health, Load, Speculation
from gateway.dashboard.backend_watch import Answer, Problem

HEAT_LEVELS = 8
ROUNDS_MIN = 30  # below so many timed rounds nothing is said of gain or loss
LOSS_BELOW = 0.97  # what the backend promises: decision 14
GAIN_ABOVE = 1.03
ALL = ""  # workload: all of them


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts at one place: at risk if all before them stood, and how many of those stood."""

    at_risk: int
    accepted: int

    @property
    def share(self) -> float | None:
        return self.accepted / self.at_risk if self.at_risk else None


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What drafts were worth for one kind of work ("" = all), since the server's start."""

    workload: str
    num_rounds: int
    acceptance_length: float | None  # tokens a round, the target's own among them
    places: list[Place]
    num_timed_rounds: int
    round_cost: float | None  # in plain steps of the same batch
    num_timed_steps: int
    speed_up: float | None  # over plain decoding
    verdict: str  # "gain" | "even" | "loss" | "unmeasured"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one batch with so many drafts a sequence."""

    num_drafts: int
    step_s: float
    num_steps: int | None  # timed; null: its version does not tell
    cost: float | None  # in plain steps of this batch
    level: int  # of the colour, by the step's time
    is_now: bool


class HeatRow(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    cells: list[Cell | None]  # by drafts, in the order of `Costs.drafts`


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """The measured step costs: one row a batch, one column a number of drafts."""

    drafts: list[int]
    rows: list[HeatRow]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """How many decoding steps had the drafts they had for this reason."""

    why: str
    num_steps: int
    share: float


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The last minutes, one value a second, the oldest first."""

    running: list[float]
    waiting: list[float]
    cache_use: list[float]
    tokens_per_s: list[float]


class BackendServer(msgspec.Struct, frozen=True, kw_only=True):
    """One of our servers. `load` and what rests on it are null where there is a `problem`."""

    address: str
    endpoints: list[str]
    models: list[str]
    is_named: bool  # `self_hosted` in the policy: its load is followed and its price known
    problem: Problem | None
    is_old: bool  # its version does not tell reasons and decisions
    load: Load | None
    health: Health | None
    worth: list[Worth]  # of all work first, then by kind
    costs: Costs | None
    reasons: list[Reason]
    decisions: list[Decision]  # the newest first
    low: list[Check]  # acceptance alarms
    history: History


class Backends(msgspec.Struct, frozen=True, kw_only=True):
    at_unix_s: float
    servers: list[BackendServer]


def server_of(answer: Answer) -> BackendServer:
    load, server = answer.load, answer.server
    said = load.speculation if load is not None else None
    return BackendServer(
        address=server.endpoint.base_url,
        endpoints=list(server.endpoint_ids),
        models=list(server.models),
        is_named=server.is_named,
        problem=answer.problem,
        is_old=load is not None and (said is None or said.decisions is None),
        load=load,
        health=answer.health,
        worth=worths(said.figures) if said is not None else [],
        costs=costs_of(load) if load is not None else None,
        reasons=reasons_of(said.num_steps_by_why) if said is not None else [],
        decisions=list(reversed(said.decisions or [])) if said is not None else [],
        low=[each for each in said.acceptance_checks if each.is_low] if said is not None else [],
        history=History(
            running=[float(each.num_running) for each in answer.history],
            waiting=[float(each.num_waiting) for each in answer.history],
            cache_use=[each.cache_use for each in answer.history],
            tokens_per_s=[each.tokens_per_s for each in answer.history],
        ),
    )


def worths(figures: Sequence[Figures]) -> list[Worth]:
    """All work together, and each kind where there are several; empty before the first round."""
    seen = [each for each in figures if each.num_drafts]
    if not seen:
        return []
    kinds = [worth_of(each.workload, [each]) for each in seen]
    return [worth_of(ALL, seen), *kinds] if len(seen) > 1 else kinds


def worth_of(workload: str, figures: Sequence[Figures]) -> Worth:
    """Sums first, then ratios: kinds of work weigh as they came."""
    num_rounds = sum(each.num_drafts for each in figures)
    num_timed_rounds = sum(each.num_timed_rounds for each in figures)
    speed_up = _ratio(
        sum(each.step_plain_s for each in figures), sum(each.step_s for each in figures)
    )
    accepted = _ratio(sum(each.num_accepted_tokens for each in figures), num_rounds)
    return Worth(
        workload=workload,
        num_rounds=num_rounds,
        acceptance_length=None if accepted is None else 1.0 + accepted,
        places=places_of(figures),
        num_timed_rounds=num_timed_rounds,
        round_cost=_ratio(
            sum(each.round_s for each in figures), sum(each.round_plain_s for each in figures)
        ),
        num_timed_steps=sum(each.num_timed_steps for each in figures),
        speed_up=speed_up,
        verdict=verdict_of(speed_up, num_timed_rounds),
    )


def places_of(figures: Sequence[Figures]) -> list[Place]:
    num = max((len(each.num_at_risk) for each in figures), default=0)
    return [
        Place(
            at_risk=sum(_at(each.num_at_risk, place) for each in figures),
            accepted=sum(_at(each.num_accepted, place) for each in figures),
        )
        for place in range(num)
    ]


def verdict_of(speed_up: float | None, num_timed_rounds: int) -> str:
    if speed_up is None or num_timed_rounds < ROUNDS_MIN:
        return "unmeasured"
    if speed_up < LOSS_BELOW:
        return "loss"
    return "gain" if speed_up > GAIN_ABOVE else "even"


def costs_of(load: Load) -> Costs | None:
    """The table of a server with a draft method; of one without, its plain steps."""
    said = load.speculation or Speculation()
    table: Mapping[int, Mapping[int, float]] = said.step_s or {
        batch: {0: seconds} for batch, seconds in load.decode_step_s.items()
    }
    seconds = [each for row in table.values() for each in row.values() if each > 0.0]
    if not seconds:
        return None
    # As many columns as there can be, so that the table keeps its shape while it fills.
    drafts = sorted(
        {*range(said.num_drafts_max + 1), *(key for row in table.values() for key in row)}
    )
    low, high = min(seconds), max(seconds)
    batch_now = min((each for each in table if each >= load.num_running), default=max(table))
    now = (batch_now, said.num_drafts_now or 0) if load.num_running else None
    rows = []
    for batch, row in sorted(table.items()):
        counts = said.num_steps.get(batch, {})
        cells = [
            Cell(
                num_drafts=num,
                step_s=row[num],
                num_steps=counts.get(num),
                cost=_ratio(row[num], row.get(0, 0.0)) if num else None,
                level=level_of(row[num], low, high),
                is_now=(batch, num) == now,
            )
            if row.get(num, 0.0) > 0.0
            else None
            for num in drafts
        ]
        rows.append(HeatRow(batch=batch, cells=cells))
    return Costs(drafts=drafts, rows=rows)


def level_of(seconds: float, low: float, high: float) -> int:
    """Where it lies between the table's ends by its logarithm, in HEAT_LEVELS steps."""
    if high <= low:
        return 0
    place = math.log(seconds / low) / math.log(high / low)
    return min(HEAT_LEVELS - 1, int(place * HEAT_LEVELS))


def reasons_of(counts: Mapping[str, int]) -> list[Reason]:
    """The most frequent first."""
    total = sum(counts.values())
    return [
        Reason(why=why, num_steps=num, share=num / total)
        for why, num in sorted(counts.items(), key=lambda each: -each[1])
        if num
    ]


def _at(values: Sequence[int], place: int) -> int:
    return values[place] if place < len(values) else 0


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
