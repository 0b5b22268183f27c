"""How several replicas of the gateway learn from each other; the messages are in `sharing`."""

from __future__ import annotations

from gateway.fleet.fleet import Fleet
from gateway.fleet.sharing import ENDPOINTS_MAX, OUTCOME_AGE_MAX_S, FleetNews, Outbox


class Replica:
    """One fleet among others. Who carries the messages, and how late, is not known here."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        """`name` is this process's own; outcomes are kept for the others from now on."""
        self._fleet = fleet
        self._name = fleet.replica = name
        for live in fleet.by_key.values():
            live.outbox = live.outbox or Outbox()

    def news(self) -> FleetNews:
        """What happened here since the last call."""
        now_s = self._fleet.clock()
        told = list(self._fleet.by_key.items())[:ENDPOINTS_MAX]
        return FleetNews(
            replica=self._name,
            at_unix_s=self._fleet.wall_clock(),
            endpoints={key: live.news(now_s) for key, live in told},
        )

    def hear(self, news: FleetNews) -> bool:
        """Learn from another; False: it is one's own message, or too old to teach anything."""
        fleet = self._fleet
        age_s = max(0.0, fleet.wall_clock() - news.at_unix_s)
        if news.replica == self._name or age_s > OUTCOME_AGE_MAX_S:
            return False
        now_s = fleet.clock()
        for key, told in news.endpoints.items():
            live = fleet.by_key.get(key)
            if live is None:
                continue
            for sample, outcome in live.hear(news.replica, told, now_s, age_s):
                fleet.learn_length(sample, outcome, live, now_s)
        return True
