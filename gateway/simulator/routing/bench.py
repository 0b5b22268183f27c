"""The race: every router in every world on every seed, and what may be claimed of it.

One task is one (world, load, endpoints, seed): all routers play it with common random numbers, so
differences between routers are paired. Tasks are independent; who runs them on how many processes
is the command's matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from gateway.errors import SetupError
from gateway.simulator.routing.arrivals import Workload
from gateway.simulator.routing.baselines.registry import BASELINES
from gateway.simulator.routing.calibrating import with_calibration
from gateway.simulator.routing.cold import judged, with_coldness
from gateway.simulator.routing.episode import Episode, RouterFactory, play
from gateway.simulator.routing.measures import Figures, figures_of
from gateway.simulator.routing.ours import PREFERENCES, OurRouter
from gateway.simulator.routing.router import Router, Setting
from gateway.simulator.routing.workloads.registry import WORKLOADS, workload
from gateway.simulator.routing.workloads.traces import LOAD_MAX
from gateway.simulator.routing.world import World
from gateway.simulator.routing.worlds import NAMES, NUM_ENDPOINTS, WORLDS, make_world
from gateway.stats.bootstrap import bootstrap_interval

CLAIRVOYANT = "clairvoyant_greedy"
NUM_RESAMPLES = 2_000
RESAMPLING_SEED = 12_345
# Baselines get a limit that most of their products do not set: with the SDK's 600 s a single hang
# would decide every comparison.
FIRST_TOKEN_TIMEOUT_S = 30.0
# What is compared: smaller is better.
COMPARED: tuple[str, ...] = ("mean_s", "p50_s", "p95_s", "p99_s", "usd_per_kchar")
USUAL_WORKLOAD = "azure-conversation"  # not named in a cell's name
OWN_WORKLOADS = {"caching": "mooncake-conversation"}  # of worlds that need more than lengths

Ratio = tuple[float, float | None, float | None]  # and its interval; None: one seed has none


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the table: where and under what load the routers race."""

    world: str
    load: float = 1.0
    num_endpoints: int = NUM_ENDPOINTS
    num_replicas: int = 1
    stale_s: float | None = None
    workload: str = USUAL_WORKLOAD
    deadline_s: float | None = None  # of every request; None = as the workload has it

    @property
    def name(self) -> str:
        parts = [self.world, f"x{self.load:g}", f"{self.num_endpoints} endpoints"]
        if self.num_replicas > 1:
            late = "alone" if self.stale_s is None else f"{self.stale_s:g} s stale"
            parts.append(f"{self.num_replicas} replicas {late}")
        if self.deadline_s is not None:
            parts.append(f"{self.deadline_s:g} s to do it in")
        if self.workload != USUAL_WORKLOAD:
            parts.append(self.workload)
        return ", ".join(parts)


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of one cell."""

    cell: Cell
    seed: int
    duration_s: float
    routers: tuple[str, ...]
    traces_dir: str = ""  # "" = the embedded generator


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a task: figures by router."""

    cell: Cell
    seed: int
    workload: str
    figures: dict[str, Figures]


def router_names() -> tuple[str, ...]:
    """Ours by preference, then the baselines."""
    return (*PREFERENCES, *BASELINES)


def factory_of(name: str) -> RouterFactory:
    """Raises ValueError for a name that nobody has."""
    if name in PREFERENCES:
        return _ours(name)
    if name not in BASELINES:
        raise ValueError(f"there is no router {name!r}; there are {', '.join(router_names())}")
    baseline = BASELINES[name]

    def build(setting: Setting, seed: int) -> Router:
        del seed
        router = baseline(setting)
        router.timeout_s = FIRST_TOKEN_TIMEOUT_S
        return router

    return build


def _ours(name: str) -> RouterFactory:
    def build(setting: Setting, seed: int) -> Router:
        return OurRouter(setting, prefer=PREFERENCES[name], name=name, seed=seed)

    return build


