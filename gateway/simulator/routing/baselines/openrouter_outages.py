"""OpenRouter's outage rule. Source: its provider-routing guide (until mid-2026); gateways 2.

An endpoint with a significant outage in the last 30 s goes last. "Significant" is not defined;
read here as at least two failures there and at least half of the attempts that ended. Rate-limited
requests are left out, as in its uptime. There is no per-attempt time-out: the client's 600 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.readings import RATE_LIMITED, is_its_failure, is_success

WINDOW_S = 30.0
FAILURES_MIN = 2
FAILED_SHARE_MIN = 0.5
ATTEMPTS_KEPT_MAX = 4_096


class Outages:
    def __init__(self) -> None:
        self._ended: dict[str, deque[tuple[float, bool]]] = {}  # (when, did it fail)

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        has_failed = is_its_failure(outcome) and outcome.failure != RATE_LIMITED
        if has_failed or is_success(outcome):
            ended = self._ended.setdefault(outcome.endpoint_id, deque(maxlen=ATTEMPTS_KEPT_MAX))
            ended.append((now_s, has_failed))

    def is_out(self, endpoint_id: str, now_s: float) -> bool:
        ended = self._ended.get(endpoint_id)
        if not ended:
            return False
        while ended and ended[0][0] < now_s - WINDOW_S:
            ended.popleft()
        failures = sum(has_failed for _, has_failed in ended)
        return failures >= FAILURES_MIN and failures >= FAILED_SHARE_MIN * len(ended)

    def stable_first(self, ids: Sequence[str], now_s: float) -> tuple[list[str], list[str]]:
        """`ids` parted in stable ones and those with an outage, each in the order given."""
        out = {each for each in ids if self.is_out(each, now_s)}
        return [each for each in ids if each not in out], [each for each in ids if each in out]
