"""What a key spent day by day, and how its budgets burn down: from the roll-ups, to be drawn."""

from __future__ import annotations

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


async def billed_by(
    connection: AsyncConnection, tenant_id: str, key_id: str, *, grain: str, since: float
) -> list[tuple[int, int]]:
    """What a key was billed by bucket of `grain` ("hour" | "day") from that of `since` on."""
    c = spend_rollups.c
    first = int(since // GRAINS_S[grain]) * GRAINS_S[grain]
    query = (
        sa.select(c.bucket_start, sa.func.sum(c.billed_nanos))
        .where(
            c.grain == grain,
            c.bucket_start >= first,
            c.tenant_id == tenant_id,
            c.key_id == key_id,
        )
        .group_by(c.bucket_start)
        .order_by(c.bucket_start)
    )
    return [(start, int(nanos)) for start, nanos in await connection.execute(query)]


async def spend_of_key(
    connection: AsyncConnection, tenant_id: str, key_id: str, burns: Sequence[Burn], *, now: float
) -> tuple[list[tuple[str, str]], list[BurnCurve]]:
    """(day, dollars billed) of the last DAYS_SHOWN days without gaps, and a curve a budget."""
    today = int(now // SECONDS_PER_DAY) * SECONDS_PER_DAY
    first = today - (DAYS_SHOWN - 1) * SECONDS_PER_DAY
    oldest = today - DAYS_BACK_MAX * SECONDS_PER_DAY
    began = [burn.began_at for burn in burns]
    since = max(float(oldest), min([float(first), *began]))
    by_day = await billed_by(connection, tenant_id, key_id, grain="day", since=since)
    by_hour: Buckets = []
    if any(burn.budget.period == "day" for burn in burns):
        by_hour = await billed_by(connection, tenant_id, key_id, grain="hour", since=today)
    billed = dict(by_day)
    days = [first + i * SECONDS_PER_DAY for i in range(DAYS_SHOWN)]
    curves = [
        burn_curve(burn, by_hour, GRAINS_S["hour"], oldest=oldest, now=now)
        if burn.budget.period == "day"
        else burn_curve(burn, by_day, GRAINS_S["day"], oldest=oldest, now=now)
        for burn in burns
    ]
    return [(day_of(day), dollars(billed.get(day, 0))) for day in days], curves


def burn_curve(
    burn: Burn, buckets: Buckets, bucket_s: int, *, oldest: float, now: float
) -> BurnCurve:
    """Reckoned back from what is left now, so that it ends where the table says."""
    begins_at = min(max(burn.began_at, float(oldest)), now)
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
