"""Whoever has the fewest attempts under way; ties in turn. Source: nginx's `least_conn` method.

LiteLLM's `least-busy` and Kong's `least-connections` are the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.nginx_health import READ_TIMEOUT_S, NginxHealth
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class LeastInFlight:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._next = 0

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        first = self._next % len(up)
        self._next += 1
        # Sorting is stable, so the turn decides between equals.
        return sorted(
            [*up[first:], *up[:first]], key=lambda each: self._roster.in_flight.get(each, 0)
        )

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass


def least_in_flight(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    rule = LeastInFlight(roster)
    return RuledRouter("least_in_flight", roster, rule, NginxHealth(), timeout_s=READ_TIMEOUT_S)
