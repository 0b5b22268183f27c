"""LiteLLM's cooldown. Source: LiteLLM 1.110, router cooldown handlers, and gateways 2.

Out for 5 s (or Retry-After) after more than half of at least five requests of this clock minute
failed, or at once on 429, 401, 404 and time-outs (408). A group of one is exempt. A deployment that
is cooling keeps its first deadline, whatever fails meanwhile (LL#40130, open). With everyone
cooling, the router refuses the request. Its attempt time-out is 600 s.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome
from gateway.errors import FailureClass
from gateway.simulator.routing.baselines.readings import (
    RATE_LIMITED,
    TIMEOUTS,
    is_its_failure,
    is_success,
)
from gateway.simulator.routing.baselines.ruled import Roster

COOLDOWN_S = 5.0
FAILED_SHARE_MAX = 0.5
REQUESTS_MIN = 5
MINUTE_S = 60.0
AT_ONCE = TIMEOUTS | {
    RATE_LIMITED,
    FailureClass.AUTH.value,
    FailureClass.MISCONFIGURED.value,
}


class LiteLlmCooldown:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._minute = -1
        self._ok: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._down_until_s: dict[str, float] = {}

    def is_up(self, endpoint_id: str, now_s: float) -> bool:
        return now_s >= self._down_until_s.get(endpoint_id, 0.0)

    def saw(self, outcome: AttemptOutcome, now_s: float) -> None:
        minute = int(now_s // MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._ok.clear()
            self._failed.clear()
        endpoint_id = outcome.endpoint_id
        if is_success(outcome):
            self._ok[endpoint_id] = self._ok.get(endpoint_id, 0) + 1
        if not is_its_failure(outcome):
            return
        failed = self._failed[endpoint_id] = self._failed.get(endpoint_id, 0) + 1
        total = failed + self._ok.get(endpoint_id, 0)
        is_over = total >= REQUESTS_MIN and failed > FAILED_SHARE_MAX * total
        if not (is_over or outcome.failure in AT_ONCE) or len(self._roster.listings) < 2:
            return
        if self.is_up(endpoint_id, now_s):
            self._down_until_s[endpoint_id] = now_s + (outcome.retry_after_s or COOLDOWN_S)

    def when_none_is_up(self, ids: Sequence[str]) -> Sequence[str]:
        return ()
