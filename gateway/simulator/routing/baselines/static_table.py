"""A fixed order by the listed speed. Source: what a hand-written fallback list is.

The order is by time to first token plus a usual answer at the listed rate, so the table is right
about the first minute of a calm world. Health as nginx's `backup` servers have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core import AttemptOutcome
from gateway.simulator.routing.baselines.listed_prices import OUTPUT_TOKENS_EXPECTED
from gateway.simulator.routing.baselines.nginx_health import READ_TIMEOUT_S, NginxHealth
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Ask, Listing, Setting


def listed_time_s(listing: Listing) -> float:
    """Seconds for a usual answer, if the listing is believed."""
    return listing.ttft_s + OUTPUT_TOKENS_EXPECTED / listing.tokens_per_s


class StaticTable:
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def rank(self, ask: Ask, up: Sequence[str], now_s: float) -> Sequence[str]:
        return sorted(up, key=lambda each: listed_time_s(self._roster.listings[each]))

    def learn(self, outcome: AttemptOutcome, now_s: float) -> None:
        pass


def static_table(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    rule = StaticTable(roster)
    return RuledRouter("static_table", roster, rule, NginxHealth(), timeout_s=READ_TIMEOUT_S)
