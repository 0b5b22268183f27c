"""Power of two choices on peak-EWMA load. Source: Finagle's P2C balancer with PeakEwma.

Cost is the round trip: it jumps up to a slower one at once and decays with tau = 10 s to a faster
one, reading it included, so an idle endpoint slowly looks better. Load = cost x (pending + 1); with
no history but work pending it is a huge penalty. The round trip here is the whole answer. Failed
round trips count as any other, so a fast failure looks fast; what stops that is failure accrual
(Finagle's default: five failures in a row mark dead, 5 s and doubling up to 300 s).
Finagle sets no request time-out by default: the client's 600 s. (Decay and accrual constants are
known, not re-read here.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.core import AttemptOutcome, Rng
from gateway.simulator.routing.baselines.readings import is_its_failure, is_success, whole_s
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting

TAU_S = 10.0
PENALTY = 1e12  # above any cost
FAILURES_IN_A_ROW = 5
DEAD_S, DEAD_S_MAX = 5.0, 300.0


class PeakEwma:
    def __init__(self, roster: Roster, rng: Rng) -> None:
        self._roster = roster
        self._rng = rng
        self._costs: dict[str, tuple[float, float]] = {}  # endpoint → (cost s, as of)

    def load(self, endpoint_id: str, now_s: float) -> float:
        cost_s = self._decayed_s(endpoint_id, now_s)
        pending = self._roster.in_flight.get(endpoint_id, 0)
        if cost_s == 0.0 and pending:
            return PENALTY + pending
        return cost_s * (pending + 1)

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        by_load = sorted(up, key=lambda each: self.load(each, now_s))
        if len(up) < 2:
            return by_load
        first = int(self._rng.random() * len(up))
        second = int(self._rng.random() * (len(up) - 1))
        second += second >= first
        for each in (up[first], up[second]):  # reading decays
            self._costs[each] = (self._decayed_s(each, now_s), now_s)
        chosen = min((up[first], up[second]), key=lambda each: self.load(each, now_s))
        return [chosen, *(each for each in by_load if each != chosen)]

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        round_trip_s = whole_s(outcome, now_s)
        cost_s, at_s = self._costs.get(outcome.endpoint_id, (0.0, now_s))
        if round_trip_s > cost_s:
            cost_s = round_trip_s
        else:
            kept = math.exp(-(now_s - at_s) / TAU_S)
            cost_s = cost_s * kept + round_trip_s * (1.0 - kept)
        self._costs[outcome.endpoint_id] = (cost_s, now_s)

    def _decayed_s(self, endpoint_id: str, now_s: float) -> float:
        cost_s, at_s = self._costs.get(endpoint_id, (0.0, now_s))
        return cost_s * math.exp(-(now_s - at_s) / TAU_S)


class FailureAccrual:
    """Dead after five failures in a row; the first success ends the row and the doubling."""

    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}
        self._dead_s: dict[str, float] = {}
        self._down_until_s: dict[str, float] = {}

    def is_up(self, endpoint_id: str, now_s: float) -> bool:
        return now_s >= self._down_until_s.get(endpoint_id, 0.0)

    def saw(self, outcome: AttemptOutcome, now_s: float) -> None:
        endpoint_id = outcome.endpoint_id
        if is_success(outcome):
            self._in_a_row.pop(endpoint_id, None)
            self._dead_s.pop(endpoint_id, None)
        elif is_its_failure(outcome) and self.is_up(endpoint_id, now_s):
            in_a_row = self._in_a_row[endpoint_id] = self._in_a_row.get(endpoint_id, 0) + 1
            if in_a_row >= FAILURES_IN_A_ROW:
                # The row is not begun anew: one failed probe after the pause marks it dead again.
                dead_s = self._dead_s.get(endpoint_id, DEAD_S)
                self._down_until_s[endpoint_id] = now_s + dead_s
                self._dead_s[endpoint_id] = min(2.0 * dead_s, DEAD_S_MAX)

    def when_none_is_up(self, ids: Sequence[str]) -> Sequence[str]:
        return ids


def p2c_peak_ewma(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    return RuledRouter("p2c_peak_ewma", roster, PeakEwma(roster, setting.rng), FailureAccrual())
