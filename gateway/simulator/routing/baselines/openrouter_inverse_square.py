"""OpenRouter's default until mid-2026: by chance, weighted by 1/price².

Source: OpenRouter's provider-routing guide of that time; gateways 2.

Of the endpoints without an outage in the last 30 s one is drawn, then the next from those left;
those with an outage come last, drawn alike. A $1 endpoint is nine times as likely as a $3 one. The
price is input and output added, as listed now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core import AttemptOutcome, PriceRow, Rng
from gateway.simulator.routing.baselines.drawing import drawn_order
from gateway.simulator.routing.baselines.listed_prices import list_price
from gateway.simulator.routing.baselines.openrouter_outages import Outages
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting


class InverseSquare:
    def __init__(self, prices: Callable[[str, float], PriceRow], rng: Rng) -> None:
        self._prices = prices
        self._rng = rng
        self._outages = Outages()

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        order: list[str] = []
        for part in self._outages.stable_first(up, now_s):
            prices = [list_price(self._prices(each, now_s)) for each in part]
            # A free endpoint would weigh infinitely much: a pico-dollar is close enough.
            weights = [1.0 / max(price, 1.0) ** 2 for price in prices]
            order += drawn_order(part, weights, self._rng)
        return order

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        self._outages.learn(outcome, now_s)


def openrouter_inverse_square(setting: Setting) -> RuledRouter:
    rule = InverseSquare(setting.prices, setting.rng)
    return RuledRouter("openrouter_inverse_square", Roster(setting.listings), rule)
