"""Any, all equally likely. Source: nginx's `random` method (ngx_http_upstream_module)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome, Rng
from gateway.simulator.routing.baselines.drawing import shuffled
from gateway.simulator.routing.baselines.nginx_health import READ_TIMEOUT_S, NginxHealth
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class RandomChoice:
    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        return shuffled(up, self._rng)

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass


def random_choice(setting: Setting) -> RuledRouter:
    roster, rule = Roster(setting.listings), RandomChoice(setting.rng)
    return RuledRouter("random_choice", roster, rule, NginxHealth(), timeout_s=READ_TIMEOUT_S)
