"""How far `policy simulate` is from the truth: predict another policy from a log, then run it.

A world is played under one policy while its request log is kept, as the gateway would. Every
request is decided again under another one by `gateway.policy.backtest`, which predicts the outcome
where it goes elsewhere. Then the other policy plays the same world with the same random numbers.
The backtest cannot know what its choices would have changed in load, caches and beliefs; how much
that matters is the error here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.core import AttemptOutcome, FleetView, Plan, RequestFacts, Rng
from gateway.policy.backtest import Judged, Outcome, Record, judge
from gateway.policy.policy import Policy
from gateway.simulator.routing.arrivals import Workload
from gateway.simulator.routing.bench import Cell, Ratio, Task, ratio_of, traffic_of, world_of
from gateway.simulator.routing.episode import play
from gateway.simulator.routing.measures import NANOS
from gateway.simulator.routing.ours import PREFERENCES, OurRouter
from gateway.simulator.routing.records import Served
from gateway.simulator.routing.router import Ask, Router, Setting
from gateway.simulator.routing.world import World
from gateway.stats.seeded import Seeded

FIGURES: dict[str, str] = {"usd": "$", "mean_s": "mean", "p50_s": "p50", "p95_s": "p95"}
Pair = tuple[str, str]  # preference under which the log was written, and the one tried on it
PAIRS: tuple[Pair, ...] = (
    ("fastest", "balanced"),
    ("fastest", "cheapest"),
    ("balanced", "fastest"),
    ("cheapest", "fastest"),
)


class LoggedRouter(OurRouter):
    """Ours with its request log: facts, view, seed and choice of every request, and its outcome."""

    def __init__(self, setting: Setting, *, prefer: dict[str, object], seed: int) -> None:
        super().__init__(setting, prefer=prefer, seed=seed)
        self._decisions: dict[int, tuple[float, RequestFacts, FleetView, Plan]] = {}
        self._answers: dict[str, AttemptOutcome] = {}

    def rng_of(self, ask: Ask) -> Rng:
        """Of the request's own seed, so that it can be decided again."""
        return Seeded(ask.idx)

    def decided(self, ask: Ask, facts: RequestFacts, view: FleetView, plan: Plan) -> None:
        self._decisions[ask.idx] = (self.now_s, facts, view, plan)

    def ended(self, outcome: AttemptOutcome, now_s: float) -> None:
        super().ended(outcome, now_s)
        if outcome.is_committed and not outcome.failure:
            self._answers[outcome.request_id] = outcome

    def log(self, served: Sequence[Served]) -> dict[int, Record]:
        """By request, those that were decided; the rest waited in vain and were never sent."""
        return {one.idx: self._record(one) for one in served if one.idx in self._decisions}

    def _record(self, one: Served) -> Record:
        at_s, facts, view, plan = self._decisions[one.idx]
        answer = self._answers.get(facts.request_id)
        outcome = None
        if not one.has_failed and answer is not None and answer.usage is not None:
            outcome = Outcome(
                time_s=one.done_s,
                cost_nanos=one.cost_nanos,
                output_tokens=float(answer.usage.output_total),
                prompt_tokens=answer.usage.input_total,
                wait_s=at_s - one.at_s,
                num_attempts=one.num_attempts,
            )
        return Record(facts=facts, view=view, seed=plan.seed, chosen=plan.order[0], outcome=outcome)


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A world under one policy: its rows and its log."""

    served: list[Served]
    log: dict[int, Record]
    policy: Policy


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of policies on one seed. Figures are of requests that both runs answered."""

    cell: Cell
    seed: int
    logged: str
    tried: str
    num_compared: int
    predicted_share: float  # of them; the others keep their real outcome
    before: dict[str, float]  # as it really was under the policy of the log
    predicted: dict[str, float]  # for the policy that is tried
    real: dict[str, float]  # as it then really was
    share_error: float  # of all requests, so many would go elsewhere than predicted
    share_change: float  # so many really went elsewhere than under the policy of the log


def pairs_of(text: str) -> tuple[Pair, ...]:
    """`fastest:balanced,balanced:cheapest`. Raises ValueError for what is none of ours."""
    pairs = []
    for word in text.split(","):
        logged, _, tried = word.strip().partition(":")
        for name in (logged, tried):
            if name not in PREFERENCES:
                raise ValueError(
                    f"{word.strip()!r} is no pair LOGGED:TRIED of {', '.join(PREFERENCES)}"
                )
        pairs.append((logged, tried))
    return tuple(pairs)


def foretell(task: Task, pairs: Sequence[Pair] = PAIRS) -> list[Foretold]:
    """
    Every pair on one seed of one cell; `task.routers` is not looked at. Raises TraceError.
    """
    load, world = traffic_of(task), world_of(task)
    names = dict.fromkeys(name for pair in pairs for name in pair)
    runs = {name: _play(world, load, name, task.seed) for name in names}
    return [_foretold(task, pair, runs) for pair in pairs]


