"""Audit events: what an operator may ask about later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker's move or a change of speed."""

    at_unix_s: float
    endpoint_id: str
    kind: str  # "breaker_opened" | "breaker_closed" | "change_point"
    what: str = ""  # change points: "ttft" | "ttft_hidden" | "rate"
    direction: int = 0  # change points: +1 rose, −1 fell
    message: str = ""


def change_points(
    endpoint_id: str, alarms: Iterable[tuple[str, int]], wall_s: float
) -> Iterator[FleetEvent]:
    for what, direction in alarms:
        verb = "rose" if direction > 0 else "fell"
        yield FleetEvent(
            at_unix_s=wall_s,
            endpoint_id=endpoint_id,
            kind="change_point",
            what=what,
            direction=direction,
            message=f"{endpoint_id}: {what} {verb} for good; its belief is widened",
        )


def breaker_moved(endpoint_id: str, news: str, failure: str, wall_s: float) -> FleetEvent:
    """`news` is "opened" or "closed"."""
    why = f" after {failure}" if failure else ""
    return FleetEvent(
        at_unix_s=wall_s,
        endpoint_id=endpoint_id,
        kind=f"breaker_{news}",
        message=f"{endpoint_id}: breaker {news}{why}",
    )
