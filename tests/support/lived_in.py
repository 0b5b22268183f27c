"""A demo gateway that has been in use: two teams, their keys and budgets, a month of spend.

Days that are past cannot be lived through, so what they left is written beforehand: keys and
budgets by the services that commands and pages use, at the time they would have been made, and the
sums by minute, hour and day by the roll-ups' own writer. No requests and attempts of those days are
made: the log holds what really ran, and `looprouter ledger verify` would miss the entries.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from gateway.cli.support import open_current_store
from gateway.core import NANOS_PER_DOLLAR
from gateway.keys import service
from gateway.keys.tenants import ensure_tenant, scope_of
from gateway.keys.wanted import Budget, NewKey
from gateway.ledger.windows import SECONDS_PER_DAY, window_of
from gateway.settings import Settings
from gateway.simulator.demo import DEMO_MODEL, demo_profiles
from gateway.store.engine import Store
from gateway.store.ledger_tables import budget_windows
from gateway.store.rollups import Sums, request_sums, spend_sums
from gateway.store.tenancy import BudgetRow

DAYS = 29  # before today
LIVE_S = 3_600.0  # the last hour is left to what really runs
SEED = 11
MODEL = "chat"  # as clients name it
HOUR_S = 3_600
PICOS_PER_NANO = 1_000
FAILED_SHARE = 0.15  # of what is sent to the flaky endpoint, as its profile says
FAST, CHEAP, FLAKY = (f"{each.name}/{DEMO_MODEL}" for each in demo_profiles())
PRICES = {f"{each.name}/{DEMO_MODEL}": each.price for each in demo_profiles()}
TTFT_MS = {FAST: 210.0, CHEAP: 910.0, FLAKY: 330.0}


@dataclass(frozen=True, slots=True)
class Caller:
    """One application with a key of its own. Tokens are means of a request."""

    name: str
    team: str
    per_day: float  # requests of a working day
    prompt_tokens: int
    answer_tokens: int
    shares: dict[str, float]  # of its requests, by endpoint
    lane: str = "interactive"
    stream: bool = True
    tags: str = ""
    hours: tuple[int, int] = (0, 24)  # of the day in which it calls, UTC
    at_once: int = 1
    pause_s: float = 2.0  # mean, between two requests
    model: str = MODEL  # or an endpoint's id, where nothing is to be chosen
    budgets: tuple[tuple[str, float], ...] = ()  # period, dollars
    requests_per_minute: int | None = None


TEAMS = {"Web": 120.0, "Back office": 30.0}  # dollars a month
TENANT_USD = 200.0  # a month
CALLERS = (
    Caller(
        "website chat", "Web", 300, 1_100, 260, {FAST: 0.72, FLAKY: 0.2, CHEAP: 0.08},
        tags="website,help", at_once=3, pause_s=0.8,
        budgets=(("month", 80.0), ("total", 150.0)),
    ),
    Caller(
        "mobile app", "Web", 220, 420, 140, {FAST: 0.66, FLAKY: 0.24, CHEAP: 0.1},
        tags="ios", at_once=2, pause_s=1.0, budgets=(("day", 1.5),),
    ),
    Caller(
        "nightly reports", "Back office", 640, 3_000, 700, {CHEAP: 1.0},
        lane="batch", stream=False, tags="nightly,reports", hours=(1, 5), at_once=2, pause_s=3.0,
        budgets=(("month", 14.0),),
    ),
    Caller(
        "internal tools", "Back office", 90, 900, 320, {FLAKY: 0.6, CHEAP: 0.25, FAST: 0.15},
        stream=False, tags="search", hours=(7, 18), pause_s=1.5,
        budgets=(("total", 25.0),),
    ),
    Caller(
        "translations", "Web", 120, 350, 110, {CHEAP: 1.0}, tags="docs", at_once=2, pause_s=1.0,
        model=CHEAP,
    ),
    Caller(
        "model trials", "Back office", 40, 600, 120, {FLAKY: 1.0}, tags="trial", hours=(8, 19),
        pause_s=3.5, model=FLAKY, requests_per_minute=8,
    ),
)  # fmt: skip


@dataclass(slots=True)
class Owned:
    """Keys by their caller's name, and what they were billed before anything ran."""

    tenant_id: str
    keys: dict[str, service.IssuedKey] = field(default_factory=dict)
    billed: list[tuple[float, str, str, int]] = field(default_factory=list)  # at, team, key, nanos


async def furnish(home: Path) -> Owned:
    """Make the store of a gateway that is not running yet, as a month of use would leave it."""
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(home)})
    now = time.time()
    began = now // SECONDS_PER_DAY * SECONDS_PER_DAY - DAYS * SECONDS_PER_DAY
    async with open_current_store(settings) as store:
        owned = await _owners(store, settings.pepper(), began)
        await _history(store, owned, began, now - LIVE_S)
    return owned


