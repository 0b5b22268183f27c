"""Spend from the roll-ups: by day, key, team, model, endpoint or lane, of one tenant or of all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.core import dollars
from gateway.errors import InvalidRequest
from gateway.ledger.windows import SECONDS_PER_DAY, day_of
from gateway.store.rollup_tables import GRAINS_S, MONEY, SPEND_SUMS, TOKENS, spend_rollups
from gateway.store.tables import keys, teams

By = Literal["day", "key", "team", "model", "endpoint", "lane"]
COLUMNS: dict[By, sa.Column[Any]] = {
    "day": spend_rollups.c.bucket_start,
    "key": spend_rollups.c.key_id,
    "team": spend_rollups.c.team_id,
    "model": spend_rollups.c.model,
    "endpoint": spend_rollups.c.endpoint_id,
    "lane": spend_rollups.c.lane,
}
DAYS_MAX = 92  # on a page; an export goes further, a day at a time
EXPORT_DAYS_MAX = 366
ROWS_MAX = 500  # dearest first; the rest is told as a number
PRICED_BY_HOUR_DAYS = 3  # longer spans are priced for a baseline as at noon of each day


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Which spend: whole UTC days, `since` and `until` both in it (unix seconds of midnight)."""

    since: int
    until: int
    tenant_id: str = ""  # "" = all

    @property
    def num_days(self) -> int:
        return (self.until - self.since) // SECONDS_PER_DAY + 1


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """One group; dollars are decimal strings. `cost` is what providers charge."""

    group: str
    name: str
    num_attempts: int
    num_estimated: int
    num_unpriced: int
    cost: str
    billed: str
    overrun: str
    waste: str
    tokens: dict[str, int]


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page Spend shows of a span."""

    by: str
    rows: list[SpendRow]
    num_more: int  # groups that are not in `rows`
    total: SpendRow
    days: list[tuple[str, str]]  # (day, dollars that providers charge), without gaps


def asked_of(first: str, last: str, *, now: float, tenant_id: str, days_max: int) -> Asked:
    """Days as `2026-11-30`; "" = the last 30 days. InvalidRequest for another form or too many."""
    today = int(now // SECONDS_PER_DAY) * SECONDS_PER_DAY
    until = _midnight(last) if last else today
    since = _midnight(first) if first else until - 29 * SECONDS_PER_DAY
    asked = Asked(since=since, until=until, tenant_id=tenant_id)
    if not 1 <= asked.num_days <= days_max:
        raise InvalidRequest(
            f"from {day_of(since)} to {day_of(until)} are {asked.num_days} days; ask for 1 to "
            f"{days_max}"
        )
    return asked


def _midnight(day: str) -> int:
    from datetime import UTC, datetime

    try:
        return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
    except ValueError as e:
        raise InvalidRequest(f"{day[:20]!r} is no day; write it as 2026-11-30") from e


async def spend(connection: AsyncConnection, asked: Asked, *, by: By) -> Spend:
    """Two sums over the days asked for: by group, dearest first, and by day."""
    by_day = await _sums(connection, asked, "day")
    groups = by_day if by == "day" else await _sums(connection, asked, by)
    if by != "day":
        groups.sort(key=lambda row: (-row["cost_nanos"], str(row["grouped"])))
    total = {name: sum(row[name] for row in by_day) for name in SPEND_SUMS}
    cost_of = {day_of(row["grouped"]): dollars(row["cost_nanos"]) for row in by_day}
    days = [day_of(asked.since + i * SECONDS_PER_DAY) for i in range(asked.num_days)]
    names = await _names(connection, by, [row["grouped"] for row in groups[:ROWS_MAX]])
    return Spend(
        by=by,
        rows=[_row(by, row, names) for row in groups[:ROWS_MAX]],
        num_more=max(0, len(groups) - ROWS_MAX),
        total=_row("", {**total, "grouped": ""}, {}),
        days=[(day, cost_of.get(day, "0.00")) for day in days],
    )


def _in(asked: Asked, grain: str) -> list[sa.ColumnElement[bool]]:
    c = spend_rollups.c
    end = asked.until + SECONDS_PER_DAY
    found = [c.grain == grain, c.bucket_start >= asked.since, c.bucket_start < end]
    return [*found, c.tenant_id == asked.tenant_id] if asked.tenant_id else found


async def _sums(connection: AsyncConnection, asked: Asked, by: By) -> list[dict[str, Any]]:
    c, group = spend_rollups.c, COLUMNS[by]
    query = (
        sa.select(
            group.label("grouped"), *(sa.func.sum(c[name]).label(name) for name in SPEND_SUMS)
        )
        .where(*_in(asked, "day"))
        .group_by(group)
        .order_by(group)
    )
    found = []
    for row in (await connection.execute(query)).mappings():
        found.append({name: v if name == "grouped" else int(v) for name, v in row.items()})
    return found


async def _names(connection: AsyncConnection, by: By, ids: list[Any]) -> dict[str, str]:
    """What people call a key or a team."""
    if by not in ("key", "team"):
        return {}
    table = keys if by == "key" else teams
    query = sa.select(table.c.id, table.c.name).where(table.c.id.in_(ids))
    return {row.id: row.name for row in await connection.execute(query)}


def _row(by: str, row: dict[str, Any], names: dict[str, str]) -> SpendRow:
    group = day_of(row["grouped"]) if by == "day" else str(row["grouped"])
    money = {name.removesuffix("_nanos"): dollars(row[name]) for name in MONEY}
    return SpendRow(
        group=group,
        name=names.get(group, ""),
        num_attempts=row["num_attempts"],
        num_estimated=row["num_estimated"],
        num_unpriced=row["num_unpriced"],
        tokens={name.removesuffix("_tokens"): row[name] for name in TOKENS},
        **money,
    )


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of good attempts in one bucket, and what all attempts in it cost."""

    start: int
    size_s: int
    num_attempts: int
    cost_nanos: int
    tokens: dict[str, int]