def _play(world: World, load: Workload, name: str, seed: int) -> Played:
    def make(setting: Setting, own_seed: int) -> Router:
        return LoggedRouter(setting, prefer=PREFERENCES[name], seed=own_seed)

    episode = play(world, load, make, seed=seed)
    (router,) = episode.routers
    assert isinstance(router, LoggedRouter)
    return Played(served=episode.served, log=router.log(episode.served), policy=router.policy)


def _foretold(task: Task, pair: Pair, runs: Mapping[str, Played]) -> Foretold:
    logged, tried = (runs[name] for name in pair)
    judged = {idx: judge(record, tried.policy) for idx, record in logged.log.items()}
    both = [
        idx
        for idx, each in judged.items()
        if each.time_s is not None and not tried.served[idx].has_failed
    ]
    predicted = _shares([each.endpoint_id for each in judged.values()])
    real = _shares([each.chosen for each in tried.log.values()])
    before = _shares([each.chosen for each in logged.log.values()])
    return Foretold(
        cell=task.cell,
        seed=task.seed,
        logged=pair[0],
        tried=pair[1],
        num_compared=len(both),
        predicted_share=float(np.mean([judged[idx].is_predicted for idx in both])),
        before=_of_rows([logged.served[idx] for idx in both]),
        predicted=_of_judged([judged[idx] for idx in both]),
        real=_of_rows([tried.served[idx] for idx in both]),
        share_error=_apart(predicted, real),
        share_change=_apart(before, real),
    )


def _of_rows(rows: Sequence[Served]) -> dict[str, float]:
    return _figures(
        np.array([one.done_s for one in rows]), sum(one.cost_nanos for one in rows) / NANOS
    )


def _of_judged(judged: Sequence[Judged]) -> dict[str, float]:
    times_s = np.array([each.time_s for each in judged], dtype=np.float64)
    return _figures(times_s, sum(each.cost_nanos or 0 for each in judged) / NANOS)


def _figures(times_s: NDArray[np.float64], usd: float) -> dict[str, float]:
    return {
        "usd": usd,
        "mean_s": float(times_s.mean()),
        "p50_s": float(np.quantile(times_s, 0.5)),
        "p95_s": float(np.quantile(times_s, 0.95)),
    }


def _shares(endpoint_ids: Sequence[str]) -> dict[str, float]:
    """Of requests tried there first; a refused one goes to ""."""
    num = max(1, len(endpoint_ids))
    return {each: endpoint_ids.count(each) / num for each in dict.fromkeys(endpoint_ids)}


def _apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Half the sum of differences: the share of requests that would have to move."""
    ids = {**one, **other}
    return 0.5 * sum(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in ids)


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """One cell and pair over all seeds: ratios are means over seeds with 95 % intervals."""

    cell: Cell
    logged: str
    tried: str
    num_seeds: int
    predicted_share: float
    over_real: dict[str, Ratio]  # figure → predicted / real
    changed: dict[str, Ratio]  # figure → real / before: what there was to predict
    share_error: float
    share_change: float


def errors(found: Sequence[Foretold]) -> list[Error]:
    """Cells and pairs in the order in which they came, seeds together."""
    groups: dict[tuple[str, str, str], list[Foretold]] = {}
    for each in found:
        groups.setdefault((each.cell.name, each.logged, each.tried), []).append(each)
    return [_error(rows) for rows in groups.values()]


def _error(rows: Sequence[Foretold]) -> Error:
    def ratios(above: str, below: str) -> dict[str, Ratio]:
        return {
            figure: ratio_of(
                [getattr(row, above)[figure] for row in rows],
                [getattr(row, below)[figure] for row in rows],
            )
            for figure in FIGURES
        }

    first = rows[0]
    return Error(
        cell=first.cell,
        logged=first.logged,
        tried=first.tried,
        num_seeds=len(rows),
        predicted_share=float(np.mean([row.predicted_share for row in rows])),
        over_real=ratios("predicted", "real"),
        changed=ratios("real", "before"),
        share_error=float(np.mean([row.share_error for row in rows])),
        share_change=float(np.mean([row.share_change for row in rows])),
    )


def errors_table(found: Sequence[Error]) -> list[str]:
    """Markdown lines: what really changed, and how far the prediction was from it."""
    tabled = {figure: shown for figure, shown in FIGURES.items() if figure != "mean_s"}
    head = ["cell", "log → tried", "requests predicted"]
    head += [f"{shown} really" for shown in tabled.values()]
    head += [f"{shown}, predicted / real" for shown in tabled.values()]
    head += ["moved", "moved wrongly"]
    rows = [
        [
            each.cell.name,
            f"`{each.logged}` → `{each.tried}`",
            f"{each.predicted_share:.0%}",
            *(f"{each.changed[figure][0] - 1.0:+.0%}" for figure in tabled),
            *(_shown(each.over_real[figure]) for figure in tabled),
            f"{each.share_change:.0%}",
            f"{each.share_error:.0%}",
        ]
        for each in found
    ]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _shown(ratio: Ratio) -> str:
    value, low, high = ratio
    return f"{value:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")
