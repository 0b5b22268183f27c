"""The highest median of tokens per second over five minutes. Source: OpenRouter `sort: throughput`.

Throughput is as OpenRouter defines it: output tokens over the time from dispatch to the body's end,
so it includes the first token's wait. Sorting tries the endpoints in order (`:nitro` does the
same). The window of its preference percentiles is five minutes (recalled, gateways 2). An endpoint
that nothing was sent to lately keeps its last median, one never used its listed rate: OpenRouter
would see other customers' traffic there. Those with an outage in the last 30 s come last, which its
guide says of the default only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.openrouter_outages import Outages
from gateway.simulator.routing.baselines.readings import end_to_end_tokens_per_s
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting

WINDOW_S = 300.0
SAMPLES_MAX = 20_000


@dataclass(slots=True)
class Rates:
    """The rates of the five minutes before an endpoint's last sample, by time and by size."""

    by_time: deque[tuple[float, float]] = field(default_factory=deque)
    ascending: list[float] = field(default_factory=list)

    def add(self, tokens_per_s: float, now_s: float) -> None:
        self.by_time.append((now_s, tokens_per_s))
        insort(self.ascending, tokens_per_s)
        while self.by_time[0][0] < now_s - WINDOW_S or len(self.by_time) > SAMPLES_MAX:
            _, rate = self.by_time.popleft()
            del self.ascending[bisect_left(self.ascending, rate)]

    @property
    def median(self) -> float:
        num = len(self.ascending)
        return (self.ascending[(num - 1) // 2] + self.ascending[num // 2]) / 2.0


class SortThroughput:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._outages = Outages()
        self._rates: dict[str, Rates] = {}

    def tokens_per_s(self, endpoint_id: str) -> float:
        rates = self._rates.get(endpoint_id)
        return rates.median if rates else self._roster.listings[endpoint_id].tokens_per_s

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        by_rate = sorted(up, key=lambda each: -self.tokens_per_s(each))
        stable, out = self._outages.stable_first(by_rate, now_s)
        return stable + out

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        self._outages.learn(outcome, now_s)
        rate = end_to_end_tokens_per_s(outcome, now_s)
        if rate is not None:
            self._rates.setdefault(outcome.endpoint_id, Rates()).add(rate, now_s)


def sort_throughput(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    return RuledRouter("sort_throughput", roster, SortThroughput(roster))
