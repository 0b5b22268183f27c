"""LiteLLM `latency-based-routing`, release of autumn 2026. Source: gateways 2, reliability B.1.

Per deployment the last ten samples, thrown away an hour after the last write. For a stream the mean
time to first token decides, decode speed does not. Lowest mean wins, ties (buffer 0) by chance; an
unused deployment counts as 0 and gets everything until its first answer. A time-out adds 1,000 s,
but to the list of seconds per token only, and the mean of first-token times is taken over the
number of *those* samples: so a time-out makes a measured deployment look faster for streams, as in
the code. Other failures are no samples; zero completion tokens lose the sample. A listed limit a
minute shuts a deployment out once as many *succeeded* in this clock minute.

Rest of the order: by the same mean. (LiteLLM would choose again, perhaps the same one; the order
here is kinder to it.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.core import AttemptOutcome, Rng
from gateway.simulator.routing.baselines.drawing import shuffled
from gateway.simulator.routing.baselines.litellm_cooldown import MINUTE_S, LiteLlmCooldown
from gateway.simulator.routing.baselines.readings import (
    TIMEOUTS,
    is_success,
    output_tokens,
    ttft_s,
    whole_s,
)
from gateway.simulator.routing.baselines.ruled import CLIENT_TIMEOUT_S, Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Setting

SAMPLES_MAX = 10
TTL_S = 3_600.0
TIMEOUT_PENALTY_S = 1_000.0


@dataclass(slots=True)
class Samples:
    """What is kept of one deployment."""

    s_per_token: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    minute: int = -1
    succeeded: int = 0  # in that minute


@dataclass(frozen=True, slots=True)
class Release:
    """Where the releases differ."""

    keep: Callable[[list[float], float], list[float]]  # the list with one sample more
    ttft_sample: Callable[[float, int], float]  # (TTFT s, completion tokens) → what is stored


def last_ten(samples: list[float], newest: float) -> list[float]:
    return [*samples, newest][-SAMPLES_MAX:]


CURRENT = Release(keep=last_ten, ttft_sample=lambda ttft, tokens: ttft)


class LowestLatency:
    def __init__(self, roster: Roster, rng: Rng, release: Release = CURRENT) -> None:
        self._roster = roster
        self._rng = rng
        self._release = release
        self._map: dict[str, Samples] = {}
        self._written_at_s = 0.0

    def mean(self, endpoint_id: str) -> float:
        """What it is ranked by, for a stream."""
        samples = self._map.get(endpoint_id)
        if samples is None:
            return 0.0
        total = sum(samples.ttft) if samples.ttft else sum(samples.s_per_token)
        return total / len(samples.s_per_token)

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        if now_s - self._written_at_s > TTL_S:
            self._map.clear()
        minute = int(now_s // MINUTE_S)
        allowed = [each for each in up if self._is_within_limit(each, minute)]
        return sorted(shuffled(allowed, self._rng), key=self.mean)

    def _is_within_limit(self, endpoint_id: str, minute: int) -> bool:
        limit = self._roster.listings[endpoint_id].requests_per_minute
        samples = self._map.get(endpoint_id)
        if limit is None or samples is None or samples.minute != minute:
            return True
        return samples.succeeded + 1 <= limit

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        keep = self._release.keep
        if outcome.failure in TIMEOUTS:
            samples = self._map.setdefault(outcome.endpoint_id, Samples())
            samples.s_per_token = keep(samples.s_per_token, TIMEOUT_PENALTY_S)
            self._written_at_s = now_s
            return
        tokens, first_s = output_tokens(outcome), ttft_s(outcome)
        if not is_success(outcome) or tokens == 0 or first_s is None:
            return
        samples = self._map.setdefault(outcome.endpoint_id, Samples())
        samples.s_per_token = keep(samples.s_per_token, whole_s(outcome, now_s) / tokens)
        samples.ttft = keep(samples.ttft, self._release.ttft_sample(first_s, tokens))
        minute = int(now_s // MINUTE_S)
        samples.succeeded = samples.succeeded + 1 if samples.minute == minute else 1
        samples.minute = minute
        self._written_at_s = now_s


def litellm_lowest_latency(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    rule = LowestLatency(roster, setting.rng)
    return RuledRouter(
        "litellm_lowest_latency", roster, rule, LiteLlmCooldown(roster), timeout_s=CLIENT_TIMEOUT_S
    )
