"""What coldness costs: routers that know nothing yet, beside themselves as they would be warm.

In the world `cold-start` traffic runs for half of the time, then every replica is replaced by one
that has measured nothing, as after a first installation. Only the minutes after that are judged.
The same run without the replacement is the warm twin: same arrivals, same draws, same endpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.simulator.routing.arrivals import Workload
from gateway.simulator.routing.measures import FAILED_S, Figures
from gateway.simulator.routing.places import PlaceSpec
from gateway.simulator.routing.records import Served
from gateway.simulator.routing.world import World, steady_world

JUDGED_S = 300.0  # from the restart on
WINDOW_S = 30.0
LEVEL_WITH = 1.1  # of the warm twin's mean: no longer cold


def cold_start(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """Nothing happens but that the gateway itself begins anew, halfway."""
    del rng
    world = steady_world("cold-start", specs, duration_s)
    return msgspec.structs.replace(world, restart_s=duration_s / 2.0)


def judged(
    served: Sequence[Served], workload: Workload, begin_s: float
) -> tuple[list[Served], Workload]:
    """The rows and arrivals of the first minutes from `begin_s` on."""
    end_s = min(begin_s + JUDGED_S, workload.duration_s)
    rows = [one for one in served if begin_s <= one.at_s < end_s]
    if not rows:
        raise ValueError(f"nothing arrives between {begin_s:g} and {end_s:g} s: run for longer")
    arrivals = tuple(workload.arrivals[one.idx] for one in rows)
    return rows, msgspec.structs.replace(workload, arrivals=arrivals, duration_s=end_s - begin_s)


def with_coldness(
    figures: Figures, warm: Figures, cold_rows: Sequence[Served], warm_rows: Sequence[Served]
) -> Figures:
    """The figures of a cold run with what they are of its warm twin's; rows pair by request."""
    return msgspec.structs.replace(
        figures,
        cold_minute=_first_minute(cold_rows) / _first_minute(warm_rows),
        cold_mean=figures.mean_s / warm.mean_s,
        cold_p95=figures.p95_s / warm.p95_s,
        cold_usd=figures.usd_per_kchar / warm.usd_per_kchar if warm.usd_per_kchar else None,
        cold_for_s=_cold_for_s(cold_rows, warm_rows),
    )


def _cold_for_s(cold: Sequence[Served], warm: Sequence[Served]) -> float | None:
    """Seconds to the first window of 30 s that is level with the warm twin's; None: none is."""
    begin_s = cold[0].at_s
    at_s = np.array([one.at_s for one in cold]) - begin_s
    cold_s, warm_s = _times(cold), _times(warm)
    for start_s in np.arange(0.0, max(1.0, at_s[-1] - WINDOW_S), 5.0):
        within = (at_s >= start_s) & (at_s < start_s + WINDOW_S)
        if within.any() and cold_s[within].mean() <= LEVEL_WITH * warm_s[within].mean():
            return float(start_s)
    return None


def _first_minute(rows: Sequence[Served]) -> float:
    """Mean seconds of those that arrived in it."""
    return float(_times([one for one in rows if one.at_s < rows[0].at_s + 60.0]).mean())


def _times(rows: Sequence[Served]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([FAILED_S if one.has_failed else one.done_s for one in rows])