def run_task(task: Task) -> Played:
    """Play one seed of one cell with every router."""
    load, world = traffic_of(task), world_of(task)
    figures = {name: _figures(task, name, world, load) for name in task.routers}
    return Played(cell=task.cell, seed=task.seed, workload=load.name, figures=figures)


def traffic_of(task: Task) -> Workload:
    """What comes in. Raises TraceError; SetupError where nothing does: recordings have pauses."""
    cell = task.cell
    load = workload(
        cell.workload,
        seed=task.seed,
        duration_s=task.duration_s,
        load=cell.load,
        traces_dir=_traces(task),
    )
    if not load.arrivals:
        raise SetupError(
            f"{load.name}: no request comes in {task.duration_s / 60.0:g} minutes of seed "
            f"{task.seed}; play longer (--minutes) or overlay more (--loads)"
        )
    return load if cell.deadline_s is None else _with_deadline(load, cell.deadline_s)


def world_of(task: Task) -> World:
    """Where it goes. Raises TraceError."""
    return make_world(
        task.cell.world,
        seed=task.seed,
        duration_s=task.duration_s,
        num_endpoints=task.cell.num_endpoints,
        traces_dir=_traces(task),
    )


def _traces(task: Task) -> Path | None:
    return Path(task.traces_dir) if task.traces_dir else None


def _figures(task: Task, name: str, world: World, load: Workload) -> Figures:
    episode = _play(task, name, world, load)
    if world.restart_s is None:
        return with_calibration(figures_of(episode.served, world, load), episode.routers)
    twin = _play(task, name, world, load, has_restart=False)
    cold, minutes = judged(episode.served, load, world.restart_s)
    warm, _ = judged(twin.served, load, world.restart_s)
    figures = with_calibration(figures_of(cold, world, minutes), episode.routers)
    return with_coldness(figures, figures_of(warm, world, minutes), cold, warm)


def _play(
    task: Task, name: str, world: World, load: Workload, *, has_restart: bool = True
) -> Episode:
    return play(
        world,
        load,
        factory_of(name),
        seed=task.seed,
        num_replicas=task.cell.num_replicas,
        stale_s=task.cell.stale_s,
        has_restart=has_restart,
    )


def _with_deadline(load: Workload, deadline_s: float) -> Workload:
    arrivals = tuple(
        msgspec.structs.replace(arrival, deadline_s=deadline_s) for arrival in load.arrivals
    )
    return msgspec.structs.replace(load, arrivals=arrivals)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Ours against one other in one figure: relative difference, paired by seed."""

    router: str
    other: str
    figure: str
    change: float  # mean over seeds of ours / theirs − 1
    low: float | None  # None: one seed shows no spread
    high: float | None

    @property
    def verdict(self) -> str:
        """No claim where the interval crosses 0, or where there is none."""
        if self.low is None or self.high is None:
            return "no claim"
        if self.high < 0.0:
            return "better"
        return "worse" if self.low > 0.0 else "no claim"


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One cell over all its seeds."""

    cell: Cell
    seeds: tuple[int, ...]
    workload: str
    means: dict[str, dict[str, float | None]]  # router → figure → mean over seeds
    regrets: dict[str, dict[str, Ratio]]  # router → figure
    comparisons: tuple[Comparison, ...]


def summarise(played: Sequence[Played]) -> list[CellResult]:
    """Cells in the order in which they came, seeds together."""
    by_cell: dict[str, list[Played]] = {}
    for one in played:
        by_cell.setdefault(one.cell.name, []).append(one)
    return [_summarise_cell(sorted(rows, key=lambda row: row.seed)) for rows in by_cell.values()]


def _summarise_cell(rows: Sequence[Played]) -> CellResult:
    routers = tuple(rows[0].figures)
    regrets: dict[str, dict[str, Ratio]] = {}
    if CLAIRVOYANT in routers:
        regrets = {name: _ratios(rows, name, CLAIRVOYANT) for name in routers}
    comparisons: list[Comparison] = []
    for name in routers:
        if name not in PREFERENCES:
            continue
        for other in routers:
            if other == name:
                continue
            known = regrets[name] if other == CLAIRVOYANT else _ratios(rows, name, other)
            comparisons += [_comparison(name, other, *each) for each in known.items()]
    return CellResult(
        cell=rows[0].cell,
        seeds=tuple(row.seed for row in rows),
        workload=rows[0].workload,
        means={name: _means([row.figures[name] for row in rows]) for name in routers},
        regrets=regrets,
        comparisons=tuple(comparisons),
    )


