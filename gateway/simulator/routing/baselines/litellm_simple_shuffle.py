"""LiteLLM `simple-shuffle`, its default. Source: LiteLLM router strategies; gateways 2.

By chance: weighted by requests a minute where all have a limit, else evenly. (The code looks at the
first deployment only, and one without a limit then weighs 0. Nobody would configure that so, hence
limits that only some providers publish are left out here.) The next of the order is drawn the
same way from those left.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome, Rng
from gateway.simulator.routing.baselines.drawing import drawn_order, shuffled
from gateway.simulator.routing.baselines.litellm_cooldown import LiteLlmCooldown
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class SimpleShuffle:
    def __init__(self, roster: Roster, rng: Rng) -> None:
        self._roster = roster
        self._rng = rng

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        limits = [self._roster.listings[each].requests_per_minute for each in up]
        known = [float(limit) for limit in limits if limit is not None]
        if len(known) < len(limits):
            return shuffled(up, self._rng)
        return drawn_order(up, known, self._rng)

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass


def litellm_simple_shuffle(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    rule = SimpleShuffle(roster, setting.rng)
    return RuledRouter("litellm_simple_shuffle", roster, rule, LiteLlmCooldown(roster))
