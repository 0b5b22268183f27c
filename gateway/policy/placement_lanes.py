"""Lanes as the batch planner fills them: stretches of time with a price, a rate and what is taken.

A sync or own lane is a fluid: it answers so many lines a second, whoever's they are. Within a
stretch groups are served in the order in which they were placed.
"""

from __future__ import annotations

from math import inf

from gateway.core import PICOS_PER_NANO
from gateway.policy.placement_terms import NATIVE, LaneOffer, LineGroup, PriceWindow
from gateway.prices.rows import pick_row

# Planned rates are divided by this, so that what is planned to end in time has half as long again.
SLACK = 1.5
_EPSILON = 1e-6


class Stretch:
    """A lane in one price window, clipped to [now, horizon)."""

    __slots__ = ("from_s", "rate", "until_s", "used", "window")

    def __init__(self, window: PriceWindow, from_s: float, until_s: float, rate: float) -> None:
        self.window = window
        self.from_s = from_s
        self.until_s = until_s
        self.rate = rate
        self.used = 0.0  # lines of ordinary size

    def room(self, until_s: float, slack: float, weight: float) -> int:
        """Lines that still fit before `until_s` when only 1/slack of the rate is counted on."""
        seconds = min(self.until_s, until_s) - self.from_s
        return max(0, int((seconds * self.rate / slack - self.used) / weight + _EPSILON))

    def take(self, count: int, weight: float) -> tuple[float, float]:
        """Place so many lines behind those that are there; (start, finish) at the full rate."""
        start_s = self.from_s + self.used / self.rate
        self.used += count * weight
        return start_s, self.from_s + self.used / self.rate


class Lane:
    """One offer during one planning."""

    __slots__ = ("_costs", "is_native", "is_open", "is_refuge", "offer", "stretches")

    def __init__(self, offer: LaneOffer, now_s: float, horizon_s: float) -> None:
        self.offer = offer
        self.is_native = offer.kind == NATIVE
        # Others may refuse when busy: what is left there before a deadline still has to get away.
        self.is_refuge = offer.kind == "sync" and offer.tier != "flex"
        self.is_open = offer.opens_at_s <= now_s
        now_s = max(now_s, offer.opens_at_s)
        self._costs: dict[tuple[int, float, float], float] = {}
        self.stretches = [
            Stretch(window, max(now_s, window.from_s), min(horizon_s, window.until_s), rate)
            for window in offer.windows
            if window.until_s > now_s and window.from_s < horizon_s
            if (rate := offer.lines_per_s) > 0.0 and not self.is_native
        ]

    def weight(self, group: LineGroup) -> float:
        """How many lines of ordinary size one of the group's counts as."""
        ordinary = self.offer.line_tokens
        return group.output_tokens / ordinary if ordinary and group.output_tokens else 1.0

    def line_p95_s(self, group: LineGroup) -> float:
        """What 95 % of the group's lines take at once, as far as that was learned."""
        return self.offer.base_p95_s + self.offer.token_p95_s * group.output_tokens

    def stretch_at(self, at_s: float) -> Stretch:
        """The stretch that `at_s` is in, else the last one."""
        return next((each for each in self.stretches if at_s < each.until_s), self.stretches[-1])

    def cost_at(self, group: LineGroup, at_s: float) -> float:
        """Nano-dollars of a mean line of the group then; inf where no price is known."""
        for window in self.offer.windows:
            if window.from_s <= at_s < window.until_s:
                return self.cost_in(group, window)
        return inf

    def cost_in(self, group: LineGroup, window: PriceWindow) -> float:
        """Nano-dollars of a mean line of the group in that window; inf where it has no price."""
        key = (id(window), group.prompt_tokens, group.output_tokens)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = line_nanos(group, window, self.offer.price_tier)
        return cost


def line_nanos(group: LineGroup, window: PriceWindow, tier: str) -> float:
    """What a mean line of the group costs at that window's row of the tier; inf if unpriced."""
    row = pick_row(window.rows, tier=tier, context_tokens=int(group.prompt_tokens))
    if not row.is_priced and not row.input and not row.output:
        return inf
    picos = group.prompt_tokens * row.input + group.output_tokens * row.output
    return picos / PICOS_PER_NANO + row.request_nanos


def by_model(
    offers: tuple[LaneOffer, ...], now_s: float, horizon_s: float
) -> dict[str, list[Lane]]:
    """Lanes by the model that they serve."""
    lanes: dict[str, list[Lane]] = {}
    for offer in offers:
        lanes.setdefault(offer.model, []).append(Lane(offer, now_s, horizon_s))
    return lanes
