"""What a key spent day by day, and how its budgets burn down: from the roll-ups, to be drawn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.ledger.burn import PACE_AFTER_S, Burn
from gateway.ledger.windows import SECONDS_PER_DAY, day_of
from gateway.store.rollup_tables import GRAINS_S, spend_rollups

DAYS_SHOWN = 30
DAYS_BACK_MAX = 92  # of a budget in total, whose window began long ago
AHEAD_SHARE = 0.25  # of what is drawn, where nothing says how far ahead to look
WIDTH, HEIGHT = 600.0, 100.0  # of the box that lines are drawn in

Buckets = Sequence[tuple[int, int]]  # first second and nano-dollars billed, in order of time


class BurnCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What was left of a budget and what will be. Instants in unix seconds, dollars as decimals."""

    budget_id: str
    begins_at: float
    ends_at: float  # when it resets, or as far ahead as is foreseen
    points: list[tuple[float, str]]  # left at that instant; the last is now
    forecast: tuple[float, str] | None  # where the straight line from now ends; null = no pace yet
    line: str  # `points` and the forecast in a box of WIDTH × HEIGHT, for an SVG
    forecast_line: str
    now_x: float


async def _billed(
    connection: AsyncConnection,
    whose: sa.Column[str],
    conditions: Sequence[sa.ColumnElement[bool]],
    *,
    grain: str,
    since: float,
) -> dict[str, list[tuple[int, int]]]:
    """What each of `whose` was billed by bucket, from the bucket that holds `since` on."""
    c = spend_rollups.c
    first = int(since // GRAINS_S[grain]) * GRAINS_S[grain]
    query = (
        sa.select(whose, c.bucket_start, sa.func.sum(c.billed_nanos))
        .where(c.grain == grain, c.bucket_start >= first, *conditions)
        .group_by(whose, c.bucket_start)
        .order_by(c.bucket_start)
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, nanos in await connection.execute(query):
        found.setdefault(name, []).append((start, int(nanos)))
    return found


async def curves_above(
    connection: AsyncConnection, tenant_id: str, burns: Sequence[Burn], *, now: float
) -> list[BurnCurve]:
    """Curves of budgets of a tenant and its teams, in their order; two statements at most."""
    c = spend_rollups.c
    oldest = _oldest(now)
    starts = {
        "hour": [burn.began_at for burn in burns if burn.budget.period == "day"],
        "day": [burn.began_at for burn in burns if burn.budget.period != "day"],
    }
    billed = {}
    for grain, began in starts.items():
        if began:
            since = max(oldest, min(began))
            billed[grain] = await _billed(
                connection, c.team_id, [c.tenant_id == tenant_id], grain=grain, since=since
            )

    def curve(burn: Burn) -> BurnCurve:
        grain = "hour" if burn.budget.period == "day" else "day"
        teams = billed[grain]
        if burn.budget.scope_kind == "team":
            buckets = teams.get(burn.budget.scope_id, [])
        else:
            sums: Counter[int] = Counter()
            for start, nanos in itertools.chain.from_iterable(teams.values()):
                sums[start] += nanos
            buckets = sorted(sums.items())
        return burn_curve(burn, buckets, GRAINS_S[grain], oldest=oldest, now=now)

    return [curve(burn) for burn in burns]


async def spend_of_key(
    connection: AsyncConnection, tenant_id: str, key_id: str, burns: Sequence[Burn], *, now: float
) -> tuple[list[tuple[str, str]], list[BurnCurve]]:
    """(day, dollars billed) of the last DAYS_SHOWN days without gaps, and a curve a budget."""
    c = spend_rollups.c
    its = [c.tenant_id == tenant_id, c.key_id == key_id]
    oldest = _oldest(now)
    today = int(now // SECONDS_PER_DAY) * SECONDS_PER_DAY
    first = today - (DAYS_SHOWN - 1) * SECONDS_PER_DAY
    since = max(oldest, min([float(first), *(burn.began_at for burn in burns)]))
    days = await _billed(connection, c.key_id, its, grain="day", since=since)
    hours: dict[str, list[tuple[int, int]]] = {}
    if any(burn.budget.period == "day" for burn in burns):
        hours = await _billed(connection, c.key_id, its, grain="hour", since=today)
    by_day, by_hour = days.get(key_id, []), hours.get(key_id, [])
    billed = dict(by_day)
    curves = [
        burn_curve(burn, by_hour, GRAINS_S["hour"], oldest=oldest, now=now)
        if burn.budget.period == "day"
        else burn_curve(burn, by_day, GRAINS_S["day"], oldest=oldest, now=now)
        for burn in burns
    ]
    shown = [first + i * SECONDS_PER_DAY for i in range(DAYS_SHOWN)]
    return [(day_of(day), dollars(billed.get(day, 0))) for day in shown], curves


def _oldest(now: float) -> float:
    return now // SECONDS_PER_DAY * SECONDS_PER_DAY - DAYS_BACK_MAX * SECONDS_PER_DAY


def burn_curve(
    burn: Burn, buckets: Buckets, bucket_s: int, *, oldest: float, now: float
) -> BurnCurve:
    """Reckoned back from what is left now, so that it ends where the table says."""
    begins_at = min(max(burn.began_at, oldest), now)
    points = [(now, burn.left_nanos)]
    spent_since = 0
    for start, nanos in reversed(buckets):
        # What was billed in the bucket that the window began in may be from before it.
        if start + bucket_s <= begins_at:
            break
        spent_since += nanos
        left = burn.budget.limit_nanos - max(0, burn.spent_nanos - spent_since)
        points.append((max(float(start), begins_at), left))
    if points[-1][0] > begins_at:
        points.append((begins_at, points[-1][1] if len(points) > 1 else burn.left_nanos))
    points.reverse()
    ends_at = _end(burn, begins_at, now)
    ahead = _forecast(burn, ends_at, now)
    span_s = max(ends_at - begins_at, 1.0)

    def at(place: tuple[float, int]) -> str:
        x = (place[0] - begins_at) / span_s * WIDTH
        share = place[1] / burn.budget.limit_nanos if burn.budget.limit_nanos else 0.0
        return f"{x:.1f},{(1.0 - min(max(share, 0.0), 1.0)) * HEIGHT:.1f}"

    return BurnCurve(
        budget_id=burn.budget.id,
        begins_at=begins_at,
        ends_at=ends_at,
        points=[(instant, dollars(left)) for instant, left in points],
        forecast=(ahead[0], dollars(ahead[1])) if ahead is not None else None,
        line=" ".join(at(point) for point in points),
        forecast_line=f"{at(points[-1])} {at(ahead)}" if ahead is not None else "",
        now_x=(now - begins_at) / span_s * WIDTH,
    )


def _end(burn: Burn, begins_at: float, now: float) -> float:
    if burn.resets_at is not None:
        return burn.resets_at
    ahead_max = now + DAYS_BACK_MAX * SECONDS_PER_DAY
    if burn.empty_at is not None and now < burn.empty_at <= ahead_max:
        return burn.empty_at
    return now + max((now - begins_at) * AHEAD_SHARE, PACE_AFTER_S)


def _forecast(burn: Burn, ends_at: float, now: float) -> tuple[float, int] | None:
    """As `Burn.empty_at`: a straight line at the pace so far, down to nothing or to the end."""
    elapsed_s = now - burn.began_at
    if burn.left_nanos == 0 or burn.spent_nanos <= 0 or elapsed_s < PACE_AFTER_S:
        return None
    if burn.empty_at is not None and burn.empty_at <= ends_at:
        return burn.empty_at, 0
    used = round(burn.spent_nanos / elapsed_s * (ends_at - now))
    return ends_at, max(0, burn.left_nanos - used)
