"""OpenRouter's newer default: shares by adjusted price and speed, inside or past an edge.

Source: OpenRouter documentation, "How OpenRouter Routes Traffic Between Providers" and its
provider-routing guide (autumn 2026); gateways 2. Documented: adjusted price = effective price (real
cache hits and token mix) plus what the first token's wait, failures and 429s cost the user; speed =
end-to-end tokens/s; faster endpoints may charge more and stay competitive; inside the edge being a
little behind costs little, past it the share falls off fast but never to zero; each request, and
each retry among those left, is drawn by share; a breaker and a learned traffic cap on top.

Our reading of what is not documented: a second is worth $0.0005; the edge is price proportional to
speed, so an endpoint is judged by adjusted price / speed against the best one's; inside is up to
1.25x of it; past it the share falls with the eighth power; the smallest share is 1 %. Unmeasured
endpoints count as listed. No per-attempt time-out is documented: the client's 600 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gateway.core import AttemptOutcome, PriceRow, Rng
from gateway.prices.rows import cost_nanos
from gateway.simulator.routing.baselines.drawing import drawn_order
from gateway.simulator.routing.baselines.listed_prices import OUTPUT_TOKENS_EXPECTED
from gateway.simulator.routing.baselines.openrouter_traffic import LIMIT_SLOTS, SLOT_S, Traffic
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.baselines.static_table import listed_time_s
from gateway.simulator.routing.router import Ask, Setting
from gateway.wire.usage import Usage

SECOND_NANOS = 500_000.0
EDGE = math.log(1.25)
FALL_OFF = 8.0
SHARE_MIN = 0.01
PROMPT_TOKENS_EXPECTED = 1_155  # mean of Azure's conversation hour, as OUTPUT_TOKENS_EXPECTED
FAILED_SHARE_MAX = 0.99


class CompetitiveEdge:
    """Rule and health in one: shares, breaker and cap come from the same traffic."""

    def __init__(self, roster: Roster, prices: Callable[[str, float], PriceRow], rng: Rng) -> None:
        self._roster = roster
        self._prices = prices
        self._rng = rng
        self._traffic: dict[str, Traffic] = {}
        self._shares: dict[str, float] = {}
        self._shares_of: tuple[int, tuple[str, ...]] = (-1, ())

    def position(self, endpoint_id: str, now_s: float) -> tuple[float, float]:
        """(adjusted price in nano-dollars per token, speed in tokens/s)."""
        seen = self._of(endpoint_id).sums(now_s)
        row = self._prices(endpoint_id, now_s)
        if seen.succeeded == 0 or seen.output_tokens == 0 or seen.seconds <= 0.0:
            listing = self._roster.listings[endpoint_id]
            usage = Usage(input=PROMPT_TOKENS_EXPECTED, output=OUTPUT_TOKENS_EXPECTED)
            tokens = float(PROMPT_TOKENS_EXPECTED + OUTPUT_TOKENS_EXPECTED)
            price, wait_s = cost_nanos(row, usage) / tokens, listing.ttft_s
            speed = OUTPUT_TOKENS_EXPECTED / listed_time_s(listing)
        else:
            tokens = seen.tokens / seen.succeeded
            price, wait_s = seen.cost_nanos / seen.tokens, seen.ttft_s / seen.succeeded
            speed = seen.output_tokens / seen.seconds
        wrong = seen.failed + seen.limited
        if wrong:
            share = min(wrong / seen.attempts, FAILED_SHARE_MAX)
            wait_s += share / (1.0 - share) * seen.lost_s / wrong
            speed *= 1.0 - share  # an answer that never came has no speed
        return price + wait_s * SECOND_NANOS / tokens, speed

    def shares(self, up: Sequence[str], now_s: float) -> dict[str, float]:
        """Each endpoint's share of the traffic, caps not yet applied. Sums to one."""
        values: dict[str, float] = {}
        for each in up:
            price, speed = self.position(each, now_s)
            values[each] = math.log(max(price, 1e-9) / max(speed, 1e-9))
        best = min(values.values())
        raw = {each: _pull(value - best) for each, value in values.items()}
        total = sum(raw.values())
        floored = {each: max(pull / total, SHARE_MIN) for each, pull in raw.items()}
        total = sum(floored.values())
        return {each: share / total for each, share in floored.items()}

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        # Shares move once a slot: the product speaks of minutes.
        current = (int(now_s // SLOT_S), tuple(up))
        if current != self._shares_of:
            self._shares_of = current
            for traffic in self._traffic.values():
                traffic.learn_cap(now_s)
            self._shares = self._capped(self.shares(up, now_s), now_s)
        return drawn_order(up, [self._shares[each] for each in up], self._rng)

    def _capped(self, shares: dict[str, float], now_s: float) -> dict[str, float]:
        """What is above an endpoint's learned cap goes to the others, by their shares."""
        seen = [traffic.sums(now_s, LIMIT_SLOTS).succeeded for traffic in self._traffic.values()]
        per_s = sum(seen) / (LIMIT_SLOTS * SLOT_S)
        if per_s <= 0.0:
            return shares
        caps = {each: self._of(each).cap_per_s for each in shares}
        limits = {each: cap / per_s for each, cap in caps.items() if cap is not None}
        kept = {each: min(share, limits.get(each, 1.0)) for each, share in shares.items()}
        spare = sum(shares.values()) - sum(kept.values())
        free = sum(share for each, share in kept.items() if share == shares[each])
        if spare <= 0.0 or free <= 0.0:
            return kept
        return {
            each: share * (1.0 + spare / free) if share == shares[each] else share
            for each, share in kept.items()
        }

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        row = self._prices(outcome.endpoint_id, outcome.dispatched_at_s)
        cost = cost_nanos(row, outcome.usage) if outcome.usage is not None else 0
        self._of(outcome.endpoint_id).add(outcome, cost, now_s)

    # As a health check

    def is_up(self, endpoint_id: str, now_s: float) -> bool:
        return now_s >= self._of(endpoint_id).paused_until_s

    def saw(self, outcome: AttemptOutcome, now_s: float) -> None:
        """Called before `learn`, so the breaker is one outcome behind; that is nothing to it."""
        if outcome.failure:
            peers = list(self._traffic.values())
            self._of(outcome.endpoint_id).judge(peers, now_s)

    def when_none_is_up(self, ids: Sequence[str]) -> Sequence[str]:
        return ids

    def _of(self, endpoint_id: str) -> Traffic:
        traffic = self._traffic.get(endpoint_id)
        if traffic is None:
            traffic = self._traffic[endpoint_id] = Traffic()
        return traffic


def _pull(behind: float) -> float:
    """Relative share of one that is so far behind the best, in logarithms of price over speed."""
    past = max(0.0, behind - EDGE)
    return math.exp(-min(behind, EDGE) - FALL_OFF * past)


def openrouter_edge(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    rule = CompetitiveEdge(roster, setting.prices, setting.rng)
    return RuledRouter("openrouter_edge", roster, rule, rule)
