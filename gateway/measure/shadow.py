"""A second policy that decides beside the one in force: what it would change, counted, no more.

A request leaves only a reference to what it was decided on, in a bounded queue. A task of its own
asks the shadow policy in small slices; when requests come faster than that, some are left out and
counted, so the figures are those of a sample.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter

from gateway.core import NANOS_PER_DOLLAR, FleetView, Plan, RequestFacts

log = structlog.get_logger()

QUEUE_MAX = 1_024
SLICE = 8  # decided without letting go of the loop: well under a millisecond
SLICES_A_TURN = 8
TURN_S = 0.05
PAIRS_MAX = 256  # of (route, live endpoint, shadow endpoint) shown; /metrics has them all
PAIRS_SHOWN = 20
REQUESTS_MIN = 30  # fewer support no claim
Z_95 = 1.959963984540054


class Verdict(Protocol):
    """What the shadow policy would have done with one request; both sides are predictions."""

    @property
    def route(self) -> str: ...
    @property
    def live(self) -> str: ...
    @property
    def shadow(self) -> str: ...
    @property
    def refusal(self) -> str: ...
    @property
    def live_s(self) -> float: ...
    @property
    def shadow_s(self) -> float: ...
    @property
    def live_nanos(self) -> int: ...
    @property
    def shadow_nanos(self) -> int: ...


# (facts, plan, view, the policy it was decided by) → verdict; the last is opaque here.
Judge = Callable[[RequestFacts, Plan, FleetView, Any], Verdict]


class ShadowCounters:
    """What /metrics shows of it. Labels come from the two policies, so their number is bounded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "gateway_shadow_decisions",
            "Requests shown to the shadow policy: agreed, disagreed, refused, failed, skipped.",
            ("result",),
            registry=registry,
        )
        self.disagreements = Counter(
            "gateway_shadow_disagreements",
            "Requests that the shadow policy would send elsewhere ('' = refuse), by live route.",
            ("route", "live", "shadow"),
            registry=registry,
        )
        self.seconds = Counter(
            "gateway_shadow_predicted_seconds",
            "Predicted completion by live route under each policy, of requests both would serve.",
            ("route", "policy"),
            registry=registry,
        )
        self.dollars = Counter(
            "gateway_shadow_predicted_dollars",
            "Predicted cost by live route under each policy, of requests that both would serve.",
            ("route", "policy"),
            registry=registry,
        )


