"""What all baselines share: a roster, in-flight counts, and a rule with a health check around it.

A rule only ranks and learns. Everything that a product does about failing endpoints (cooldown,
breaker, outage) is its health check; the world's attempt machine then tries the ranked endpoints in
order, so failover costs every router the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gateway.core import AttemptOutcome
from gateway.simulator.routing.router import Ask, Listing

# OpenAI's client waits so long by default; it is what ends a hanging call where the product sets
# no limit of its own per attempt.
CLIENT_TIMEOUT_S = 600.0


class Roster:
    """The endpoints of now, as listed, and how many attempts are under way at each."""

    def __init__(self, listings: Iterable[Listing]) -> None:
        self.listings: dict[str, Listing] = {}
        self.in_flight: dict[str, int] = {}
        self.replace(listings)

    def replace(self, listings: Iterable[Listing]) -> None:
        self.listings = {listing.endpoint_id: listing for listing in listings}

    @property
    def ids(self) -> list[str]:
        return list(self.listings)


class Rule(Protocol):
    """How a product chooses."""

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        """Endpoint ids out of `up`, best first. May leave some out: those are not tried."""
        ...

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        """An attempt is over."""
        ...


class Health(Protocol):
    """Whom a product leaves out for a while."""

    def is_up(self, endpoint_id: str, now_s: float) -> bool: ...
    def saw(self, outcome: AttemptOutcome, now_s: float) -> None: ...
    def when_none_is_up(self, ids: Sequence[str]) -> Sequence[str]:
        """Whom to rank then; nobody, where the product refuses the request."""
        ...


class AlwaysUp:
    """No health check at all."""

    def is_up(self, endpoint_id: str, now_s: float) -> bool:
        return True

    def saw(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass

    def when_none_is_up(self, ids: Sequence[str]) -> Sequence[str]:
        return ids


class RuledRouter:
    """A `Router` made of a rule and a health check."""

    def __init__(
        self,
        name: str,
        roster: Roster,
        rule: Rule,
        health: Health | None = None,
        *,
        timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s  # for a first token; a bench may set it, to compare at par
        self.rule = rule
        self._roster = roster
        self._health: Health = health or AlwaysUp()
        self._is_last_resort = False
        self.explored = False  # what these products explore is part of their rule, not marked

    def order(self, ask: Ask, now_s: float) -> Sequence[str]:
        ids = self._roster.ids
        up: Sequence[str] = [each for each in ids if self._health.is_up(each, now_s)]
        if not up:
            up = self._health.when_none_is_up(ids)
        return self.rule.rank(ask, up, now_s) if up else ()

    def may_send(self, endpoint_id: str, now_s: float) -> bool:
        """False for one that went down since the ranking, unless all are and are tried anyway."""
        if self._health.is_up(endpoint_id, now_s):
            return True
        ids = self._roster.ids
        is_any_up = any(self._health.is_up(each, now_s) for each in ids)
        return not is_any_up and endpoint_id in self._health.when_none_is_up(ids)

    def started(self, endpoint_id: str, now_s: float) -> int:
        in_flight = self._roster.in_flight
        in_flight[endpoint_id] = in_flight.get(endpoint_id, 0) + 1
        return in_flight[endpoint_id]

    def first_token(self, endpoint_id: str, now_s: float) -> None:
        pass  # none of these products looks at a stream before its end

    def ended(self, outcome: AttemptOutcome, now_s: float) -> None:
        in_flight = self._roster.in_flight
        in_flight[outcome.endpoint_id] = max(0, in_flight.get(outcome.endpoint_id, 0) - 1)
        self._health.saw(outcome, now_s)
        self.rule.learn(outcome, now_s)

    def listed(self, listings: tuple[Listing, ...], now_s: float) -> None:
        self._roster.replace(listings)

    def first_token_timeout_s(self, endpoint_id: str, ask: Ask) -> float:
        return self.timeout_s
