"""How long rows are kept, in days: what has an age of its own, its bounds, and how it is written.

Three say so, the later before the earlier: the defaults here, LOOPROUTER_RETENTION, an owner on
the dashboard. What belongs to the bill has no age and is not named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FOREVER: Final = 0
FOREVER_WORD: Final = "forever"
DAYS_MAX: Final = 3_650


@dataclass(frozen=True, slots=True)
class Age:
    """Whole days; FOREVER = 0 where `may_stay`."""

    default: int
    least: int
    most: int = DAYS_MAX
    may_stay: bool = False


# In the order that they are shown in.
AGES: Final[Mapping[str, Age]] = {
    # The log: a policy is tried on the last day of it.
    "requests": Age(default=7, least=1, may_stay=True),
    # The fleet as it was, which a decision is explained and repeated with; 64 MiB at most each.
    "decisions": Age(default=7, least=1, most=366),
    # Attempts that nobody paid for. A provider's bill for one may come a month late.
    "attempts": Age(default=FOREVER, least=90, may_stay=True),
    "minutes": Age(default=1, least=1, most=31),
    "hours": Age(default=100, least=4),  # spend of three days is priced by the hour
    # Long enough that whoever shortens it cannot hide what they did last week.
    "audit": Age(default=FOREVER, least=30, may_stay=True),
}


def checked_days(name: str, days: int) -> int:
    """ValueError says what may be given instead."""
    age = AGES.get(name)
    if age is None:
        raise ValueError(f"{name[:40]!r} has no age of its own; use {', '.join(AGES)}")
    if days == FOREVER and age.may_stay:
        return days
    if not age.least <= days <= age.most:
        forever = f", or {FOREVER_WORD}" if age.may_stay else ""
        raise ValueError(f"{name} can be kept {age.least} to {age.most} days{forever}; not {days}")
    return days


def parse_retention(text: str) -> dict[str, int]:
    """`requests=14d,audit=forever` as days by name. ValueError names what is wrong with it."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        number = value.removesuffix("d")
        if value != FOREVER_WORD and not (number.isascii() and number.isdigit()):
            raise ValueError(f"{item[:60]!r} is not NAME=DAYS; an example: requests=14d")
        if name in found:
            raise ValueError(f"{name[:40]!r} is there twice")
        days = FOREVER if value == FOREVER_WORD else int(number[:9])
        if value != FOREVER_WORD and days == FOREVER:
            raise ValueError(f"{item[:60]!r}: write {name}={FOREVER_WORD} to keep it for ever")
        found[name] = checked_days(name, days)
    return found
