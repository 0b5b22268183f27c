"""What a key and a budget may be asked to be, and the checks of it."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

import msgspec

from gateway.core import BUDGET_PERIODS, NANOS_PER_DOLLAR
from gateway.errors import InvalidRequest
from gateway.wire.pieces import Surface

DEFAULT_NAME = "default"
OVERLAP_S_MAX = 86_400.0
NAME_CHARS_MAX = 100
MODELS_MAX = 256
LIMIT_MAX = 10**12
EXPIRES_BEFORE_S = 253_402_300_800  # the year 10000: no later instant can be written as a date
BUDGET_NANOS_MAX = 10**9 * NANOS_PER_DOLLAR


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """So much money in each period. `day` and `month` begin at midnight UTC."""

    limit_nanos: int
    period: str = "total"  # "day" | "month" | "total"


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a key is to be. Empty lists and None mean: no such restriction."""

    name: str = ""
    team: str = DEFAULT_NAME  # id or name; must exist
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()  # surfaces: chat, messages, …
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency_max: int | None = None
    no_explore: bool = False
    expires_at: float | None = None  # unix seconds
    budgets: tuple[Budget, ...] = ()


def nanos_of_dollars(text: str) -> int:
    """Dollars as a decimal string → nano-dollars. InvalidRequest names what is wrong."""
    try:
        dollars = Decimal(text)
    except InvalidOperation:
        dollars = Decimal("NaN")
    nanos = dollars * NANOS_PER_DOLLAR if dollars.is_finite() else Decimal(-1)
    if nanos != nanos.to_integral_value() or not 0 <= nanos <= BUDGET_NANOS_MAX:
        raise InvalidRequest(
            f"{text[:40]!r} is no amount of dollars; write one such as 5 or 0.25, with at most "
            "nine decimals"
        )
    return int(nanos)


def check_key(wanted: NewKey, now: float) -> None:
    """Raise InvalidRequest when no such key can be made."""
    if wanted.name:
        check_name("key", wanted.name)
    if len(wanted.models) > MODELS_MAX or not all(wanted.models):
        raise InvalidRequest(f"models: give at most {MODELS_MAX} names, none empty", param="models")
    known = {surface.value for surface in Surface}
    strange = [route for route in wanted.routes if route not in known]
    if strange:
        raise InvalidRequest(
            f"routes: {strange[0]!r} is unknown; use {', '.join(sorted(known))}", param="routes"
        )
    for name in ("requests_per_minute", "tokens_per_minute", "concurrency_max"):
        limit = getattr(wanted, name)
        if limit is not None and not 1 <= limit <= LIMIT_MAX:
            raise InvalidRequest(
                f"{name} is {limit}; give 1 or more, or leave it out for no limit", param=name
            )
    expires_at = wanted.expires_at
    if expires_at is not None and not (math.isfinite(expires_at) and expires_at > now):
        raise InvalidRequest("the expiry lies in the past", param="expires_at")
    if expires_at is not None and expires_at >= EXPIRES_BEFORE_S:
        raise InvalidRequest(
            "the expiry lies beyond the year 9999; leave it out for a key that stays",
            param="expires_at",
        )
    periods = [budget.period for budget in wanted.budgets]
    if len(set(periods)) != len(periods):
        raise InvalidRequest("a key has one budget a period", param="budgets")
    for budget in wanted.budgets:
        check_budget(budget)


def check_budget(budget: Budget) -> None:
    if budget.period not in BUDGET_PERIODS:
        raise InvalidRequest(
            f"{budget.period!r} is no period; use {', '.join(BUDGET_PERIODS)}",
            param="budget_period",
        )
    if not 0 <= budget.limit_nanos <= BUDGET_NANOS_MAX:
        raise InvalidRequest(
            f"a budget lies between 0 and {BUDGET_NANOS_MAX // NANOS_PER_DOLLAR} dollars",
            param="budget",
        )


def check_name(what: str, name: str) -> None:
    if not name.strip() or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise InvalidRequest(
            f"a {what} name has 1 to {NAME_CHARS_MAX} printable characters", param="name"
        )