async def spans(connection: AsyncConnection, asked: Asked) -> list[Span]:
    """By hour where the span is short and all its hours are kept, else by day."""
    days = await _spans(connection, asked, "day")
    if asked.num_days > PRICED_BY_HOUR_DAYS:
        return days
    hours = await _spans(connection, asked, "hour")
    # Hours have an age and days have none: what is missing of them would not be seen.
    sums = [sum(each.cost_nanos for each in found) for found in (days, hours)]
    counts = [sum(each.num_attempts for each in found) for found in (days, hours)]
    return hours if sums[0] == sums[1] and counts[0] == counts[1] else days


async def _spans(
    connection: AsyncConnection, asked: Asked, grain: Literal["hour", "day"]
) -> list[Span]:
    c = spend_rollups.c
    good = c.is_wasted.is_(False)
    sums = [sa.func.sum(sa.case((good, c[n]), else_=0)) for n in ("num_attempts", *TOKENS)]
    query = (
        sa.select(c.bucket_start, sa.func.sum(c.cost_nanos), *sums)
        .where(*_in(asked, grain))
        .group_by(c.bucket_start)
        .order_by(c.bucket_start)
    )
    return [
        Span(
            start=start,
            size_s=GRAINS_S[grain],
            cost_nanos=int(cost),
            num_attempts=int(num),
            tokens={
                name.removesuffix("_tokens"): int(each)
                for name, each in zip(TOKENS, tokens, strict=True)
            },
        )
        for start, cost, num, *tokens in await connection.execute(query)
    ]


async def export_rows(
    connection: AsyncConnection, asked: Asked
) -> AsyncIterator[list[dict[str, Any]]]:
    """Every day with all its names, one day at a time: what a day holds is what memory holds."""
    c = spend_rollups.c
    names = [c[name] for name in ("tenant_id", "team_id", "key_id", "endpoint_id", "model", "lane")]
    for i in range(asked.num_days):
        day = Asked(
            since=asked.since + i * SECONDS_PER_DAY,
            until=asked.since + i * SECONDS_PER_DAY,
            tenant_id=asked.tenant_id,
        )
        query = (
            sa.select(*names, *(sa.func.sum(c[name]).label(name) for name in SPEND_SUMS))
            .where(*_in(day, "day"))
            .group_by(*names)
            .order_by(*names)
        )
        rows = (await connection.execute(query)).mappings().all()
        if rows:
            yield [{"day": day_of(day.since), **row} for row in rows]
