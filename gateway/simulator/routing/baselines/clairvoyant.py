"""Greedy with what only the world knows: the bounds that regret is measured against.

Source: reliability B.6 and B.7 of the project's research. `clairvoyant_greedy` knows every draw of
this request, now, at each endpoint, load and prefix cache included; it is greedy, so it does not
see what its choice does to later requests. `clairvoyant_means` knows the same without the
request's own noise: nobody who learns from samples can know more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.nginx_health import READ_TIMEOUT_S
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class Clairvoyant:
    def __init__(self, time_s: Callable[[int, str, float], float]) -> None:
        self._time_s = time_s

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        return sorted(up, key=lambda each: self._time_s(ask.idx, each, now_s))

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass


def clairvoyant_greedy(setting: Setting) -> RuledRouter:
    roster, rule = Roster(setting.listings), Clairvoyant(setting.oracle.time_s)
    return RuledRouter("clairvoyant_greedy", roster, rule, timeout_s=READ_TIMEOUT_S)


def clairvoyant_means(setting: Setting) -> RuledRouter:
    roster, rule = Roster(setting.listings), Clairvoyant(setting.oracle.mean_time_s)
    return RuledRouter("clairvoyant_means", roster, rule, timeout_s=READ_TIMEOUT_S)
