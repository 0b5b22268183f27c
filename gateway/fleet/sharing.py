"""What replicas of the gateway tell each other: ended attempts and how many are in flight.

A replica learns from another's attempt exactly as from its own: the outcome itself is passed on,
so there is one way of learning only. In-flight counts of others are added to one's own while they
are fresh. Nothing waits for news, and who hears none goes on alone (reliability B.4).
"""

from __future__ import annotations

from msgspec import Struct, structs

from gateway.core import AttemptOutcome, Rng

SHARE_EVERY_S = 1.0  # ± 20 %
SAMPLES_MAX = 16  # of one endpoint in one message; more are thinned out evenly
STAMPS_MAX = 32  # the first of one outcome: with its last, enough to see a burst
ENDPOINTS_MAX = 512  # in one message
IN_FLIGHT_FRESH_S = 10.0  # older counts of others are forgotten
OUTCOME_AGE_MAX_S = 120.0  # older news teaches nothing


class EndpointNews(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One endpoint, as one replica has seen it since its last message."""

    in_flight: int = 0
    outcomes: tuple[AttemptOutcome, ...] = ()  # times are seconds before the message


class FleetNews(Struct, frozen=True, kw_only=True):
    """One message of one replica. `endpoints` by state key."""

    replica: str
    at_unix_s: float
    endpoints: dict[str, EndpointNews]


class Outbox:
    """Outcomes of one endpoint since the last message; at most 16, each as likely to be kept."""

    __slots__ = ("_kept", "_num_seen")

    def __init__(self) -> None:
        self._kept: list[AttemptOutcome] = []
        self._num_seen = 0

    def add(self, outcome: AttemptOutcome, rng: Rng) -> None:
        """Reservoir sampling (Vitter 1985, algorithm R)."""
        self._num_seen += 1
        if len(self._kept) < SAMPLES_MAX:
            self._kept.append(outcome)
            return
        place = int(rng.random() * self._num_seen)
        if place < SAMPLES_MAX:
            self._kept[place] = outcome

    def take(self, now_s: float) -> tuple[AttemptOutcome, ...]:
        """All that is kept, with stamps relative to `now_s`, and without whose request it was."""
        taken = tuple(_moved(outcome, -now_s) for outcome in self._kept)
        self._kept = []
        self._num_seen = 0
        return taken


class Elsewhere:
    """In-flight counts of the other replicas for one endpoint."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}
        self.total = 0

    def hear(self, replica: str, in_flight: int, now_s: float) -> None:
        self._counts[replica] = (in_flight, now_s)
        self.forget(now_s)

    @property
    def num_replicas(self) -> int:
        """Others that were heard of lately."""
        return len(self._counts)

    def forget(self, now_s: float) -> None:
        """Drop what nobody has confirmed lately."""
        stale = [who for who, (_, at_s) in self._counts.items() if now_s - at_s > IN_FLIGHT_FRESH_S]
        for who in stale:
            del self._counts[who]
        self.total = sum(count for count, _ in self._counts.values())


def as_own(outcome: AttemptOutcome, now_s: float, age_s: float) -> AttemptOutcome:
    """An outcome from a message, with stamps of this process's clock."""
    return _moved(outcome, now_s - age_s)


def _moved(outcome: AttemptOutcome, by_s: float) -> AttemptOutcome:
    def at(stamp_s: float | None) -> float | None:
        return None if stamp_s is None else stamp_s + by_s

    return structs.replace(
        outcome,
        attempt_id="",
        request_id="",
        tenant_id="",
        affinity_key="",
        session_key="",
        dispatched_at_s=outcome.dispatched_at_s + by_s,
        headers_at_s=at(outcome.headers_at_s),
        first_byte_at_s=at(outcome.first_byte_at_s),
        first_generated_at_s=at(outcome.first_generated_at_s),
        first_visible_at_s=at(outcome.first_visible_at_s),
        last_generated_at_s=at(outcome.last_generated_at_s),
        ended_at_s=at(outcome.ended_at_s),
        frame_stamps_s=[stamp_s + by_s for stamp_s in outcome.frame_stamps_s[:STAMPS_MAX]],
    )
