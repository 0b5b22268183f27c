"""Every world on every seed: the planner's cost and deadlines beside the omniscient reference's."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.simulator.batch.omniscient import lower_bound
from gateway.simulator.batch.play import Day
from gateway.simulator.batch.worlds import COIN_FLIP, WORLDS, make_world
from gateway.simulator.routing.bench import Ratio, ratio_of

RATIO_MAX = 1.05  # of the reference's cost, as a mean over seeds
SAVING_MIN = 0.45  # below list price, in worlds …
BOUND_SAVING_MIN = 0.48  # … where the reference saves so much


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of one world."""

    world: str
    seed: int


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a task. Costs in nano-dollars, counts of lines."""

    world: str
    seed: int
    cost_nanos: float
    bound_nanos: float
    list_nanos: float  # all lines at once, when they came, at the cheapest standard price
    num_jobs: int
    num_possible: int  # jobs that the reference has done in time
    missed: tuple[str, ...]  # of those, the ones that the planner had not
    lines: int
    late_lines: int
    escalated_lines: int
    moved_lines: int
    num_plans: int


def run_task(task: Task) -> Played:
    """Play one seed of one world. Raises ValueError for a world that nobody has."""
    world = make_world(task.world, task.seed)
    bound = lower_bound(world)
    day = Day(world)
    outcomes = day.run()
    return Played(
        world=task.world,
        seed=task.seed,
        cost_nanos=sum(outcome.cost_nanos for outcome in outcomes),
        bound_nanos=bound.cost_nanos,
        list_nanos=sum(world.list_nanos(job) for job in world.jobs),
        num_jobs=len(outcomes),
        num_possible=sum(bound.keeps(outcome.job_id) for outcome in outcomes),
        missed=tuple(
            outcome.job_id
            for outcome in outcomes
            if bound.keeps(outcome.job_id) and not outcome.is_in_time
        ),
        lines=sum(outcome.count for outcome in outcomes),
        late_lines=sum(outcome.late_lines for outcome in outcomes),
        escalated_lines=sum(outcome.escalated_lines for outcome in outcomes),
        moved_lines=sum(outcome.moved_lines for outcome in outcomes),
        num_plans=day.num_plans,
    )


class WorldResult(msgspec.Struct, frozen=True, kw_only=True):
    """One world over its seeds."""

    world: str
    seeds: tuple[int, ...]
    num_jobs: int
    num_possible: int
    missed: tuple[tuple[int, str], ...]  # (seed, job)
    ratio: Ratio  # cost over the reference's: mean over seeds, and its 95 % interval
    ratio_max: float  # of a seed
    saving: float  # below list price, over all seeds' money
    bound_saving: float  # the reference's
    escalated_share: float  # of lines
    moved_share: float
    num_plans: int

    @property
    def keeps_deadlines(self) -> bool:
        """Every job in time that can be."""
        return not self.missed

    @property
    def is_near_bound(self) -> bool | None:
        """None: the world is held to no bound."""
        return None if self.world == COIN_FLIP else self.ratio[0] <= RATIO_MAX

    @property
    def saves_enough(self) -> bool | None:
        """None: not even the reference saves so much, or the world is held to no bound."""
        if self.world == COIN_FLIP or self.bound_saving < BOUND_SAVING_MIN:
            return None
        return self.saving >= SAVING_MIN


def summarise(played: Sequence[Played]) -> list[WorldResult]:
    """Worlds in the order in which they came, seeds together."""
    by_world: dict[str, list[Played]] = {}
    for one in played:
        by_world.setdefault(one.world, []).append(one)
    return [_summarise(sorted(rows, key=lambda row: row.seed)) for rows in by_world.values()]


def _summarise(rows: Sequence[Played]) -> WorldResult:
    ours = [row.cost_nanos for row in rows]
    bounds = [row.bound_nanos for row in rows]
    listed, lines = sum(row.list_nanos for row in rows), sum(row.lines for row in rows)
    return WorldResult(
        world=rows[0].world,
        seeds=tuple(row.seed for row in rows),
        num_jobs=sum(row.num_jobs for row in rows),
        num_possible=sum(row.num_possible for row in rows),
        missed=tuple((row.seed, job_id) for row in rows for job_id in row.missed),
        ratio=ratio_of(ours, bounds),
        ratio_max=max(cost / bound for cost, bound in zip(ours, bounds, strict=True)),
        saving=1.0 - sum(ours) / listed,
        bound_saving=1.0 - sum(bounds) / listed,
        escalated_share=sum(row.escalated_lines for row in rows) / lines,
        moved_share=sum(row.moved_lines for row in rows) / lines,
        num_plans=sum(row.num_plans for row in rows),
    )


def tasks_of(worlds: Sequence[str], num_seeds: int) -> list[Task]:
    """Every seed of every world. Raises ValueError for a world that nobody has."""
    for world in worlds:
        if world not in WORLDS:
            raise ValueError(f"there is no world {world!r}; there are {', '.join(WORLDS)}")
    return [Task(world=world, seed=seed) for world in worlds for seed in range(1, num_seeds + 1)]
