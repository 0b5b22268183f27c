"""How an endpoint's speed and health change over a run: drift, regimes, outages. Seeded tables."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEP_S = 5.0  # of the drift's grid
DRIFT_TAU_S = 600.0
DRIFT_SIGMA = 0.25
REGIME_EVERY_S = 2_400.0  # mean calm between two slow regimes of one endpoint
REGIME_FACTOR = (0.25, 0.6)
REGIME_S = (180.0, 720.0)
OUTAGE_EVERY_S = 3_600.0
OUTAGE_S = (90.0, 420.0)

ERROR, HANG, HALF = "error", "hang", "half"  # refuses at once; says nothing; breaks off midway
KINDS = (ERROR, HANG, HALF)


@dataclass(frozen=True, slots=True)
class Outage:
    """One stretch of time in which an endpoint does not serve."""

    begin_s: float
    end_s: float
    kind: str  # ERROR | HANG | HALF


class Weather:
    """Speed factor and outages of one endpoint, known for every instant beforehand."""

    __slots__ = ("_outage_begins_s", "_speed", "outages")

    def __init__(self, log_speed: NDArray[np.float64], outages: tuple[Outage, ...]) -> None:
        """`log_speed`: [steps of 5 s] ln of the factor on prefill and decode speed."""
        self._speed = np.exp(log_speed).tolist()
        self.outages = tuple(sorted(outages, key=lambda one: one.begin_s))
        self._outage_begins_s = [one.begin_s for one in self.outages]

    def speed(self, now_s: float) -> float:
        """Factor on its usual speed at this instant."""
        idx = int(now_s / STEP_S)
        table = self._speed
        return float(table[idx] if idx < len(table) else table[-1])

    def outage(self, now_s: float) -> Outage | None:
        idx = bisect_right(self._outage_begins_s, now_s) - 1
        if idx < 0:
            return None
        one = self.outages[idx]
        return one if now_s < one.end_s else None


def num_steps(duration_s: float) -> int:
    """Steps of a run and of what may still run after its last arrival."""
    return int((duration_s + 600.0) / STEP_S) + 1


def steady(duration_s: float) -> NDArray[np.float64]:
    """No change at all."""
    return np.zeros(num_steps(duration_s))


def drift(duration_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """An Ornstein-Uhlenbeck walk of ln speed: tau 600 s, stationary sigma 0.25 (B.6)."""
    steps = num_steps(duration_s)
    keep = float(np.exp(-STEP_S / DRIFT_TAU_S))
    kicks = rng.normal(0.0, DRIFT_SIGMA * np.sqrt(1.0 - keep * keep), steps)
    walk = np.empty(steps)
    level = rng.normal(0.0, DRIFT_SIGMA)
    for idx in range(steps):
        level = keep * level + kicks[idx]
        walk[idx] = level
    return walk


def regimes(duration_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Calm, broken by stretches of 3–12 minutes at 0.25–0.6 of the speed (B.6)."""
    table = np.zeros(num_steps(duration_s))
    for begin_s, end_s in _stretches(duration_s, REGIME_EVERY_S, REGIME_S, rng):
        factor = rng.uniform(*REGIME_FACTOR)
        table[int(begin_s / STEP_S) : int(end_s / STEP_S)] = np.log(factor)
    return table


def outages(duration_s: float, rng: np.random.Generator) -> tuple[Outage, ...]:
    """Stretches of 1.5–7 minutes in which the endpoint fails, in one way each."""
    return tuple(
        Outage(begin_s, end_s, draw_kind(rng))
        for begin_s, end_s in _stretches(duration_s, OUTAGE_EVERY_S, OUTAGE_S, rng)
    )


def draw_kind(rng: np.random.Generator) -> str:
    """One way to fail, all equally likely."""
    return KINDS[int(rng.integers(len(KINDS)))]


def _stretches(
    duration_s: float, every_s: float, length_s: tuple[float, float], rng: np.random.Generator
) -> list[tuple[float, float]]:
    found = []
    at_s = float(rng.exponential(every_s * 0.5))
    while at_s < duration_s:
        end_s = at_s + float(rng.uniform(*length_s))
        found.append((at_s, end_s))
        at_s = end_s + float(rng.exponential(every_s))
    return found