def _comparison(router: str, other: str, figure: str, ratio: Ratio) -> Comparison:
    value, low, high = ratio
    return Comparison(
        router=router,
        other=other,
        figure=figure,
        change=value - 1.0,
        low=None if low is None else low - 1.0,
        high=None if high is None else high - 1.0,
    )


def _ratios(rows: Sequence[Played], name: str, other: str) -> dict[str, Ratio]:
    """By figure: the mean over seeds of one router's over another's, and its interval."""
    return {
        figure: ratio_of(
            [getattr(row.figures[name], figure) for row in rows],
            [getattr(row.figures[other], figure) for row in rows],
        )
        for figure in COMPARED
    }


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """
    Mean of ours / theirs over pairs, with its 95 % bootstrap interval from two pairs on.

    Every call resamples alike, so no interval hangs on what else was compared.
    """
    ratios = np.array(ours) / np.maximum(1e-12, np.array(theirs))
    if len(ratios) < 2:
        return float(ratios[0]), None, None
    rng = np.random.default_rng(RESAMPLING_SEED)
    found = bootstrap_interval(ratios, rng, num_resamples=NUM_RESAMPLES)
    return found.value, found.low, found.high


def _means(figures: Sequence[Figures]) -> dict[str, float | None]:
    """Of each figure that is a number; None where no seed had it."""
    means: dict[str, float | None] = {}
    for field in Figures.__struct_fields__:
        known = [value for one in figures if (value := getattr(one, field)) is not None]
        means[field] = float(np.mean(known)) if known else None
    return means


def cells_of(
    worlds: Sequence[str],
    loads: Sequence[float],
    endpoints: Sequence[int],
    *,
    workloads: Sequence[str] = (),
    num_replicas: int = 1,
    stale_s: float | None = None,
    deadline_s: float | None = None,
) -> list[Cell]:
    """
    Every combination, each once; a cell that came twice would count its seeds twice.

    Without `workloads` each world plays its own: the caching world Mooncake's prefixes, the others
    Azure's conversations. Raises ValueError for an unknown name, a number out of range or an empty
    list.
    """
    _check_grid(worlds, loads, endpoints, workloads)
    if stale_s is not None and num_replicas < 2:
        raise ValueError("one replica has nobody to share with: name several (--replicas)")
    cells = [
        Cell(
            world=world,
            load=load,
            num_endpoints=num,
            num_replicas=num_replicas,
            stale_s=stale_s,
            deadline_s=deadline_s,
            workload=workload,
        )
        for world in worlds
        for workload in workloads or (OWN_WORKLOADS.get(world, USUAL_WORKLOAD),)
        for load in loads
        for num in endpoints
    ]
    return list(dict.fromkeys(cells))


def _check_grid(
    worlds: Sequence[str],
    loads: Sequence[float],
    endpoints: Sequence[int],
    workloads: Sequence[str],
) -> None:
    for kind, found in (("world", worlds), ("load", loads), ("number of endpoints", endpoints)):
        if not found:
            raise ValueError(f"name at least one {kind}")
    if unknown := [world for world in worlds if world not in WORLDS]:
        raise ValueError(f"there is no world {unknown[0]!r}; there are {', '.join(WORLDS)}")
    if unknown := [each for each in workloads if each not in WORKLOADS]:
        raise ValueError(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    if bad := [load for load in loads if not 0.0 < load <= LOAD_MAX]:
        raise ValueError(f"a load is above 0 and at most {LOAD_MAX:g}, not {bad[0]:g}")
    if wrong := [num for num in endpoints if not 2 <= num <= len(NAMES)]:
        raise ValueError(f"a world has 2 to {len(NAMES)} endpoints, not {wrong[0]}")
