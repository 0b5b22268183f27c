"""What is known of the other serving processes: messages told, heard and dropped, and how old."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

FRESH_S = 10.0  # a replica silent for longer is not counted any more
REPLICAS_MAX = 1_024  # kept by name


class ReplicaMeter:
    """Counts for /metrics and the status page. `clock` is monotonic seconds, as the carrier's."""

    def __init__(
        self, name: str, registry: CollectorRegistry, *, clock: Callable[[], float]
    ) -> None:
        self.name = name  # of this process among the others
        self.is_telling = False  # the last message was taken by Redis
        self.is_hearing = False  # messages come, if only one's own
        self.num_sent = 0
        self.num_heard = 0
        self.num_dropped: dict[str, int] = {}  # by reason
        self._clock = clock
        self._last_heard_s: float | None = None
        self._heard_at_s: dict[str, float] = {}  # by replica
        self._sent = Counter(
            "gateway_replica_messages_sent",
            "News of this process that Redis took for the other replicas.",
            registry=registry,
        )
        self._sent_bytes = Counter(
            "gateway_replica_sent_bytes", "Bytes of those messages.", registry=registry
        )
        self._heard = Counter(
            "gateway_replica_messages_heard",
            "News of other replicas that were learned from.",
            registry=registry,
        )
        self._dropped = Counter(
            "gateway_replica_messages_dropped",
            "News not sent (lost, too_large) or not learned from (foreign, malformed, old …).",
            ("reason",),
            registry=registry,
        )
        others = Gauge(
            "gateway_replicas_heard", "Other replicas heard of lately (10 s).", registry=registry
        )
        others.set_function(lambda: len(self.others()))
        age = Gauge(
            "gateway_replica_heard_age_seconds",
            "Since another replica was last heard of; NaN = never.",
            registry=registry,
        )
        age.set_function(lambda: nan if self.age_s is None else self.age_s)

    def sent(self, num_bytes: int) -> None:
        self.num_sent += 1
        self._sent.inc()
        self._sent_bytes.inc(num_bytes)

    def heard(self, replica: str) -> None:
        now_s = self._clock()
        self.num_heard += 1
        self._heard.inc()
        self._last_heard_s = now_s
        if replica not in self._heard_at_s and len(self._heard_at_s) >= REPLICAS_MAX:
            self._heard_at_s = self._fresh(now_s)  # names of processes long gone
        if replica in self._heard_at_s or len(self._heard_at_s) < REPLICAS_MAX:
            self._heard_at_s[replica] = now_s

    def dropped(self, reason: str) -> None:
        self.num_dropped[reason] = self.num_dropped.get(reason, 0) + 1
        self._dropped.labels(reason).inc()

    @property
    def age_s(self) -> float | None:
        """Seconds since any other was heard; None = never."""
        return None if self._last_heard_s is None else self._clock() - self._last_heard_s

    def others(self) -> dict[str, float]:
        """Name → seconds since it was heard, of those heard lately."""
        now_s = self._clock()
        return {who: now_s - at_s for who, at_s in self._fresh(now_s).items()}

    def _fresh(self, now_s: float) -> dict[str, float]:
        return {who: at_s for who, at_s in self._heard_at_s.items() if now_s - at_s <= FRESH_S}

    def summary(self) -> dict[str, Any]:
        """What `status.json` shows."""
        others = self.others()
        return {
            "name": self.name,
            "is_telling": self.is_telling,
            "is_hearing": self.is_hearing,
            "heard_of": len(others),
            "last_heard_s": self.age_s,
            "others": [{"name": who, "age_s": age_s} for who, age_s in sorted(others.items())],
            "messages": {
                "sent": self.num_sent,
                "heard": self.num_heard,
                "dropped": dict(self.num_dropped),
            },
        }
