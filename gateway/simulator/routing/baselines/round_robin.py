"""Each in turn. Source: nginx's default balancing method (ngx_http_upstream_module)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.nginx_health import READ_TIMEOUT_S, NginxHealth
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class RoundRobin:
    def __init__(self) -> None:
        self._next = 0

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        first = self._next % len(up)
        self._next += 1
        return [*up[first:], *up[:first]]

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass


def round_robin(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    return RuledRouter("round_robin", roster, RoundRobin(), NginxHealth(), timeout_s=READ_TIMEOUT_S)
