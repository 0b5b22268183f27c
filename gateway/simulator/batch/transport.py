"""The transportation problem, exactly: goods from sources to sinks of limited room, cheapest.

Successive shortest paths (Busacker and Gowen 1960; Ford and Fulkerson 1962). With few sources the
residual network is searched over sources alone: from one to another by the sink where swapping
costs least. Few sources, many sinks: the whole is a few milliseconds.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_EPSILON = 1e-7


def solve(costs: Floats, supplies: Floats, rooms: Floats) -> Floats:
    """
    Flows [sources, sinks] of least total cost that take all supplies.

    `costs` [sources, sinks], inf where a source cannot use a sink; `supplies` [sources]; `rooms`
    [sinks]. Raises ValueError where they do not all fit.
    """
    flows = np.zeros_like(costs)
    left, free = supplies.astype(float).copy(), rooms.astype(float).copy()
    for source in range(len(left)):
        while left[source] > _EPSILON:
            path = _cheapest_path(costs, flows, free, source)
            if path is None:
                raise ValueError(
                    f"supplies: {left[source]:g} of source {source} fit nowhere; add a sink with "
                    "room for what is left over"
                )
            _push(path, flows, left, free)
    return flows


# (source, sink) pairs: the first source's goods go to its sink, and the next pair's source gives up
# as much of that sink and takes its own.
_Path = list[tuple[int, int]]


def _cheapest_path(costs: Floats, flows: Floats, free: Floats, source: int) -> _Path | None:
    num = len(costs)
    open_costs = np.where(free > _EPSILON, costs, np.inf)
    leave_sink = open_costs.argmin(axis=1)
    leave = open_costs[np.arange(num), leave_sink]
    # swap[a, b]: what a pays for b's place in a sink less what b no longer pays there.
    held = np.where(flows > _EPSILON, costs, -np.inf)
    differences = costs[:, np.newaxis, :] - held[np.newaxis, :, :]
    swap_sink = differences.argmin(axis=2)
    swap = np.take_along_axis(differences, swap_sink[:, :, np.newaxis], axis=2)[:, :, 0]
    best = np.full(num, np.inf)
    best[source] = 0.0
    came_from = np.full(num, -1)
    for _ in range(num):  # Bellman and Ford: swaps may cost less than nothing, cycles may not
        reached = best[:, np.newaxis] + swap
        origin = reached.argmin(axis=0)
        shorter = reached[origin, np.arange(num)]
        is_better = shorter < best - _EPSILON
        if not is_better.any():
            break
        best[is_better] = shorter[is_better]
        came_from[is_better] = origin[is_better]
    last = int(np.argmin(best + leave))
    if not np.isfinite(best[last] + leave[last]):
        return None
    path = [(last, int(leave_sink[last]))]
    while path[0][0] != source:
        node = path[0][0]
        before = int(came_from[node])
        path.insert(0, (before, int(swap_sink[before, node])))
    return path


def _push(path: _Path, flows: Floats, left: Floats, free: Floats) -> None:
    source, last_sink = path[0][0], path[-1][1]
    amount = min(left[source], free[last_sink])
    for (_, sink), (giver, _) in pairwise(path):
        amount = min(amount, flows[giver, sink])
    for idx, (taker, sink) in enumerate(path):
        flows[taker, sink] += amount
        if idx + 1 < len(path):
            flows[path[idx + 1][0], sink] -= amount
    left[source] -= amount
    free[last_sink] -= amount
