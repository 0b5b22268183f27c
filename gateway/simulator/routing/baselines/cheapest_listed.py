"""The lowest price for this prompt and a usual answer. Source: OpenRouter `sort: price`, `:floor`.

Sorting tries the endpoints in order. Those with an outage in the last 30 s come last, which its
guide says of the default only: without it this rule would be weaker than what it stands for.
LiteLLM's `cost-based-routing` differs in adding input and output price without a token mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core import AttemptOutcome, PriceRow
from gateway.simulator.routing.baselines.listed_prices import request_price
from gateway.simulator.routing.baselines.openrouter_outages import Outages
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class CheapestListed:
    def __init__(self, prices: Callable[[str, float], PriceRow]) -> None:
        self._prices = prices
        self._outages = Outages()

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        by_price = sorted(up, key=lambda each: request_price(self._prices(each, now_s), ask))
        stable, out = self._outages.stable_first(by_price, now_s)
        return stable + out

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        self._outages.learn(outcome, now_s)


def cheapest_listed(setting: Setting) -> RuledRouter:
    rule = CheapestListed(setting.prices)
    return RuledRouter("cheapest_listed", Roster(setting.listings), rule)