async def _owners(store: Store, pepper: bytes, began: float) -> Owned:
    tenant_id = await ensure_tenant(store, "default", "default", now=began)
    owned = Owned(tenant_id)
    for team in TEAMS:
        await ensure_tenant(store, "default", team, now=began)
    for number, caller in enumerate(CALLERS):
        wanted = NewKey(
            name=caller.name,
            team=caller.team,
            requests_per_minute=caller.requests_per_minute,
            budgets=tuple(
                Budget(period=period, limit_nanos=_nanos(usd)) for period, usd in caller.budgets
            ),
        )
        at = began + 60.0 * number
        owned.keys[caller.name] = await service.create_key(store, pepper, tenant_id, wanted, now=at)
    old = NewKey(name="prototype", team="Web")
    left = await service.create_key(store, pepper, tenant_id, old, now=began)
    gone = began + 12 * SECONDS_PER_DAY
    await service.revoke_key(store, tenant_id, left.row.id, now=gone)
    for name, usd in ((None, TENANT_USD), *TEAMS.items()):
        kind, scope_id = await scope_of(store, tenant_id, key=None, team=name)
        budget = Budget(period="month", limit_nanos=_nanos(usd))
        await service.set_budget(
            store, tenant_id, budget, scope_kind=kind, scope_id=scope_id, now=began
        )
    return owned


def _nanos(usd: float) -> int:
    return round(usd * NANOS_PER_DOLLAR)


async def _history(store: Store, owned: Owned, began: float, until: float) -> None:
    rng = random.Random(SEED)
    spend, counted = spend_sums(), request_sums()
    for caller in CALLERS:
        for at, volume in _hours(caller, began, until):
            for endpoint, share in caller.shares.items():
                num = round(volume * share * rng.lognormvariate(0.0, 0.35))
                if num:
                    _add(spend, counted, owned, (caller, endpoint, at, num, rng))
    budgets = await service.list_budgets(store, owned.tenant_id)
    async with store.begin() as connection:
        rows = [_window(each, owned, until) for each in budgets]
        await connection.execute(sa.insert(budget_windows), rows)
        await spend.write(connection)
        await counted.write(connection)


def _hours(caller: Caller, began: float, until: float) -> Iterator[tuple[float, float]]:
    """Hours in which it called, with how many requests are to be expected in each."""
    first, last = caller.hours
    for hour in range(int((until - began) // HOUR_S)):
        at = began + hour * HOUR_S
        day, of_day = divmod(hour, 24)
        if not first <= of_day < last:
            continue
        is_weekend = time.gmtime(at).tm_wday >= 5
        # More of it from week to week, least of it in the small hours and at the weekend.
        growth = 0.7 + 0.5 * day / DAYS
        shape = 1.0 if last - first < 24 else 1.0 - 0.75 * math.cos((of_day - 3) / 24 * math.tau)
        yield at, caller.per_day / (last - first) * growth * shape * (0.45 if is_weekend else 1.0)


def _add(
    spend: Sums, counted: Sums, owned: Owned, of: tuple[Caller, str, float, int, random.Random]
) -> None:
    """Requests of one hour to one endpoint, as the ledger and the log would have counted them."""
    caller, endpoint, at, num, rng = of
    key, price = owned.keys[caller.name].row, PRICES[endpoint]
    prompt = round(num * caller.prompt_tokens * rng.lognormvariate(0.0, 0.2))
    answer = round(num * caller.answer_tokens * rng.lognormvariate(0.0, 0.2))
    nanos = (prompt * price.input + answer * price.output) // PICOS_PER_NANO
    names = (owned.tenant_id, key.team_id, key.id, endpoint, MODEL, caller.lane)
    tokens = (prompt, 0, 0, 0, answer, 0, 0, 0, 0)
    spend.add(at, (*names, False), (num, 0, 0, nanos, nanos, 0, 0, *tokens))
    owned.billed.append((at, key.team_id, key.id, nanos))
    if endpoint == FLAKY and (failed := round(num * FAILED_SHARE)):
        spend.add(at, (*names, True), (failed, 0, 0, *(0,) * 4, *(0,) * 9))
    ttft_us = round(num * TTFT_MS[endpoint] * 1_000) if caller.stream else 0
    streams = num if caller.stream else 0
    counts = (num, 0, rng.random() < 0.05, streams, ttft_us, ttft_us + num * 2_000_000)
    counted.add(at, (owned.tenant_id, endpoint, MODEL, caller.lane), [int(each) for each in counts])


def _window(budget: BudgetRow, owned: Owned, now: float) -> dict[str, object]:
    """What a budget's present window had spent: of the key, the team or all of the tenant."""
    start = window_of(budget.period, now).start
    spent = sum(
        nanos
        for at, team_id, key_id, nanos in owned.billed
        if at >= start and budget.scope_id in (owned.tenant_id, team_id, key_id)
    )
    assert spent < budget.limit_nanos, f"{budget} has spent {spent} of its nano-dollars"
    return {
        "budget_id": budget.id,
        "window_start": start,
        "spent_nanos": spent,
        "limit_seen_nanos": budget.limit_nanos,
    }
