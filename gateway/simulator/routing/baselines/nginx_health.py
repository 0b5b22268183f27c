"""nginx's passive health check, for the plain rules: they are nginx's balancing methods.

Source: nginx documentation, ngx_http_upstream_module (`max_fails` 1, `fail_timeout` 10 s) and
ngx_http_proxy_module (`proxy_read_timeout` 60 s), with `proxy_next_upstream error timeout http_500
http_502 http_503 http_504 http_429`: what passes to the next server also counts as a failure. When
every server is marked, all are tried again. (Known, not re-read here.)
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.readings import is_its_failure

READ_TIMEOUT_S = 60.0
FAIL_TIMEOUT_S = 10.0


class NginxHealth:
    """Out for ten seconds after one failure."""

    def __init__(self) -> None:
        self._down_until_s: dict[str, float] = {}

    def is_up(self, endpoint_id: str, now_s: float) -> bool:
        return now_s >= self._down_until_s.get(endpoint_id, 0.0)

    def saw(self, outcome: AttemptOutcome, now_s: float) -> None:
        if is_its_failure(outcome):
            self._down_until_s[outcome.endpoint_id] = now_s + FAIL_TIMEOUT_S

    def when_none_is_up(self, ids: Sequence[str]) -> Sequence[str]:
        return ids
