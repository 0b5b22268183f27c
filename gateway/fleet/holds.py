"""Endpoints that an operator holds back: what is in force in this process, and since when."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.core import FleetView
from gateway.fleet.fleet import Fleet
from gateway.store.holds import HoldRow


class Holds:
    """Follows the store. `obey` after each change of it, and after each change of the policy."""

    def __init__(self) -> None:
        self.rows: Mapping[str, HoldRow] = {}  # by endpoint id; also of those no policy has now

    def obey(self, fleet: Fleet, rows: Mapping[str, HoldRow] | None = None) -> None:
        """From the next decision on nothing new goes to those in `rows`; None: as before."""
        if rows is not None:
            self.rows = rows
        for live in fleet.by_key.values():
            held = self.rows.get(live.endpoint.id)
            live.hold(held.mode if held is not None else "")


def as_if_not_held(view: FleetView) -> FleetView:
    """What a probe is decided by: it may be sent to whatever is held."""
    live = {
        endpoint_id: msgspec.structs.replace(each, held="", capacity=each.in_flight + 1.0)
        if each.held
        else each
        for endpoint_id, each in view.live.items()
    }
    return msgspec.structs.replace(view, live=live)
