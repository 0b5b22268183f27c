"""Reading what forms send: numbers, lists and instants, each refused with the field's name."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from gateway.errors import InvalidRequest
from gateway.policy.units import parse_duration
from gateway.retention import FOREVER, FOREVER_WORD

NUMBER_DIGITS_MAX = 15
WORDS_MAX = 1_000


def whole_number(fields: Mapping[str, str], name: str) -> int | None:
    """A whole number; None for an empty field."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > NUMBER_DIGITS_MAX:
        raise InvalidRequest(
            f"{name}: {text[:40]!r} is no whole number; leave it empty for no limit", param=name
        )
    return int(text)


def age_days(fields: Mapping[str, str], name: str) -> int | None:
    """Days that something is kept, 0 for `forever`; None for an empty field: the default."""
    text = fields.get(name, "").strip().lower()
    if text == FOREVER_WORD:
        return FOREVER
    days = whole_number({name: text}, name)
    if days == FOREVER:
        raise InvalidRequest(f"{name}: write {FOREVER_WORD} to keep it for ever", param=name)
    return days


def words(fields: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Words with commas, spaces or lines between, each once."""
    found = fields.get(name, "").replace(",", " ").split()
    return tuple(dict.fromkeys(found[:WORDS_MAX]))


def last_day(fields: Mapping[str, str], name: str) -> float | None:
    """The end (UTC) of a day YYYY-MM-DD in unix seconds; None for an empty field."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    try:
        day = datetime.date.fromisoformat(text)
        following = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
        return following.timestamp() + 86_400.0
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{name}: {text[:40]!r} is no day; write one such as 2027-01-31", param=name
        ) from None


def duration_s(fields: Mapping[str, str], name: str) -> float:
    """Seconds of a duration such as 30m; 0 for an empty field."""
    try:
        return parse_duration(fields.get(name, "").strip() or "0s")
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from None


def is_checked(fields: Mapping[str, str], name: str) -> bool:
    """Whether a box is ticked."""
    return fields.get(name, "") != ""


def moment(at: float | None) -> str:
    """Unix seconds as people read them, UTC; a dash for none."""
    if at is None:
        return "–"
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def day(at: float | None) -> str:
    """The day, as a date field takes it; empty for none. The end of a day is that day's."""
    if at is None:
        return ""
    return datetime.datetime.fromtimestamp(at - 1.0, datetime.UTC).strftime("%Y-%m-%d")