@dataclass(slots=True)
class Sums:
    """Of one figure: enough for its mean and its interval (Wald's, by the normal distribution)."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.num += 1
        self.total += value
        self.squares += value * value

    def shown(self) -> dict[str, float]:
        """The mean; from REQUESTS_MIN on also its 95 % interval."""
        if not self.num:
            return {"mean": 0.0, "n": 0}
        mean = self.total / self.num
        shown = {"mean": mean, "n": self.num}
        if self.num >= REQUESTS_MIN:
            variance = max(0.0, self.squares / self.num - mean * mean)
            reach = Z_95 * sqrt(variance / (self.num - 1))
            shown |= {"low": mean - reach, "high": mean + reach}
        return shown


@dataclass(slots=True)
class Tally:
    """What has been seen since the shadow policy came into force."""

    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("agreed", "disagreed", "refused", "failed", "skipped"), 0
        )
    )
    seconds: Sums = field(default_factory=Sums)
    dollars: Sums = field(default_factory=Sums)
    pairs: dict[tuple[str, str, str], tuple[Sums, Sums]] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    last_error: str = ""


class Shadow:
    """Takes decisions in at `offer`, which never raises; `run` judges them until cancelled."""

    def __init__(
        self,
        judge: Judge,
        registry: CollectorRegistry,
        *,
        version: Callable[[], str],
        source: str,
        wall_clock: Callable[[], float],
        policy_error: Callable[[], str] = str,
    ) -> None:
        self._judge = judge
        self._counters = ShadowCounters(registry)
        self._version = version
        self._source = source
        self._wall_clock = wall_clock
        self._queue: deque[tuple[RequestFacts, Plan, FleetView, Any]] = deque()
        self._num_skipped = 0  # not yet in the tally
        self._policy_error = policy_error
        self.restart()

    def restart(self) -> None:
        """Count anew: another shadow policy is in force. /metrics go on."""
        self._queue.clear()
        self.tally = Tally()
        self._since_unix_s = self._wall_clock()

    def offer(self, facts: RequestFacts, plan: Plan, view: FleetView, policy: Any) -> None:
        """On the way of a request: one append, or one count where the queue is full."""
        if len(self._queue) < QUEUE_MAX:
            self._queue.append((facts, plan, view, policy))
        else:
            self._num_skipped += 1

    async def run(self) -> None:
        """Judge what is queued, at most SLICE × SLICES_A_TURN each TURN_S."""
        while True:
            for _ in range(SLICES_A_TURN):
                if not self._queue:
                    break
                self.judge_some(SLICE)
                await asyncio.sleep(0)
            self._count_skipped()
            await asyncio.sleep(TURN_S)

    def judge_some(self, num_max: int) -> int:
        """Judge up to so many of the queue; returns how many. An error is counted, not raised."""
        num = min(num_max, len(self._queue))
        for _ in range(num):
            facts, plan, view, policy = self._queue.popleft()
            try:
                self._count(self._judge(facts, plan, view, policy))
            except Exception as error:  # whatever it is: no request may feel it
                self._count_result("failed")
                message = f"{type(error).__name__}: {error}"
                if message != self.tally.last_error:
                    log.error("shadow policy failed", error=message)
                self.tally.last_error = message
        return num

    def _count_skipped(self) -> None:
        if self._num_skipped:
            self._count_result("skipped", self._num_skipped)
            self._num_skipped = 0

    def _count_result(self, result: str, num: int = 1) -> None:
        self.tally.counts[result] += num
        self._counters.decisions.labels(result).inc(num)

    def _count(self, verdict: Verdict) -> None:
        tally, counters = self.tally, self._counters
        route, live, shadow = verdict.route, verdict.live, verdict.shadow
        if not shadow:
            self._count_result("refused")
            counters.disagreements.labels(route, live, "").inc()
            tally.refusals[verdict.refusal] = tally.refusals.get(verdict.refusal, 0) + 1
            return
        seconds = verdict.shadow_s - verdict.live_s
        dollars = (verdict.shadow_nanos - verdict.live_nanos) / NANOS_PER_DOLLAR
        for name, of_s, nanos in (
            ("live", verdict.live_s, verdict.live_nanos),
            ("shadow", verdict.shadow_s, verdict.shadow_nanos),
        ):
            counters.seconds.labels(route, name).inc(of_s)
            counters.dollars.labels(route, name).inc(nanos / NANOS_PER_DOLLAR)
        tally.seconds.add(seconds)
        tally.dollars.add(dollars)
        if shadow == live:
            self._count_result("agreed")
            return
        self._count_result("disagreed")
        counters.disagreements.labels(route, live, shadow).inc()
        pair = (route, live, shadow)
        if pair not in tally.pairs and len(tally.pairs) >= PAIRS_MAX:
            return
        of_seconds, of_dollars = tally.pairs.setdefault(pair, (Sums(), Sums()))
        of_seconds.add(seconds)
        of_dollars.add(dollars)

    def summary(self) -> dict[str, Any]:
        """What `status.json` and `looprouter policy shadow` show; differences are shadow − live."""
        self._count_skipped()
        tally = self.tally
        pairs = sorted(tally.pairs.items(), key=lambda item: -item[1][0].num)
        return {
            "source": self._source,
            "policy_version": self._version(),
            "policy_error": self._policy_error(),
            "since_unix_s": self._since_unix_s,
            **tally.counts,
            "predicted": {
                "seconds_difference": tally.seconds.shown(),
                "dollars_difference": tally.dollars.shown(),
            },
            "disagreements": [
                {
                    "route": route,
                    "live": live,
                    "shadow": shadow,
                    "requests": seconds.num,
                    "predicted": {
                        "seconds_difference": seconds.shown(),
                        "dollars_difference": dollars.shown(),
                    },
                }
                for (route, live, shadow), (seconds, dollars) in pairs[:PAIRS_SHOWN]
            ],
            "refusals": dict(
                sorted(tally.refusals.items(), key=lambda item: -item[1])[:PAIRS_SHOWN]
            ),
            "last_error": tally.last_error,
        }
