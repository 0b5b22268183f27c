"""When a budget's period began and when it begins anew, in UTC by the database's clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span of unix seconds: `start` is in it, `end` is not (infinite for a total)."""

    start: int
    end: float


def window_of(period: str, now_unix_s: float) -> Window:
    """The window of `period` ("day", "month" or "total") that holds `now_unix_s`."""
    if period == "total":
        return Window(0, math.inf)
    if period == "day":
        start = int(now_unix_s // SECONDS_PER_DAY) * SECONDS_PER_DAY
        return Window(start, start + SECONDS_PER_DAY)
    if period == "month":
        now = datetime.fromtimestamp(now_unix_s, UTC)
        first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        december = first.month == 12
        following = first.replace(
            year=first.year + december, month=1 if december else first.month + 1
        )
        return Window(int(first.timestamp()), following.timestamp())
    raise ValueError(f"budget period {period!r} is unknown; use day, month or total")


def day_of(unix_s: float) -> str:
    """The UTC day of an instant, YYYY-MM-DD."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")


def rfc3339(unix_s: float) -> str | None:
    """The instant as people read it; None when it never comes."""
    if math.isinf(unix_s):
        return None
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
